"""Preview the first rows of a Lance table.

The work is bounded for every table and filter. The first step scans only the columns of the filter,
a few fragments at a time, so that a filter without matches can be stopped. The second step reads
the matching rows in small chunks until the limits are reached.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa
from lance.dataset import LanceDataset
from lance.fragment import LanceFragment

from catalog.errors import ColumnNotFound, InvalidInput
from catalog.formats import arrow_values
from catalog.formats.arrow_values import Shown
from catalog.formats.lance import sql as lance_sql
from catalog.identifiers import Identifier
from catalog.services.lance.contents import reading
from catalog.services.lance.errors import refusing

DEFAULT_ROWS = 20
MOST_ROWS = 100
MOST_COLUMNS = 30
"""Default and maximum number of columns."""
_SECONDS = 5.0
_MOST_BYTES = 32 * 1024**2
_AT_ONCE = 1_000_000  # rows scanned between two checks of the clock
_BUFFER = 64 * 1024**2
_THREADS = 2  # per process; other previews wait and time out with a message
_LONGEST_FILTER = 1000


@dataclass(frozen=True, slots=True)
class Preview:
    """The first rows of a table, with each value shortened."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Shown]]
    stopped: str = ""
    """Why the preview ended before its row limit; empty if it did not."""


def preview(
    dataset: LanceDataset,
    *,
    table: Identifier,
    columns: Sequence[str] = (),
    predicate: str = "",
    limit: int = DEFAULT_ROWS,
) -> Preview:
    """Return the first rows that match the predicate.

    Raises ColumnNotFound, InvalidInput for a predicate that Lance cannot parse, and Unreadable.
    """
    _check_filter(predicate)
    with reading():
        selected = _select(dataset.schema, table, columns)
        scan = _PreviewScan(
            dataset, table, selected, predicate.strip(), max(1, min(limit, MOST_ROWS))
        )
        running = _threads().submit(scan.run)
        try:
            running.result(timeout=_SECONDS + 1)
        except TimeoutError:
            if running.cancel():
                return Preview(
                    [column.name for column in selected],
                    [],
                    "Nothing was read: other previews are running. Try again.",
                )
            scan.stop.set()
        return Preview([column.name for column in selected], list(scan.rows), scan.stopped())


def _check_filter(predicate: str) -> None:
    if len(predicate) > _LONGEST_FILTER or "\x00" in predicate:
        raise InvalidInput(f"The filter is longer than {_LONGEST_FILTER:,} characters, or binary")
    lance_sql.check(predicate)


def _select(schema: pa.Schema, table: Identifier, names: Sequence[str]) -> list[pa.Field]:
    by_name = {column.name: column for column in schema}
    for name in names:
        if name not in by_name:
            raise ColumnNotFound(table, f"Column '{name[:200]}' does not exist")
    selected = set(names)
    return [column for column in schema if not selected or column.name in selected][:MOST_COLUMNS]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="preview")


@dataclass
class _PreviewScan:
    """The scan of one preview. It has its own thread because Lance cannot be interrupted."""

    dataset: LanceDataset
    table: Identifier
    columns: Sequence[pa.Field]
    predicate: str
    limit: int
    rows: list[list[Shown]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    scanned_rows: int = 0
    reason: str = ""
    began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        if not self.predicate:  # without a filter, no error is the caller's mistake
            self._read(self._find())
            return
        with refusing(self.table):
            row_ids = self._find()
        self._read(row_ids)

    def stopped(self) -> str:
        if self.stop.is_set() and not self.reason:
            return self._too_long()
        return self.reason

    def _find(self) -> list[int]:
        """Return the row ids of the first matching rows."""
        row_ids: list[int] = []
        for group in self._groups():
            scanner = self.dataset.scanner(
                columns=[],
                with_row_id=True,
                filter=self.predicate or None,
                limit=self.limit - len(row_ids),
                fragments=group,
                io_buffer_size=_BUFFER,
            )
            for batch in scanner.to_batches():
                row_ids += batch.column("_rowid").to_pylist()
            if len(row_ids) >= self.limit:
                break
            self.scanned_rows += sum(fragment.physical_rows for fragment in group or ())
            if self._is_late():
                self.reason = self._too_long()
                break
        return row_ids[: self.limit]

    def _groups(self) -> Iterator[list[LanceFragment] | None]:
        """Yield groups of fragments with enough rows each; None stands for all fragments."""
        if not self.predicate:
            yield None
            return
        group: list[LanceFragment] = []
        rows = 0
        for fragment in self.dataset.get_fragments():
            group.append(fragment)
            rows += fragment.physical_rows
            if rows >= _AT_ONCE:
                yield group
                group, rows = [], 0
        if group or not self.scanned_rows:
            # Also for a table without fragments, so that an invalid filter is reported.
            yield group or None

    def _read(self, ids: list[int]) -> None:
        """Read the rows: the first one to measure its size, then as many at a time as fit."""
        size, position, chunk_size = 0, 0, 1
        while position < len(ids):
            if self._is_late():
                self.reason = self.reason or self._too_long()
                return
            if size > _MOST_BYTES:
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
            chunk_size = max(1, min(self.limit, (_MOST_BYTES // 4) // max(size // position, 1)))
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
        return self.stop.is_set() or time.monotonic() - self.began > _SECONDS

    def _too_long(self) -> str:
        progress = f" and {self.scanned_rows:,} scanned rows" if self.predicate else ""
        return f"Stopped after {_SECONDS:.0f} seconds{progress}: there may be more."


def _mebibytes(size: int) -> int:
    return round(size / 1024**2)
