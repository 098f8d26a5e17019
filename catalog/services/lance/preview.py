"""Preview a page of rows of a Lance table.

The work is bounded for every table, filter and order. The first step scans only the columns of the filters and
of the order, a few fragments at a time, so that a filter without matches can be stopped. The second step reads
the rows of the page in small chunks until the limits are reached.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import pyarrow as pa
from lance.dataset import LanceDataset
from lance.fragment import LanceFragment

from catalog.errors import InvalidInput
from catalog.formats import arrow_values
from catalog.formats.arrow_values import Shown
from catalog.formats.lance import sql as lance_sql
from catalog.formats.rows import profiles
from catalog.formats.rows.previews import (
    BUSY,
    MOST_BYTES,
    SEARCH_SHARE,
    THREADS,
    Preview,
    Request,
    incomplete,
    late,
    select_columns,
)
from catalog.formats.rows.profiles import Profile
from catalog.identifiers import Identifier
from catalog.services.lance.containment.calls import contained
from catalog.services.lance.contents import reading
from catalog.services.lance.errors import translating

T = TypeVar("T")
_AT_ONCE = 1_000_000  # rows scanned between two checks of the time limit
_BUFFER = 64 * 1024**2
_LONGEST_FILTER = 1000
_GRACE_SECONDS = 0.2
"""Added to the seconds of a preview, which it observes between two batches of rows."""
_PROFILE_SECONDS = 2 * profiles.SECONDS
"""How long a request waits for a profile, with the time for its first batch and for other previews."""
_VECTOR_BATCH = 256  # rows


def preview(
    dataset: LanceDataset, *, table: Identifier, request: Request, predicate: str = ""
) -> Preview:
    """Return a page of the rows that match the conditions and the predicate.

    Raises ColumnNotFound, InvalidInput for a predicate that Lance cannot parse, and Unreadable.
    """
    _check_filter(predicate)
    with reading():
        selected = select_columns(dataset.schema, table, request.columns)
        names = [column.name for column in selected]
        scan = _PreviewScan(dataset, table, selected, predicate.strip(), request)
        running = _start(table, scan.run)
        try:
            running.result(timeout=request.seconds + _GRACE_SECONDS)
        except TimeoutError:
            if running.cancel():
                return Preview(names, [], BUSY)
            scan.stop.set()
        return Preview(names, list(scan.rows), scan.stopped(), scan.has_more, scan.is_late)


def profile(dataset: LanceDataset, *, table: Identifier, column: str) -> Profile:
    """The profile of a column, of the rows that can be read in time.

    Raises ColumnNotFound, InvalidInput for a column without a profile, and Unreadable.
    """
    with reading():
        (chosen,) = select_columns(dataset.schema, table, [column])
        if not profiles.has_profile(chosen):
            raise InvalidInput(f"Column '{column[:200]}' of type {chosen.type} has no profile")
        scan = _ProfileScan(dataset, chosen, profiles.Profiler(chosen))
        running = _start(table, scan.run)
        try:
            return running.result(timeout=_PROFILE_SECONDS)
        except TimeoutError:
            scan.stop.set()
            if running.cancel():
                return Profile(0, 0, stopped=BUSY)
            return Profile(0, 0, stopped=late(_PROFILE_SECONDS, 0, None))


def _check_filter(predicate: str) -> None:
    if len(predicate) > _LONGEST_FILTER or "\x00" in predicate:
        raise InvalidInput(f"The filter is longer than {_LONGEST_FILTER:,} characters, or binary")
    lance_sql.check(predicate)


def _start(table: Identifier, work: Callable[[], T]) -> Future[T]:
    def call() -> T:
        with contained(table):
            return work()

    return _threads().submit(call)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="preview")


@dataclass
class _ProfileScan:
    """Reads a column in the thread of a preview."""

    dataset: LanceDataset
    column: pa.Field
    profiler: profiles.Profiler
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Profile:
        began = time.monotonic()
        limit = profiles.MOST_VECTORS if profiles.is_vector(self.column) else None
        scanner = self.dataset.scanner(
            columns=[self.column.name],
            io_buffer_size=_BUFFER,
            limit=limit,
            batch_size=_VECTOR_BATCH if limit else None,
        )
        stopped = ""
        for batch in scanner.to_batches():
            self.profiler.add(batch.column(0))
            if self.profiler.is_complete:
                break
            if self.stop.is_set() or time.monotonic() - began > profiles.SECONDS:
                stopped = profiles.late(self.profiler.rows)
                break
        return self.profiler.profile(stopped)


@dataclass
class _PreviewScan:
    """The scan of one preview. It has its own thread because Lance cannot be interrupted."""

    dataset: LanceDataset
    table: Identifier
    columns: Sequence[pa.Field]
    predicate: str
    request: Request
    has_more: bool = False
    is_late: bool = False
    """True if the scan ended because it took too long."""
    rows: list[list[Shown]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    scanned_rows: int = 0
    reason: str = ""
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._limit = self.request.seconds * SEARCH_SHARE

    def run(self) -> None:
        # Without an SQL filter, no error is the caller's mistake.
        with translating(self.table) if self.predicate else nullcontext():
            row_ids = self._find()
        self._limit = self.request.seconds
        self._read(row_ids)

    def stopped(self) -> str:
        if self.stop.is_set() and not self.reason:
            return self._too_long(self.scanned_rows if self.predicate else 0)
        return self.reason

    def _find(self) -> list[int]:
        """Return the row ids of the page, in order."""
        if self.request.is_plain:
            return self._find_plain()
        selection = self.request.selection()
        for group in self._groups():
            scanner = self.dataset.scanner(
                columns=selection.columns,
                with_row_id=True,
                filter=self.predicate or None,
                fragments=group,
                io_buffer_size=_BUFFER,
            )
            for batch in scanner.to_batches():
                columns = {name: batch.column(name) for name in selection.columns}
                selection.add(columns, batch.column("_rowid"))
                self.scanned_rows += batch.num_rows
                if selection.is_complete or self._is_late() or selection.is_too_large:
                    break
            if selection.is_complete:
                break
            if self._is_late() or selection.is_too_large:
                self.reason = self._too_long(self.scanned_rows)
                break
        row_ids, self.has_more = selection.page()
        return row_ids

    def _find_plain(self) -> list[int]:
        """Return the row ids of a page of the rows in their stored order."""
        start, count = self.request.page_start, self.request.page_size
        row_ids: list[int] = []
        for group in self._groups():
            scanner = self.dataset.scanner(
                columns=[],
                with_row_id=True,
                filter=self.predicate or None,
                limit=start + count + 1 - len(row_ids),
                fragments=group,
                io_buffer_size=_BUFFER,
            )
            for batch in scanner.to_batches():
                row_ids += batch.column("_rowid").to_pylist()
            if len(row_ids) > start + count:
                break
            self.scanned_rows += sum(fragment.physical_rows for fragment in group or ())
            if self._is_late():
                self.reason = self._too_long(self.scanned_rows if self.predicate else 0)
                break
        self.has_more = len(row_ids) > start + count
        return row_ids[start : start + count]

    def _groups(self) -> Iterator[list[LanceFragment] | None]:
        """Yield groups of fragments with enough rows each; None stands for all fragments."""
        if not self.predicate and self.request.is_plain:
            yield None
            return
        group: list[LanceFragment] = []
        rows, is_empty = 0, True
        for fragment in self.dataset.get_fragments():
            group.append(fragment)
            rows += fragment.physical_rows
            if rows >= _AT_ONCE:
                yield group
                group, rows, is_empty = [], 0, False
        if group or is_empty:
            # Also for a table without fragments, so that an invalid filter is reported.
            yield group or None

    def _read(self, ids: list[int]) -> None:
        """Read the rows: the first one to measure its size, then as many at a time as fit."""
        size, position, chunk_size = 0, 0, 1
        while position < len(ids):
            if self._is_late():
                self.is_late = True
                self.reason = incomplete(self.reason, position, len(ids))
                return
            if size > MOST_BYTES:
                self.reason = f"Stopped after {_mebibytes(size)} MiB."
                return
            chunk = ids[position : position + chunk_size]
            scanner = self.dataset.scanner(
                columns=[column.name for column in self.columns],
                with_row_id=True,
                filter=f"_rowid in ({', '.join(map(str, chunk))})",
                io_buffer_size=_BUFFER,
            )
            data = scanner.to_table()
            size += data.nbytes
            position += len(chunk)
            chunk_size = max(
                1, min(self.request.page_size, (MOST_BYTES // 4) // max(size // position, 1))
            )
            self._show(data, chunk)

    def _show(self, data: pa.Table, chunk: list[int]) -> None:
        positions = {
            id_: position for position, id_ in enumerate(data.column("_rowid").to_pylist())
        }
        columns = [(data.column(column.name), column) for column in self.columns]
        for id_ in chunk:
            if (position := positions.get(id_)) is not None:
                self.rows.append(
                    [arrow_values.show(values[position], column) for values, column in columns]
                )

    def _is_late(self) -> bool:
        return self.stop.is_set() or time.monotonic() - self.began > self._limit

    def _too_long(self, scanned_rows: int) -> str:
        self.is_late = True
        return late(self._limit, scanned_rows, self.request.order)


def _mebibytes(size: int) -> int:
    return round(size / 1024**2)
