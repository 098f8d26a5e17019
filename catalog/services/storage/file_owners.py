"""Owners of files, and the references of a table to files outside its directories. See ``table_files``."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, Self

from catalog.identifiers import Identifier
from catalog.models import TableFormat


class Belonging(Enum):
    """The relation of a file to a given table."""

    OWN = "own"
    """The file belongs to this table alone."""
    OTHER = "other"
    """It belongs to another table, present or dropped, or to several tables."""
    FREE = "free"
    """It belongs to no table, but lies in one of MONODON_ALLOWED_ROOTS."""
    OUTSIDE = "outside"
    """It lies where no table may have files, or is not a regular file."""


@dataclass(frozen=True, slots=True)
class FileOwner:
    """The owner of a file. ``path`` is its real path, or None if no table may have files there."""

    belonging: Belonging
    table_ids: frozenset[int] = frozenset()
    """The tables that hold the file, if it belongs to others."""
    path: str | None = None
    is_unclaimed: bool = False
    """True if the file lies in the warehouse, or in a root of a storage profile, outside all tables.
    Only a registration reads such files."""


@dataclass(frozen=True, slots=True)
class References:
    """References of a table to files outside its directories."""

    foreign: frozenset[tuple[int, str]] = frozenset()
    """Pairs of another table and a directory with files of that table."""
    free: frozenset[str] = frozenset()
    """The directories of files that belong to no table; another table may get these directories."""
    unread: frozenset[int] = frozenset()
    """Snapshots of an Iceberg table of which not every manifest was read."""
    continued: frozenset[tuple[int, str]] = frozenset()
    """As ``foreign``, of files that were taken over from older manifests, which others may have replaced.
    They keep their files, and open none."""

    def __or__(self, other: Self) -> Self:
        return type(self)(
            self.foreign | other.foreign,
            self.free | other.free,
            self.unread | other.unread,
            self.continued | other.continued,
        )

    def __bool__(self) -> bool:
        return bool(self.foreign or self.free or self.unread or self.continued)

    @property
    def sources(self) -> frozenset[int]:
        """The other tables to which files belong."""
        return frozenset(source for source, _ in self.foreign | self.continued)

    def only(self, sources: Collection[int]) -> Self:
        """The same without references to tables that are not in ``sources``."""
        return replace(
            self,
            foreign=frozenset(pair for pair in self.foreign if pair[0] in sources),
            continued=frozenset(pair for pair in self.continued if pair[0] in sources),
        )

    def as_continued(self) -> Self:
        """The same references, taken over from older manifests."""
        return replace(
            self, foreign=frozenset(), free=frozenset(), continued=self.foreign | self.continued
        )


class Holder(Protocol):
    """What ``table_files`` needs to know of a table: a row, or a loaded table."""

    @property
    def pk(self) -> int: ...
    @property
    def location(self) -> str: ...
    @property
    def identifier(self) -> Identifier: ...
    @property
    def format(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FutureTable:
    """A table that is being created: it has no row yet."""

    identifier: Identifier
    location: str
    format: str = TableFormat.ICEBERG
    pk: int = 0
