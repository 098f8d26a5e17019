"""Messages over a socket: the length of each, and its bytes."""

import socket
import struct
import time

_LENGTH = struct.Struct("!I")


class MessageTooLarge(ValueError):
    """A message is larger than its receiver allows."""


class Channel:
    """One end of a connection. Raises TimeoutError after ``ends_at``, a time of the monotonic clock."""

    def __init__(self, connection: socket.socket, ends_at: float | None = None) -> None:
        self._connection = connection
        self._ends_at = ends_at

    def send(self, content: bytes, handle: int | None = None) -> None:
        """Send a message, with an open file if its receiver expects one.

        Raises OSError if the other end is closed.
        """
        self._set_timeout()
        header = _LENGTH.pack(len(content))
        if handle is not None:
            sent = socket.send_fds(self._connection, [header], [handle])
            header = header[sent:]
        self._connection.sendall(header + content)

    def receive(self, limit: int) -> bytearray:
        """The next message. Raises EOFError at the end, OSError and MessageTooLarge."""
        return self._content(self._exactly(_LENGTH.size), limit)

    def receive_file(self, limit: int) -> tuple[bytearray, int | None]:
        """The next message, and the open file that was sent with it. Raises as ``receive``."""
        self._set_timeout()
        header, handles, _, _ = socket.recv_fds(self._connection, _LENGTH.size, 1)
        if not header:
            raise EOFError("the other end is closed")
        header += self._exactly(_LENGTH.size - len(header))
        return self._content(header, limit), (handles[0] if handles else None)

    def _content(self, header: bytes | bytearray, limit: int) -> bytearray:
        (length,) = _LENGTH.unpack(header)
        if length > limit:
            raise MessageTooLarge(f"a message of {length:,} bytes, more than {limit:,}")
        return self._exactly(length)

    def _exactly(self, length: int) -> bytearray:
        content = bytearray(length)
        remaining = memoryview(content)
        while remaining:
            self._set_timeout()
            size = self._connection.recv_into(remaining)
            if not size:
                raise EOFError("the other end is closed")
            remaining = remaining[size:]
        return content

    def _set_timeout(self) -> None:
        if self._ends_at is None:
            return
        seconds = self._ends_at - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the time is over")
        self._connection.settimeout(seconds)
