"""Differences between the schemas of two versions of a Lance table.

Columns are compared by Lance's field id, so a renamed column is the same column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from catalog.formats.lance.columns import Column


class ChangeKind(StrEnum):
    ADDED = "added"
    DROPPED = "dropped"
    RENAMED = "renamed"
    TYPE = "type"
    NULLABILITY = "nullability"


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    before: Column | None
    after: Column | None


def changes(old: Sequence[Column], new: Sequence[Column]) -> list[Change]:
    """The changes from the older schema to the newer, in the newer's order, then dropped columns."""
    before = {_key(column): column for column in old}
    after = {_key(column): column for column in new}
    result: list[Change] = []
    for key, column in after.items():
        previous = before.get(key)
        if previous is None:
            result.append(Change(ChangeKind.ADDED, None, column))
            continue
        for kind, differs in (
            (ChangeKind.RENAMED, previous.name != column.name),
            (ChangeKind.TYPE, previous.type != column.type),
            (ChangeKind.NULLABILITY, previous.is_nullable != column.is_nullable),
        ):
            if differs:
                result.append(Change(kind, previous, column))
    result += [
        Change(ChangeKind.DROPPED, old, None) for key, old in before.items() if key not in after
    ]
    return result


def _key(column: Column) -> int | str:
    return column.path if column.id is None else column.id
