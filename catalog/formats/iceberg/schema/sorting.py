"""Sort orders: their fields and equality (spec: Sorting). Order 0 is "not sorted"."""

from typing import Any

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    at,
    objects_at,
    optional_integer_at,
    text_at,
)
from catalog.formats.iceberg.schema import transforms
from catalog.formats.iceberg.schema.schemas import Columns

UNSORTED_ID = 0
_CHOICES = {"direction": ("asc", "desc"), "null-order": ("nulls-first", "nulls-last")}


def unsorted() -> Document:
    return {"order-id": UNSORTED_ID, "fields": []}


def check_structure(order: Document, path: str) -> list[Document]:
    """Check and return the fields of an order, independent of a schema."""
    optional_integer_at(order, "order-id", path, high=INT_MAX)
    fields = objects_at(order, "fields", path)
    for i, field in enumerate(fields):
        here = f"{at(path, 'fields')}[{i}]"
        transforms.check_sources(field, here)
        for name, choices in _CHOICES.items():
            if text_at(field, name, here) not in choices:
                raise InvalidMetadata(f"{at(here, name)} must be one of {', '.join(choices)}")
    return fields


def check_fit(order: Document, columns: Columns, path: str) -> None:
    """Raise InvalidMetadata if a source is missing or its type does not fit the transform."""
    for i, field in enumerate(order["fields"]):
        here = f"{at(path, 'fields')}[{i}]"
        transforms.check(field, columns, here, use="sort")


def fresh(order: Document | None, moved: dict[int, int], path: str) -> Document:
    """The order of a new table: id 1, or 0 if it has no fields."""
    if order is None:
        return unsorted()
    fields = []
    for i, field in enumerate(check_structure(order, path)):
        fields.append(transforms.moved_sources(field, moved, f"{at(path, 'fields')}[{i}]"))
    return {**order, "order-id": 1, "fields": fields} if fields else unsorted()


def same(first: Document, second: Document) -> bool:
    """True if two orders sort alike; their ids do not count."""
    return _meaning(first) == _meaning(second)


def _meaning(order: Document) -> list[tuple[Any, ...]]:
    return [(*transforms.key(f), f["direction"], f["null-order"]) for f in order["fields"]]
