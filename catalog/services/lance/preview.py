"""The first rows of a Lance table, for people who want to see what is in it.

Whatever is asked of whatever table, the work is bounded. Rows are first looked for by the filter's
columns alone, a few fragments at a time, so that a filter that matches nothing can be stopped; what
was found is then read in small pieces, until there is enough of it.
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
"""Shown when none is chosen, and the most that can be."""
_SECONDS = 5.0
_MOST_BYTES = 32 * 1024**2
_AT_ONCE = 1_000_000  # rows looked at between two looks at the clock
_BUFFER = 64 * 1024**2
_THREADS = 2  # of this process: others wait, and are told
_LONGEST_FILTER = 1000


@dataclass(frozen=True, slots=True)
class Preview:
    """Some rows, each value shortened."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Shown]]
    stopped: str = ""
    """Why there may be more rows than these, other than that they were not asked for."""


def preview(
    dataset: LanceDataset,
    *,
    table: Identifier,
    columns: Sequence[str] = (),
    predicate: str = "",
    limit: int = DEFAULT_ROWS,
) -> Preview:
    """The first rows for which the predicate holds.

    Raises ColumnNotFound, InvalidInput for a predicate that Lance does not understand, Unreadable.
    """
    _check_filter(predicate)
    with reading():
        chosen = _chosen(dataset.schema, table, columns)
        look = _Look(dataset, table, chosen, predicate.strip(), max(1, min(limit, MOST_ROWS)))
        running = _threads().submit(look.run)
        try:
            running.result(timeout=_SECONDS + 1)
        except TimeoutError:
            if running.cancel():
                return Preview(
                    [each.name for each in chosen],
                    [],
                    "Nothing was read: others are looking at rows just now. Try again.",
                )
            look.stop.set()
        return Preview([each.name for each in chosen], list(look.rows), look.stopped())


def _check_filter(predicate: str) -> None:
    if len(predicate) > _LONGEST_FILTER or "\x00" in predicate:
        raise InvalidInput(f"The filter is longer than {_LONGEST_FILTER:,} characters, or binary")
    lance_sql.check(predicate)


def _chosen(schema: pa.Schema, table: Identifier, names: Sequence[str]) -> list[pa.Field]:
    known = {each.name: each for each in schema}
    for name in names:
        if name not in known:
            raise ColumnNotFound(table, f"Column '{name[:200]}' does not exist")
    wanted = set(names)
    return [each for each in schema if not wanted or each.name in wanted][:MOST_COLUMNS]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="preview")


@dataclass
class _Look:
    """One look at a table, in a thread of its own: Lance cannot be interrupted."""

    dataset: LanceDataset
    table: Identifier
    columns: Sequence[pa.Field]
    predicate: str
    limit: int
    rows: list[list[Shown]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    looked_at: int = 0
    reason: str = ""
    began: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        if not self.predicate:  # then nothing can be the caller's mistake
            self._read(self._find())
            return
        with refusing(self.table):
            found = self._find()
        self._read(found)

    def stopped(self) -> str:
        if self.stop.is_set() and not self.reason:
            return self._too_long()
        return self.reason

    def _find(self) -> list[int]:
        """The row ids of the first rows that match."""
        found: list[int] = []
        for group in self._groups():
            scanner = self.dataset.scanner(
                columns=[],
                with_row_id=True,
                filter=self.predicate or None,
                limit=self.limit - len(found),
                fragments=group,
                io_buffer_size=_BUFFER,
            )
            for batch in scanner.to_batches():
                found += batch.column("_rowid").to_pylist()
            if len(found) >= self.limit:
                break
            self.looked_at += sum(each.physical_rows for each in group or ())
            if self._is_late():
                self.reason = self._too_long()
                break
        return found[: self.limit]

    def _groups(self) -> Iterator[list[LanceFragment] | None]:
        """The fragments, as many at a time as hold enough rows; None is for all of them."""
        if not self.predicate:
            yield None
            return
        group: list[LanceFragment] = []
        rows = 0
        for each in self.dataset.get_fragments():
            group.append(each)
            rows += each.physical_rows
            if rows >= _AT_ONCE:
                yield group
                group, rows = [], 0
        if group or not self.looked_at:
            # Also of no fragments, so that a mistake in the filter is told.
            yield group or None

    def _read(self, ids: list[int]) -> None:
        """The rows: one to learn how large they are, then as many at a time as fit."""
        size, place, piece = 0, 0, 1
        while place < len(ids):
            if self._is_late():
                self.reason = self.reason or self._too_long()
                return
            if size > _MOST_BYTES:
                self.reason = f"Stopped after {_mebibytes(size)} MiB."
                return
            wanted = ids[place : place + piece]
            scanner = self.dataset.scanner(
                columns=[each.name for each in self.columns],
                with_row_id=True,
                filter=f"_rowid in ({', '.join(map(str, wanted))})",
                io_buffer_size=_BUFFER,
            )
            data = scanner.to_table()
            size += data.nbytes
            place += len(wanted)
            piece = max(1, min(self.limit, (_MOST_BYTES // 4) // max(size // place, 1)))
            self._show(data, wanted)

    def _show(self, data: pa.Table, wanted: list[int]) -> None:
        places = {id_: place for place, id_ in enumerate(data.column("_rowid").to_pylist())}
        columns = [(data.column(each.name), each) for each in self.columns]
        for id_ in wanted:
            if (place := places.get(id_)) is not None:
                self.rows.append(
                    [arrow_values.show(column[place], each) for column, each in columns]
                )

    def _is_late(self) -> bool:
        return self.stop.is_set() or time.monotonic() - self.began > _SECONDS

    def _too_long(self) -> str:
        looked = f", having looked at {self.looked_at:,} rows" if self.predicate else ""
        return f"Stopped after {_SECONDS:.0f} seconds{looked}: there may be more."


def _mebibytes(size: int) -> int:
    return round(size / 1024**2)
