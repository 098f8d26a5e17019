"""Previews: what a page of rows asks for, and its rows with shortened values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from catalog.errors import ColumnNotFound
from catalog.formats.arrow_values import Shown
from catalog.formats.rows.conditions import Condition
from catalog.formats.rows.selection import MAX_START, Order, Selection
from catalog.identifiers import Identifier

DEFAULT_ROWS = 20
MOST_ROWS = 100
MOST_COLUMNS = 30
"""Default and maximum number of columns."""
SECONDS = 1.65
"""Of a preview, so that its page takes two seconds at most."""
MOST_SECONDS = 9.0
"""Of a preview on request."""
SEARCH_SHARE = 2 / 3
"""Of these seconds; in the others, the rows of the page are read."""
MOST_BYTES = 32 * 1024**2
MOST_MEDIA = 4 * 1024**2
"""Bytes of images and recordings on a page."""
THREADS = 2
"""Previews of a format that a process computes at a time; others wait, and end with a message."""
BUSY = "Nothing was read: other previews are running. Try again."


@dataclass(frozen=True, slots=True)
class Request:
    """A page of rows of a version of a table."""

    columns: Sequence[str] = ()
    conditions: Sequence[Condition] = ()
    order: Order | None = None
    start: int = 0
    """The number of rows before the page."""
    limit: int = DEFAULT_ROWS
    seconds: float = SECONDS

    @property
    def page_start(self) -> int:
        return max(0, min(self.start, MAX_START))

    @property
    def page_size(self) -> int:
        return max(1, min(self.limit, MOST_ROWS))

    @property
    def is_plain(self) -> bool:
        """True for the rows as they are stored."""
        return not self.conditions and self.order is None

    def selection(self) -> Selection:
        return Selection(self.conditions, self.order, start=self.page_start, count=self.page_size)


@dataclass(frozen=True, slots=True)
class Preview:
    """A page of rows, with each value shortened."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Shown]]
    stopped: str = ""
    """Why the preview ended before its row limit; empty if it did not."""
    has_more: bool = False
    """True if there are more rows after the page."""
    is_late: bool = False
    """True if it ended because it took too long."""


def without_excess_media(preview: Preview) -> Preview:
    """The preview with the first images and recordings only, up to ``MOST_MEDIA`` bytes."""
    budget = MOST_MEDIA
    rows = []
    for values in preview.rows:
        row = []
        for value in values:
            budget -= len(value.media)
            row.append(value if budget >= 0 else replace(value, media=b"", media_type=""))
        rows.append(row)
    return replace(preview, rows=rows)


def select_columns(schema: pa.Schema, table: Identifier, names: Sequence[str]) -> list[pa.Field]:
    """The columns of a preview, in the order of the schema. Raises ColumnNotFound."""
    by_name = {column.name: column for column in schema}
    for name in names:
        if name not in by_name:
            raise ColumnNotFound(table, f"Column '{name[:200]}' does not exist")
    selected = set(names)
    return [column for column in schema if not selected or column.name in selected][:MOST_COLUMNS]


def late(seconds: float, scanned_rows: int, order: Order | None) -> str:
    """The message of a preview that took too long."""
    progress = f" and {scanned_rows:,} scanned rows" if scanned_rows else ""
    outcome = "the order covers only these rows" if order else "there may be more"
    return f"Stopped after {round(seconds, 1):g} seconds{progress}: {outcome}."


def incomplete(reason: str, rows: int, page_rows: int) -> str:
    """The message of a page of which there was no time to read all rows."""
    return f"{reason} Only {rows} of the {page_rows} rows of this page were read in time.".lstrip()
