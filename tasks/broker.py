"""A channel of the broker that a worker may close after it has lost the connection.

Kombu returns the messages of running tasks to the queue when a channel is closed, and acknowledges them when the
tasks end. Both need a connection. Without one, an AttributeError ended the worker, which then waited for its running
jobs and took no others, possibly for hours.
"""

from typing import Any

from kombu.exceptions import InconsistencyError
from kombu.transport import redis


class Channel(redis.Channel):
    @property
    def do_restore(self) -> bool:  # type: ignore[override]
        """True if closing the channel returns its messages. Otherwise beat sends the jobs again that have not ended."""
        return self._is_connected

    def _connparams(self, asynchronous: bool = False) -> Any:
        if not self._is_connected:
            # Celery expects this one if an acknowledgment fails.
            raise InconsistencyError("The connection to the broker is closed.")
        return super()._connparams(asynchronous)  # type: ignore[no-untyped-call]

    @property
    def _is_connected(self) -> bool:
        transport = self.connection
        return transport is not None and transport.client is not None


def install() -> None:
    """Let all connections to Redis use these channels."""
    redis.Transport.Channel = Channel
