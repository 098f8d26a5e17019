"""Layouts that fit the schema of a table, and the sort order of a table that a layout is equal to."""

from typing import Any

from catalog.errors import InvalidInput
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.schema import primitives, schemas
from catalog.formats.iceberg.schema.sorting import UNSORTED_ID
from catalog.layouts import Layout, SortColumn, Strategy

_UNSORTABLE = frozenset({"unknown", "variant", "geometry", "geography"})
_ZORDERED = frozenset(
    {
        *("boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz"),
        *("string", "uuid", "binary", "fixed"),
    }
)
"""Types from which Iceberg computes a Z-order value."""
_CURVE_COLUMN = "ICEZVALUE"
"""The column that Iceberg adds to the rows while it orders them along the curve."""


def check(document: Document, layout: Layout) -> None:
    """Raise InvalidInput if a layout does not fit the current schema of a table."""
    if not layout.is_sorted:
        return
    if not layout.columns:
        if not _default_order(document):
            raise InvalidInput(
                "Strategy 'sort' without 'sort_order' uses the sort order of the table, and the table"
                " has none: set 'sort_order'"
            )
        return
    columns = {column.name: column for column in _columns(document).values()}
    for sort_column in layout.columns:
        column = columns.get(sort_column.name)
        if column is None:
            raise InvalidInput(f"The table has no column '{sort_column.name}' to sort by")
        _check_column(column, sort_column, layout.strategy)
    if layout.strategy is Strategy.ZORDER:
        if _CURVE_COLUMN in columns:
            raise InvalidInput(
                f"Strategy 'zorder' is not possible for a table with a column '{_CURVE_COLUMN}'"
            )
        partitioned = _identity_columns(document)
        if all(columns[column.name].id in partitioned for column in layout.columns):
            raise InvalidInput(
                "Strategy 'zorder' needs a column that does not have one value in each partition"
            )


def order_id(document: Document, layout: Layout) -> int | None:
    """The id of the table's sort order that sorts as the layout does; None if there is none."""
    if layout.strategy is not Strategy.SORT:
        return None
    if not layout.columns:
        default = _default_order(document)
        return int(default["order-id"]) if default else None
    required_fields = [
        (id_, "identity", direction, nulls) for id_, direction, nulls in fields(document, layout)
    ]
    for order in document.get("sort-orders") or []:
        order_fields = [
            (field.get("source-id"), field["transform"], field["direction"], field["null-order"])
            for field in order["fields"]
        ]
        if order_fields == required_fields:
            return int(order["order-id"])
    return None


def fields(document: Document, layout: Layout) -> list[list[Any]]:
    """The id, direction and order of nulls of each column of a layout, as JSON.

    Names of columns may change, ids do not. The id of a missing column is None.
    """
    ids = {column.name: column.id for column in _columns(document).values()}
    return [
        [ids.get(column.name), str(column.direction), f"nulls-{column.nulls}"]
        for column in layout.columns
    ]


def _check_column(column: schemas.Column, sort_column: SortColumn, strategy: Strategy) -> None:
    name = sort_column.name
    if not column.below_structs_only or not isinstance(column.type, str):
        raise InvalidInput(f"Rows cannot be sorted by column '{name}', which holds several values")
    base = primitives.base_name(column.type, "type")
    if strategy is Strategy.ZORDER:
        if base not in _ZORDERED:
            raise InvalidInput(
                f"Strategy 'zorder' does not support column '{name}' ({column.type})"
            )
        if len(sort_column.path) > 1:
            raise InvalidInput(f"Strategy 'zorder' does not support nested column '{name}'")
        if set(".`") & set(name):  # Spark would read the name as that of a nested column
            raise InvalidInput(f"Strategy 'zorder' does not support the name of column '{name}'")
    elif base in _UNSORTABLE:
        raise InvalidInput(f"Rows cannot be sorted by column '{name}' ({column.type})")


def _columns(document: Document) -> schemas.Columns:
    """The columns of the current schema by id."""
    current = document.get("current-schema-id")
    every = document.get("schemas") or [document.get("schema") or {"fields": []}]
    schema = next((entry for entry in every if entry.get("schema-id") == current), every[-1])
    return schemas.index(schema, "schema")


def _identity_columns(document: Document) -> set[int]:
    """The ids of the columns whose values are those of the partition."""
    default = document.get("default-spec-id", 0)
    specs = document.get("partition-specs") or []
    return {
        field["source-id"]
        for spec in specs
        if spec.get("spec-id") == default
        for field in spec["fields"]
        if field["transform"] == "identity" and "source-id" in field
    }


def _default_order(document: Document) -> Document | None:
    default = document.get("default-sort-order-id", UNSORTED_ID)
    orders = document.get("sort-orders") or []
    return next(
        (order for order in orders if order.get("order-id") == default and order.get("fields")),
        None,
    )
