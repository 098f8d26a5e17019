"""Find and read a page of rows, or a column, of the data files of a snapshot.

The work is bounded for every table, filter and order. The first step scans only the columns of the conditions
and of the order. The second step reads the rows of the page.
"""

import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

from catalog.errors import CatalogError, InvalidMetadata
from catalog.formats import arrow_values
from catalog.formats.arrow_values import Shown
from catalog.formats.iceberg.rows.data_files import DataFile
from catalog.formats.rows import profiles
from catalog.formats.rows.previews import SEARCH_SHARE, Preview, Request, incomplete, late
from catalog.formats.rows.profiles import Profile

_BROKEN = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    ResolveError,
    UnsupportedPyArrowTypeException,
    ValidationError,
    pa.ArrowException,
    struct.error,
    zlib.error,
)
_FILE_SHIFT = 40
"""The address of a row is the number of its file, shifted by these bits, plus its position in the file."""


@contextmanager
def reading(subject: str) -> Iterator[None]:
    """Raise InvalidMetadata if a file or its content is faulty. MemoryError passes."""
    try:
        yield
    except (CatalogError, MemoryError):
        raise
    except _BROKEN as error:
        cause = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise InvalidMetadata(f"{subject} cannot be read: {cause[:500]}") from error


@dataclass
class RowScan:
    """A scan of the files that may have matching rows, in their order."""

    files: Iterator[DataFile]
    columns: Sequence[pa.Field]
    request: Request
    seconds: float
    most_bytes: int
    reason: str = ""
    has_more: bool = False
    is_late: bool = False
    """True if the scan ended because it took too long."""
    scanned_rows: int = 0
    opened: list[DataFile] = field(default_factory=list)
    """The files so far, by their number."""
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._limit = self.seconds

    def preview(self) -> Preview:
        self._limit = self.seconds * SEARCH_SHARE
        addresses = self._find_plain() if self.request.is_plain else self._find()
        self._limit = self.seconds
        rows = self._read(addresses)
        names = [column.name for column in self.columns]
        return Preview(names, rows, self.reason, self.has_more, self.is_late)

    def profile(self) -> Profile:
        """The profile of the only column."""
        (column,) = self.columns
        profiler = profiles.Profiler(column)
        return profiler.profile(self._read_column(column.name, profiler))

    def _read_column(self, name: str, profiler: profiles.Profiler) -> str:
        """Read a column of all rows; returns why it ended early, or an empty text."""
        for _, file in self._data_files():
            with reading(f"'{file.location}'"):
                for rows in file.scan([name]):
                    if len(rows.positions):
                        profiler.add(rows.columns[name])
                    if self._is_late():
                        return profiles.late(profiler.rows)
        return profiles.late(profiler.rows) if self.reason else ""

    def _data_files(self) -> Iterator[tuple[int, DataFile]]:
        """The files that may have matching rows, until it is too late."""
        for file in self.files:
            if self._is_late():
                self.reason = self._too_long()
                return
            self.opened.append(file)
            yield len(self.opened) - 1, file

    def _find_plain(self) -> list[int]:
        """The addresses of a page of the rows in their stored order. No data is read."""
        skipped, count = self.request.page_start, self.request.page_size + 1
        addresses: list[int] = []
        for number, file in self._data_files():
            with reading(f"'{file.location}'"):
                positions, live = file.live_positions(skipped, count - len(addresses))
            addresses += [(number << _FILE_SHIFT) + position for position in positions]
            skipped = max(skipped - live, 0)
            if len(addresses) >= count:
                break
        self.has_more = len(addresses) >= count
        return addresses[: self.request.page_size]

    def _find(self) -> list[int]:
        """The addresses of the rows of the page, in order."""
        selection = self.request.selection()
        for number, file in self._data_files():
            with reading(f"'{file.location}'"):
                for rows in file.scan(selection.columns):
                    if len(rows.positions):
                        addresses = pa.array(rows.positions + (number << _FILE_SHIFT))
                        selection.add(rows.columns, addresses)
                    self.scanned_rows += len(rows.positions)
                    if selection.is_complete:
                        break
                    if self._is_late() or selection.is_too_large:
                        self.reason = self._too_long()
                        break
            if selection.is_complete or self.reason:
                break
        page, self.has_more = selection.page()
        return page

    def _read(self, addresses: Sequence[int]) -> list[list[Shown]]:
        """The rows at these addresses, until they are too many bytes or it is too late."""
        by_file: dict[int, list[int]] = {}
        for address in sorted(addresses):
            position = address & ((1 << _FILE_SHIFT) - 1)
            by_file.setdefault(address >> _FILE_SHIFT, []).append(position)
        names = [column.name for column in self.columns]
        values: dict[int, list[Shown]] = {}
        size, has_ended = 0, False
        for number, positions in by_file.items():
            file = self.opened[number]
            with reading(f"'{file.location}'"):
                for rows in file.take(names, positions):
                    size += sum(array.nbytes for array in rows.columns.values())
                    for index, position in enumerate(np.asarray(rows.positions).tolist()):
                        values[(number << _FILE_SHIFT) + position] = [
                            arrow_values.show(rows.columns[column.name][index], column)
                            for column in self.columns
                        ]
                    has_ended = self._is_late()
                    if has_ended or size > self.most_bytes:
                        break
            if size > self.most_bytes:
                self.reason = f"Stopped after {round(size / 1024**2)} MiB."
                break
            if has_ended:
                break
        if has_ended and len(values) < len(addresses):
            self.is_late = True
            self.reason = incomplete(self.reason, len(values), len(addresses))
        return [values[address] for address in addresses if address in values]

    def _is_late(self) -> bool:
        return time.monotonic() - self.began > self._limit

    def _too_long(self) -> str:
        self.is_late = True
        return late(self._limit, self.scanned_rows, self.request.order)
