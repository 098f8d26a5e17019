"""Limits on the time that this process waits for the database, and on the number of its waiting threads.

Commands, migrations and jobs wait without a limit of their own. A process that serves requests calls
``serve_requests``: its sessions get short timeouts when they are opened, which costs no statement,
and some of its threads always stay free.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from django.conf import settings


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of a process that serves requests."""

    threads: int
    lock_seconds: int
    statement_seconds: int

    @property
    def max_waiting(self) -> int:
        """The number of threads that may wait at the same time."""
        return max(1, self.threads - max(1, self.threads // 4))

    @property
    def session_options(self) -> str:
        """Server settings of each session in the format of libpq's ``options``."""
        return (
            f"-c lock_timeout={self.lock_seconds}s -c statement_timeout={self.statement_seconds}s"
        )


requests: RequestLimits | None = None
"""The limits of this process; None if it does not serve requests."""

_may_wait: ContextVar[bool] = ContextVar("may_wait", default=True)
_reconnecting = threading.Lock()
_reconnecting_count = 0


def serve_requests() -> None:
    """Apply the limits to all sessions that this process opens from now on."""
    global requests  # noqa: PLW0603 -- set once per process
    requests = RequestLimits(
        threads=settings.MONODON_WEB_THREADS,
        lock_seconds=settings.MONODON_LOCK_SECONDS,
        statement_seconds=settings.MONODON_STATEMENT_SECONDS,
    )


@contextmanager
def fail_fast() -> Iterator[None]:
    """Report an unavailable database at once, without waiting, within the block."""
    token = _may_wait.set(False)
    try:
        yield
    finally:
        _may_wait.reset(token)


@contextmanager
def reconnect_slot() -> Iterator[bool]:
    """Yield True if this thread may wait until the database accepts connections."""
    global _reconnecting_count  # noqa: PLW0603
    if not _may_wait.get():
        yield False
        return
    with _reconnecting:
        may = requests is None or _reconnecting_count < requests.max_waiting
        _reconnecting_count += may
    try:
        yield may
    finally:
        with _reconnecting:
            _reconnecting_count -= may
