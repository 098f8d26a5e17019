"""The port of the web server: reservation, and checks of its listeners."""

import contextlib
import os
import socket
import sys
from pathlib import Path

from server.errors import PortUnavailable

_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp


class Port:
    """Reserves an address for the whole run, including restarts of the web server.

    On Linux, a socket that is bound but does not listen prevents other users from using the port. The
    processes of the web server may share it, because they set SO_REUSEPORT and belong to the same user.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._held: socket.socket | None = None

    def hold(self) -> None:
        """Reserve the port, before anything is started. Raises PortUnavailable if it is in use."""
        # Without SO_REUSEPORT, this also fails if a process has the port that would share it.
        self._bind(socket.SO_REUSEADDR).close()
        if sys.platform == "linux":
            self._held = self._bind(socket.SO_REUSEPORT)

    def release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def is_served_by(self, session: int) -> bool:
        """True if a process of this session, and no other, listens on the port.

        Raises PortUnavailable if another process does. Without /proc this is unknown, and the result is True.
        """
        listeners = self._listeners()
        if listeners is None:
            return True
        own = _sockets_of(session)
        if listeners - own:
            raise self._unavailable("another process listens there")
        return bool(listeners)

    def _bind(self, option: int) -> socket.socket:
        probe = socket.socket(self._family)
        probe.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            probe.bind((self._host, self._port))
        except OSError as exc:
            probe.close()
            raise self._unavailable(exc.strerror or str(exc)) from exc
        return probe

    def _unavailable(self, reason: str) -> PortUnavailable:
        return PortUnavailable(
            f"Cannot listen on {self._host}:{self._port} ({reason}). "
            f"Set MONODON_PORT (or MONODON_HOST) to another one, or stop what uses it."
        )

    def _listeners(self) -> set[str] | None:
        """The inodes of the sockets that listen at the address; None where there is no /proc."""
        if self._held is None:
            return None
        name = "tcp6" if self._family == socket.AF_INET6 else "tcp"
        try:
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
        except OSError:
            return None
        address = _kernel_address(self._family, *self._held.getsockname()[:2])
        rows = [line.split() for line in lines]
        return {row[9] for row in rows if row[1] == address and row[3] == _LISTENING}


def _kernel_address(family: int, host: str, port: int) -> str:
    """An address as /proc/net/tcp shows it: 32-bit words in the machine's byte order."""
    packed = socket.inet_pton(family, host)
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return f"{b''.join(words).hex().upper()}:{port:04X}"


def _sockets_of(session: int) -> set[str]:
    """The inodes of the sockets that processes of a session have open."""
    inodes = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if os.getsid(int(entry.name)) != session:
                continue
            for file in os.scandir(f"/proc/{entry.name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(file.path)  # noqa: PTH115 (thousands of them)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    return inodes
