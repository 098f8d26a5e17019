"""Answers that are sent in pieces.

granian accepts every piece immediately and buffers what the client has not read. So the next piece is
produced only when the socket accepts more: then only the kernel's buffers hold unread data.
"""

import logging
import select
import socket
import time
from typing import Any

from django.conf import settings

from api.front import connections
from api.front.answer import Answer

log = logging.getLogger(__name__)

_SETTLED_SECONDS = 0.002
"""If the socket still accepts data after this time, granian has written everything."""


class _ClientGone(Exception):
    """The client has closed the connection, or does not read."""


def send_stream(protocol: Any, scope: Any, answer: Answer) -> None:
    """Send the pieces as fast as the client reads. A failure aborts the connection.

    Otherwise, an incomplete answer would look like a complete one.
    """
    if answer.stream is None:
        raise AssertionError("only for answers that have a stream")
    transport = protocol.response_stream(answer.status, answer.headers)
    connection = connections.find(scope.client, scope.server)
    try:
        if connection is None:
            raise _ClientGone
        pace = _Pace(connection)
        for piece in answer.stream:
            if piece:
                pace.wait(len(piece))
                _put(transport, piece)
    except _ClientGone:
        connections.abort(connection)
    except Exception:
        log.exception("%s %s failed while its answer was sent", scope.method, scope.path)
        connections.abort(connection)
    finally:
        answer.stream.close()  # type: ignore[attr-defined]
        if connection is not None:
            connection.close()


def _put(transport: Any, piece: bytes) -> None:
    try:
        # It succeeds or fails immediately: there is nothing to await.
        next(transport.send_bytes(piece).__await__())
    except StopIteration:
        return
    except RuntimeError as error:  # granian's error for a closed connection
        raise _ClientGone from error


class _Pace:
    """Waits for a client that reads fast enough."""

    def __init__(self, connection: socket.socket) -> None:
        self._poll = select.poll()
        self._poll.register(connection, select.POLLOUT)
        self._waited = 0.0
        self._sent = 0

    def wait(self, size: int) -> None:
        """Wait until the socket accepts more. Raises _ClientGone."""
        allowed = settings.MONODON_ANSWER_SECONDS + self._sent / settings.MONODON_BODY_MIN_RATE
        began = time.monotonic()
        while True:
            seconds_left = began + allowed - self._waited - time.monotonic()
            if seconds_left <= 0 or not self._is_writable(seconds_left):
                raise _ClientGone
            if not self._sent:
                break
            time.sleep(_SETTLED_SECONDS)
            if self._is_writable(0):
                break
        self._waited += time.monotonic() - began
        self._sent += size

    def _is_writable(self, seconds: float) -> bool:
        events = self._poll.poll(seconds * 1000)
        if any(mask & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, mask in events):
            raise _ClientGone
        return bool(events)
