"""The event streams that this process has open, which the front knows without a thread.

One principal gets at most half of them, rounded up, so that it cannot keep all others from following events.
"""

import threading
from collections import Counter, deque

from django.conf import settings

from api.errors import TooManyRequests
from catalog.errors import ServiceUnavailable

PATH = "/management/v1/events/stream"
_RETRY_SECONDS = 15
"""A stream whose client is gone is closed after this time at the latest."""
_lock = threading.Lock()
_open: Counter[str] = Counter()
"""The number of streams by principal, including those of ``_closed``."""
_closed: deque[str] = deque()
"""The principals of closed streams that are not yet subtracted."""


def acquire(principal: str) -> None:
    """Count a new stream of a principal. Raises as ``require_free``."""
    with _lock:
        _require_free(principal)
        _open[principal] += 1


def release(principal: str) -> None:
    """Count a stream of a principal as closed.

    Takes no lock: the garbage collector may close a stream in a thread that holds it.
    """
    _closed.append(principal)


def require_free(principal: str) -> None:
    """Require that a principal may open another stream.

    Raises ServiceUnavailable if MONODON_EVENT_STREAMS are open, and TooManyRequests if half of that number
    are the principal's own.
    """
    with _lock:
        _require_free(principal)


def _require_free(principal: str) -> None:
    _subtract_closed()
    most = settings.MONODON_EVENT_STREAMS
    if _open.total() >= most:
        raise ServiceUnavailable("All streams of events are in use; poll for events instead")
    share = (most + 1) // 2
    if _open[principal] >= share:
        raise TooManyRequests(f"'{principal}'", share, _RETRY_SECONDS, "event streams")


def _subtract_closed() -> None:
    while _closed:
        principal = _closed.popleft()
        if _open[principal] <= 1:
            del _open[principal]
        else:
            _open[principal] -= 1
