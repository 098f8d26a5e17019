"""Differences between two schemas by field id: a renamed field is the same field."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from catalog.formats.iceberg import describe_schemas, lenient
from catalog.formats.iceberg.describe_schemas import Field
from catalog.formats.iceberg.reading import Document


class ChangeKind(StrEnum):
    ADDED = "added"
    DROPPED = "dropped"
    RENAMED = "renamed"
    TYPE = "type"
    REQUIRED = "required"
    MOVED = "moved"
    DOC = "doc"
    DEFAULT = "default"
    IDENTIFIER = "identifier"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a field. The path is that of the newer schema, unless the field was dropped."""

    kind: ChangeKind
    id: int
    path: str
    before: str = ""
    after: str = ""


def changes(old: Document, new: Document) -> list[Change]:
    """The changes from the older schema to the newer, in the newer's order, then dropped fields.

    An added or dropped struct is one change; its fields are not listed.
    """
    before, after = _by_id(old), _by_id(new)
    moved = _moves(before, after)
    result: list[Change] = []
    for id_, field in after.items():
        previous = before.get(id_)
        if previous is None:
            if field.parent is None or field.parent in before:
                result.append(Change(ChangeKind.ADDED, id_, field.path, after=_declared(field)))
            continue
        result += _field_changes(id_, previous, field)
        if id_ in moved:
            result.append(Change(ChangeKind.MOVED, id_, field.path, *moved[id_]))
    result += [
        Change(ChangeKind.DROPPED, id_, field.path, before=_declared(field))
        for id_, field in before.items()
        if id_ not in after and (field.parent is None or field.parent in after)
    ]
    return result


def _by_id(schema: Document) -> dict[int, Field]:
    return {field.id: field for field in describe_schemas.fields(schema) if field.id is not None}


def _declared(field: Field) -> str:
    return f"{field.type} required" if field.is_required else field.type


def _field_changes(id_: int, old: Field, new: Field) -> Iterator[Change]:
    # The type of a list includes that of its element, which has an id of its own.
    if _outer(old) != _outer(new):
        yield Change(ChangeKind.TYPE, id_, new.path, old.type, new.type)
    aspects = (
        (ChangeKind.RENAMED, old.name, new.name),
        (ChangeKind.REQUIRED, _necessity(old), _necessity(new)),
        (ChangeKind.IDENTIFIER, _role(old), _role(new)),
        (ChangeKind.DOC, old.doc, new.doc),
        (ChangeKind.DEFAULT, _default(old), _default(new)),
    )
    for kind, before, after in aspects:
        if before != after:
            yield Change(kind, id_, new.path, before, after)


def _outer(field: Field) -> str:
    return field.type.partition("<")[0]


def _necessity(field: Field) -> str:
    return "required" if field.is_required else "optional"


def _role(field: Field) -> str:
    return "identifier" if field.is_identifier else "no identifier"


def _default(field: Field) -> str:
    """The default of new rows; the default of existing rows never changes."""
    default = lenient.scalar(field.write_default)
    return "" if default is None else describe_schemas.cut(str(default), 200)


def _moves(before: dict[int, Field], after: dict[int, Field]) -> dict[int, tuple[str, str]]:
    """The fewest fields that had to move, each with its old and new position."""
    old, new = _siblings(before), _siblings(after)
    old_places, new_places = _places(before, old), _places(after, new)
    moved = {}
    for parent, ids in new.items():
        positions = {id_: position for position, id_ in enumerate(old.get(parent, ()))}
        common_ids = [id_ for id_ in ids if id_ in before]
        in_order = _longest_increasing([positions[id_] for id_ in common_ids if id_ in positions])
        for id_ in common_ids:
            if positions.get(id_) not in in_order:
                moved[id_] = old_places[id_], new_places[id_]
    return moved


def _siblings(fields: dict[int, Field]) -> dict[int | None, list[int]]:
    by_parent: dict[int | None, list[int]] = {}
    for id_, field in fields.items():
        by_parent.setdefault(field.parent, []).append(id_)
    return by_parent


def _places(fields: dict[int, Field], siblings: dict[int | None, list[int]]) -> dict[int, str]:
    """The position of each field as text."""
    positions: dict[int, str] = {}
    for parent, ids in siblings.items():
        first = f"first in {fields[parent].path}" if parent in fields else "first"
        names = [fields[id_].path for id_ in ids]
        labels = [first, *(f"after {name}" for name in names)]
        positions.update(zip(ids, labels, strict=False))
    return positions


def _longest_increasing(numbers: list[int]) -> set[int]:
    """The numbers of a longest increasing subsequence; the numbers differ from each other."""
    ends: list[int] = []  # the smallest number that ends a subsequence of each length
    previous: dict[int, int | None] = {}
    for number in numbers:
        length = bisect_left(ends, number)
        previous[number] = ends[length - 1] if length else None
        ends[length : length + 1] = [number]
    subsequence = set()
    last = ends[-1] if ends else None
    while last is not None:
        subsequence.add(last)
        last = previous[last]
    return subsequence
