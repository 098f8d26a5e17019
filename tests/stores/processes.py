"""Servers on loopback that end with the process that started them."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from server.options import PROJECT
from server.processes import Child

_READY_SECONDS = 60.0
_STOP_SECONDS = 2.0
_KEPT_LINES = 100


class NotReady(Exception):
    """A server ended or does not answer. The message has its output."""


class ServerProcess:
    """A server as a child process; start it from the main thread."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        """The end of the output."""
        self._changed = threading.Event()
        self._name = name
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(_NOT_INHERITED)}
        self._child = Child(
            name,
            command,
            sink=self._write,
            environment=inherited | {"PYTHONUNBUFFERED": "1"} | dict(environment or {}),
            directory=PROJECT,
        )

    def start(self, is_ready: Callable[[], bool]) -> None:
        """Start, and wait until the server is ready. Raises NotReady; the server is stopped then."""
        self._child.start()
        deadline = time.monotonic() + _READY_SECONDS
        while not is_ready():
            if not self._child.running or time.monotonic() > deadline:
                self.stop()
                raise NotReady(f"{self._name} does not start:\n" + "\n".join(self.lines))
            self._changed.wait(0.02)
            self._changed.clear()

    def stop(self) -> None:
        self._child.signal(self._child.polite)
        if not self._child.wait(_STOP_SECONDS):
            self._child.kill_group()
            self._child.wait(_STOP_SECONDS)
        self._child.drain()

    def _write(self, line: str) -> None:
        self.lines.append(line)
        self._changed.set()


# Credentials of the developer's shell have no business in a test's store.
_NOT_INHERITED = ("AWS_", "PYTEST_", "MONODON_", "DJANGO_", "DATABASE_URL", "REDIS_URL")


def python(module: str) -> list[str]:
    return [sys.executable, "-m", module]
