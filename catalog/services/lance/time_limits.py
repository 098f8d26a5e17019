"""Time limits for calls of Lance that a request waits for.

Lance cannot be interrupted: a merge of rows that match many others, or a filter over a large table, may take
hours, although its client has left. So such a call runs in a thread of its own, and the request waits at most
MONODON_LANCE_SECONDS for it. The abandoned call goes on until Lance returns, and its result is discarded. If
too many calls are abandoned, requests that may take as long are refused at once.
"""

import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any, TypeVar

import pyarrow as pa
from django.conf import settings
from django.db import connections
from lance.dataset import LanceDataset
from prometheus_client import Counter

from catalog.errors import ServiceUnavailable
from catalog.storage.outages.availability import serves_requests

T = TypeVar("T")
ABANDONED = Counter(
    "monodon_lance_abandoned",
    "Calls of Lance that requests have given up, because they took too long.",
)
MAX_ABANDONED = 4
"""Abandoned calls of a process; then new requests with a time limit are refused, and those of one principal
at half of that number."""
SMALL_ROWS = 1_000_000
"""Reads of a table with fewer rows need no limit, nor the thread that it costs."""
_RETRY_SECONDS = 60
_lock = threading.Lock()
_abandoned: dict[Future[Any], str] = {}
"""The principals of abandoned calls."""


def run(
    work: Callable[[], T],
    *,
    principal: str,
    since: Callable[[], float] = lambda: 0.0,
    may_abandon: Callable[[], bool] = lambda: True,
) -> T:
    """Run a call of Lance in another thread, for a principal, and return its result.

    ``since`` returns the monotonic time at which the limit begins, if that is after the start of the call:
    when the client last sent rows, or infinity while the client sends them. ``may_abandon`` is called when
    the time is over; if it returns False, the call is waited for. Raises ServiceUnavailable if the call is
    abandoned, and as ``_admit``, and what the call raises.
    """
    _admit(principal)
    return _run(work, principal, since, may_abandon)


def _admit(principal: str) -> None:
    """Refuse the call of a principal if too many calls are abandoned.

    Raises ServiceUnavailable if they are MAX_ABANDONED, or half of that number of this principal.
    """
    with _lock:
        abandoned = list(_abandoned.values())
    own = abandoned.count(principal)
    if own >= MAX_ABANDONED // 2 or len(abandoned) >= MAX_ABANDONED:
        raise ServiceUnavailable(
            f"{len(abandoned)} requests that took too long still occupy the server; try again later",
            retry_seconds=_RETRY_SECONDS,
        )


def _run(
    work: Callable[[], T],
    principal: str,
    since: Callable[[], float],
    may_abandon: Callable[[], bool],
) -> T:
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits
            future.set_exception(error)
        with _lock:
            _abandoned.pop(future, None)
        connections.close_all()  # those of this thread, which ends

    began = time.monotonic()
    threading.Thread(target=call, name="limited by time", daemon=True).start()
    seconds = settings.MONODON_LANCE_SECONDS
    wait: float | None = seconds or None
    while wait is None or wait > 0:
        try:
            return future.result(wait)
        except TimeoutError:
            if future.done():  # the call itself raised it, or has ended just now
                return future.result()
        # The limit may begin later than the last wait did.
        wait = min(max(began, since()) + seconds - time.monotonic(), seconds)
    if not may_abandon():
        return future.result()
    with _lock:
        if not future.done():
            _abandoned[future] = principal
            ABANDONED.inc()
    raise _given_up()


def _given_up() -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The request took longer than {settings.MONODON_LANCE_SECONDS} seconds (MONODON_LANCE_SECONDS)"
        " and was given up; it changed nothing",
        retry_seconds=_RETRY_SECONDS,
    )


def write_all(reader: pa.RecordBatchReader, write: Callable[[pa.RecordBatchReader], T]) -> T:
    """Run a call that writes all batches of a reader, for a request with a limit of its time.

    When the time is over, the reader has no next batch, but an error. Raises ServiceUnavailable then, and
    what the call raises.
    """
    seconds = settings.MONODON_LANCE_SECONDS if serves_requests() else 0
    ends_at = time.monotonic() + seconds if seconds else math.inf
    is_late = False

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal is_late
        with closing(reader):
            for batch in reader:
                is_late = time.monotonic() > ends_at
                if is_late:
                    raise _given_up()
                yield batch

    try:
        return write(pa.RecordBatchReader.from_batches(reader.schema, batches()))
    except Exception as error:
        if is_late:
            raise _given_up() from error  # Lance has made another error of it
        raise


def read(dataset: LanceDataset, principal: str, work: Callable[[], T]) -> T:
    """Run a call that reads a dataset, for a request on a large one with a time limit. Raises as ``run``."""
    return run(work, principal=principal) if is_limited(dataset) else work()


def batches(
    dataset: LanceDataset, principal: str, reader: pa.RecordBatchReader
) -> Iterator[pa.RecordBatch]:
    """The batches of a reader, for a request on a large dataset with a limit of the time for each.

    The time in which nobody asks for a batch does not count. Closes the reader at the end. Raises as ``run``.
    """
    if not is_limited(dataset):
        with closing(reader):
            yield from reader
        return
    is_abandoned = False

    def give_up() -> bool:
        nonlocal is_abandoned
        is_abandoned = True
        return True

    def read_next() -> pa.RecordBatch | None:
        return next(reader, None)

    try:
        _admit(principal)  # only at the beginning: a stream that has begun continues
        while (batch := _run(read_next, principal, lambda: 0.0, give_up)) is not None:
            yield batch
    finally:
        if not is_abandoned:  # closing it would free what the other thread reads
            reader.close()


def is_limited(dataset: LanceDataset) -> bool:
    """True for requests on large datasets. Jobs and commands may take any time."""
    return serves_requests() and bool(dataset.count_rows() >= SMALL_ROWS)
