"""Calls of an issuer in threads of their own: the issuer decides how slowly it answers, byte by byte."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from catalog.errors import ServiceUnavailable

T = TypeVar("T")
WHOLE_SECONDS = 10.0
"""The most seconds that a request waits for a call."""
_MOST = 8
"""The most exchanges of this process that have not ended."""

_exchanges: list[Future[object]] = []
_lock = threading.Lock()


def start(work: Callable[[], T]) -> Future[T]:
    """Begin a call. It goes on, whoever waits for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="issuer", daemon=True).start()
    return future


def exchange(work: Callable[[], T]) -> T:
    """Return the result of a call that exchanges a code for tokens.

    Raises ServiceUnavailable if it does not end in time, or while too many earlier ones have not ended, and the
    exceptions of ``work``.
    """
    with _lock:
        _exchanges[:] = [future for future in _exchanges if not future.done()]
        if len(_exchanges) >= _MOST:
            raise _late()
        future = start(work)
        _exchanges.append(future)  # type: ignore[arg-type]
    try:
        return future.result(WHOLE_SECONDS)
    except TimeoutError:
        if future.done():  # the call itself raised it
            raise
        raise _late() from None


def _late() -> ServiceUnavailable:
    return ServiceUnavailable("The issuer of the single sign-on does not answer in time")
