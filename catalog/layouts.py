"""Layouts of Iceberg data files: the strategy of compaction, and the columns by which rows are sorted.

Pure functions. A sort order is a text such as ``country, created_at desc nulls last``. A name with other
characters than letters, digits and ``_`` is in backticks, and a backtick in it is doubled. A dot
separates the names of nested columns: ``address.city``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from catalog.errors import InvalidInput

MAX_COLUMNS = 16
MAX_LENGTH = 1000
_TOKEN = re.compile(r"\s*(?:(?P<name>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<mark>[.,])|(?P<other>\S))")
_EXAMPLE = "such as country, created_at desc nulls last"


class Strategy(StrEnum):
    """How compaction lays rows out in the new files."""

    BINPACK = "binpack"
    """In the order in which they are."""
    SORT = "sort"
    """Sorted by columns, one after the other."""
    ZORDER = "zorder"
    """Along a Z-order curve, which keeps rows together that are near in several columns."""


class Direction(StrEnum):
    ASC = "asc"
    DESC = "desc"


class Nulls(StrEnum):
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class SortColumn:
    """A column of a sort order."""

    path: tuple[str, ...]
    """Its name, after those of the structs that contain it."""
    direction: Direction = Direction.ASC
    nulls: Nulls = Nulls.FIRST
    is_plain: bool = True
    """True if the text states neither the direction nor the order of nulls."""

    @property
    def name(self) -> str:
        """The name as schemas index it."""
        return ".".join(self.path)

    def __str__(self) -> str:
        """The column as ``parse`` reads it."""
        name = ".".join(step if re.fullmatch(r"\w+", step) else _quoted(step) for step in self.path)
        return name if self.is_plain else f"{name} {self.direction} nulls {self.nulls}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A strategy and its columns. A sort without columns uses the sort order of the table."""

    strategy: Strategy = Strategy.BINPACK
    columns: tuple[SortColumn, ...] = ()

    @property
    def is_sorted(self) -> bool:
        return self.strategy is not Strategy.BINPACK

    @property
    def text(self) -> str:
        """The columns as ``parse`` reads them; the same text for the same order."""
        return ", ".join(map(str, self.columns))

    @property
    def procedure_argument(self) -> str:
        """The argument ``sort_order`` of Iceberg's procedure, with all names quoted."""
        names = [".".join(map(_quoted, column.path)) for column in self.columns]
        if self.strategy is Strategy.ZORDER:
            return f"zorder({', '.join(names)})"
        return ", ".join(
            f"{name} {column.direction.upper()} NULLS {column.nulls.upper()}"
            for name, column in zip(names, self.columns, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.strategy} by {self.text}" if self.columns else str(self.strategy)


def layout(strategy: str, sort_order: str) -> Layout:
    """The layout of two settings of a policy. Raises InvalidInput if they contradict each other."""
    if strategy == Strategy.BINPACK:
        return Layout()
    columns = parse(sort_order)
    if strategy == Strategy.ZORDER:
        if not columns:
            raise InvalidInput("Strategy 'zorder' needs the columns of 'sort_order'")
        directed = [column.name for column in columns if not column.is_plain]
        if directed:
            raise InvalidInput(
                f"Strategy 'zorder' takes columns without direction and order of nulls:"
                f" '{directed[0]}' has one in 'sort_order'"
            )
    return Layout(Strategy(strategy), columns)


def parse(text: str) -> tuple[SortColumn, ...]:
    """The columns of a sort order; none for an empty text. Raises InvalidInput."""
    if len(text) > MAX_LENGTH:
        raise InvalidInput(f"The sort order is longer than {MAX_LENGTH} characters")
    if not text.strip():
        return ()
    columns = tuple(map(_column, _split(text)))
    names = [column.name for column in columns]
    if len(names) > MAX_COLUMNS:
        raise InvalidInput(f"The sort order has more than {MAX_COLUMNS} columns")
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"The sort order has column '{name}' twice")
    return columns


_Token = tuple[str, str]
"""``name``, ``quoted``, or ``mark``, and the text."""


def _split(text: str) -> Iterable[list[_Token]]:
    """The tokens of each column."""
    column: list[_Token] = []
    for match in _TOKEN.finditer(text.strip()):
        kind = str(match.lastgroup)
        if kind == "other":
            raise InvalidInput(
                f"The sort order {text!r} has {match[0].strip()!r}, which belongs to no name; enter"
                f" columns {_EXAMPLE}, and unusual names in backticks"
            )
        if match[0].strip() == ",":
            yield column
            column = []
        else:
            column.append(
                (kind, match[kind].replace("``", "`") if kind == "quoted" else match[kind])
            )
    yield column


def _column(tokens: list[_Token]) -> SortColumn:
    end = 1
    while tokens[end : end + 1] == [("mark", ".")]:
        end += 2
    path = [text for kind, text in tokens[:end:2] if kind != "mark"]
    words = [text.lower() for kind, text in tokens[end:] if kind == "name"]
    if len(path) != (end + 1) // 2 or len(words) != len(tokens[end:]):
        raise _malformed(tokens)
    direction, nulls = None, None
    if words and words[0] in {"asc", "desc"}:
        direction = Direction(words.pop(0))
    if words[:1] == ["nulls"] and words[1:] in (["first"], ["last"]):
        nulls = Nulls(words[1])
        words = []
    if words:
        raise _malformed(tokens)
    is_plain = direction is None and nulls is None
    direction = direction or Direction.ASC
    # As in Iceberg and Spark, nulls are lower than all values.
    nulls = nulls or (Nulls.FIRST if direction is Direction.ASC else Nulls.LAST)
    return SortColumn(tuple(path), direction, nulls, is_plain)


def _malformed(tokens: list[_Token]) -> InvalidInput:
    text = " ".join(text for _, text in tokens)
    return InvalidInput(
        f"'{text}' is not a column of a sort order; enter columns with 'asc' or 'desc' and 'nulls"
        f" first' or 'nulls last', {_EXAMPLE}"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
