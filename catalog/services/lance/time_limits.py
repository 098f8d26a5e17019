"""Time limits for calls of Lance that a request waits for.

Lance cannot be interrupted: a merge of rows that match many others, or a filter over a large table, may take
hours, although its client has left, and so may a function of a single long value. So such a call runs in a
thread of its own, and the request waits at most MONODON_LANCE_SECONDS for it. The abandoned call goes on until
Lance returns, and its result is discarded. If too many calls are abandoned, or too many slow ones run
(``slow_calls``), requests that may take as long are refused at once.
"""

import contextvars
import math
import threading
import time
from collections import Counter as Numbers
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, TypeVar

import pyarrow as pa
from django.conf import settings
from django.db import connections
from lance.dataset import LanceDataset
from prometheus_client import Counter

from catalog.errors import ServiceUnavailable
from catalog.formats.lance import sql as lance_sql
from catalog.services.lance import slow_calls
from catalog.services.lance.containment import calls
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
"""Reads of a table with fewer rows take little time, unless their expressions may take long or the table's files
are damaged."""
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
    the time is over, or the call is slow and may not be waited for (``slow_calls``); if it returns False, the
    call is waited for. Raises ServiceUnavailable if the call is abandoned, and as ``_admit``, and what the call
    raises.
    """
    _admit(principal)
    return _run(work, principal, since, may_abandon)


def _admit(principal: str) -> None:
    """Refuse a call of a principal that may take long if too many calls are abandoned, or are slow.

    Raises ServiceUnavailable if MAX_ABANDONED are abandoned, or half of that number of this principal. Of a
    principal, more do not count.
    """
    with _lock:
        abandoned = Numbers(_abandoned.values())
    share = MAX_ABANDONED // 2
    counted = sum(min(number, share) for number in abandoned.values())
    if abandoned[principal] >= share or counted >= MAX_ABANDONED:
        raise ServiceUnavailable(
            f"{abandoned.total()} requests that took too long still occupy the server; try again later",
            retry_seconds=_RETRY_SECONDS,
        )
    _require_place(principal)


def _require_place(principal: str) -> None:
    if slow_calls.is_full(principal):
        raise _too_many()


def _run(
    work: Callable[[], T],
    principal: str,
    since: Callable[[], float] = lambda: 0.0,
    may_abandon: Callable[[], bool] = lambda: True,
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
    seconds = settings.MONODON_LANCE_SECONDS or math.inf
    if _ends(future, min(seconds, slow_calls.GRACE_SECONDS)):
        return future.result()
    with slow_calls.waiting(principal) as may_wait:
        # The limit may begin later than the last wait did.
        while may_wait and (remaining := max(began, since()) + seconds - time.monotonic()) > 0:
            if _ends(future, min(remaining, seconds)):
                return future.result()
        if not may_abandon():
            return future.result()
    with _lock:
        if not future.done():
            _abandoned[future] = principal
            ABANDONED.inc()
            end = calls.abandon()
            future.add_done_callback(lambda _: end())
    raise _given_up() if may_wait else _too_many()


def _ends(future: Future[Any], seconds: float) -> bool:
    """Wait for the end of a call, for this time at most."""
    with suppress(TimeoutError):
        future.exception(None if math.isinf(seconds) else seconds)
    return future.done()


def _too_many() -> ServiceUnavailable:
    return ServiceUnavailable(
        "Too many slow requests are running; try again later, with fewer at the same time",
        retry_seconds=_RETRY_SECONDS,
    )


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


def read(
    dataset: LanceDataset, principal: str, work: Callable[[], T], expressions: Iterable[str] = ()
) -> T:
    """Run a call that reads a dataset and evaluates expressions, for a request with a time limit. Raises as ``run``."""
    if not serves_requests():
        return work()
    _admit_read(dataset, principal, expressions)
    return _run(work, principal)


def _admit_read(dataset: LanceDataset, principal: str, expressions: Iterable[str]) -> None:
    """Refuse a read as ``_admit``; one that should take little time only if slow calls leave no place."""
    if may_take_long(dataset, expressions):
        _admit(principal)
    else:
        _require_place(principal)


def batches(
    dataset: LanceDataset,
    principal: str,
    reader: pa.RecordBatchReader,
    expressions: Iterable[str] = (),
) -> Generator[pa.RecordBatch, None, None]:
    """The batches of a reader, for a request with a limit of the time for each.

    The time in which nobody asks for a batch does not count. Closes the reader at the end. Raises as ``run``.
    """
    if not serves_requests():
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
        # Only at the beginning: a stream that has begun continues.
        _admit_read(dataset, principal, expressions)
        while (batch := _run(read_next, principal, may_abandon=give_up)) is not None:
            yield batch
    finally:
        if not is_abandoned:  # closing it would free what the other thread reads
            reader.close()


def may_take_long(dataset: LanceDataset, expressions: Iterable[str] = ()) -> bool:
    """True for requests that read a large dataset, or with expressions that may take long. Jobs and commands may
    take any time."""
    return serves_requests() and (
        any(map(lance_sql.may_take_long, expressions)) or bool(dataset.count_rows() >= SMALL_ROWS)
    )


def of_write(*expressions: str) -> Callable[[], float]:
    """The ``since`` of a write with expressions: without a time limit, if they may not take long."""
    is_long = lance_sql.may_take_long(" ".join(expressions))
    return lambda: 0.0 if is_long else math.inf
