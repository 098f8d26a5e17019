"""Updates of schemas, partition specs and sort orders.

An equal schema, spec or order that exists is reused. A new one gets the next id, whatever id the
client sent.
"""

from collections.abc import Callable

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.metadata import promotions
from catalog.formats.iceberg.metadata.draft import Draft
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    at,
    integer_at,
    integers_at,
    object_at,
    optional_integer_at,
)
from catalog.formats.iceberg.schema import partitioning, schemas, sorting, transforms

LAST_ADDED = -1


def add_schema(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "schema")
    schema = schemas.plain(object_at(update, "schema", path))
    # Deprecated: the ids of the schema determine it.
    optional_integer_at(update, "last-column-id", path, high=INT_MAX)
    columns = schemas.index(schema, here)
    schemas.check_version(columns, draft.version, here)
    schema = schemas.completed(schema)
    id_ = _id_of_same(draft.items("schemas"), schema, "schema-id", schemas.same)
    if id_ is None:
        if not draft.is_replaced:
            promotions.check(draft, columns, here)
        id_ = _next_id(draft.items("schemas"), "schema-id", first=0)
        draft.append("schemas", {"type": "struct", **schema, "schema-id": id_})
    highest = max(draft.document["last-column-id"], schemas.highest_id(columns))
    draft.put("last-column-id", highest)
    draft.last_schema = id_


def set_current_schema(draft: Draft, update: Document, path: str) -> None:
    id_ = _chosen(update, "schema-id", path, draft.last_schema)
    _require(draft.items("schemas"), "schema-id", id_, at(path, "schema-id"))
    if id_ != draft.document["current-schema-id"]:
        draft.put("current-schema-id", id_)
        draft.layout_changed = True


def add_spec(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "spec")
    spec = _checked_fields(
        draft, object_at(update, "spec", path), partitioning.check_structure, here
    )
    specs = draft.items("partition-specs")
    id_ = _id_of_same(specs, spec, "spec-id", partitioning.same)
    if id_ is None:
        columns = draft.columns()
        partitioning.check_fit(spec, columns, here)
        partitioning.check_names(spec, columns, here)
        last = draft.document["last-partition-id"]
        numbered = partitioning.with_field_ids(spec, specs, last, draft.version, here)
        id_ = _next_id(specs, "spec-id", first=0)
        draft.append("partition-specs", {**numbered, "spec-id": id_})
        draft.put("last-partition-id", max(last, partitioning.last_field_id(numbered)))
    draft.last_spec = id_


def set_default_spec(draft: Draft, update: Document, path: str) -> None:
    id_ = _chosen(update, "spec-id", path, draft.last_spec)
    _require(draft.items("partition-specs"), "spec-id", id_, at(path, "spec-id"))
    if id_ != draft.document["default-spec-id"]:
        draft.put("default-spec-id", id_)
        draft.layout_changed = True


def add_sort_order(draft: Draft, update: Document, path: str) -> None:
    here = at(path, "sort-order")
    order = _checked_fields(
        draft, object_at(update, "sort-order", path), sorting.check_structure, here
    )
    orders = draft.items("sort-orders")
    id_ = _id_of_same(orders, order, "order-id", sorting.same)
    if id_ is None and not order["fields"]:
        id_ = sorting.UNSORTED_ID
        draft.append("sort-orders", sorting.unsorted())
    if id_ is None:
        sorting.check_fit(order, draft.columns(), here)
        id_ = _next_id(orders, "order-id", first=1)
        draft.append("sort-orders", {**order, "order-id": id_})
    draft.last_order = id_


def set_default_sort_order(draft: Draft, update: Document, path: str) -> None:
    id_ = _chosen(update, "sort-order-id", path, draft.last_order)
    _require(draft.items("sort-orders"), "order-id", id_, at(path, "sort-order-id"))
    if id_ != draft.document["default-sort-order-id"]:
        draft.put("default-sort-order-id", id_)
        draft.layout_changed = True


def remove_schemas(draft: Draft, update: Document, path: str) -> None:
    ids = set(integers_at(update, "schema-ids", path, high=INT_MAX))
    if draft.document["current-schema-id"] in ids:
        raise InvalidMetadata(f"{at(path, 'schema-ids')}: cannot remove the current schema")
    draft.remove("schemas", "schema-id", ids)


def remove_partition_specs(draft: Draft, update: Document, path: str) -> None:
    ids = set(integers_at(update, "spec-ids", path, high=INT_MAX))
    if draft.document["default-spec-id"] in ids:
        raise InvalidMetadata(f"{at(path, 'spec-ids')}: cannot remove the default partition spec")
    draft.remove("partition-specs", "spec-id", ids)


def _checked_fields(
    draft: Draft,
    value: Document,
    check_structure: Callable[[Document, str], list[Document]],
    path: str,
) -> Document:
    """A spec or an order with checked fields, each with one plain source where it has one."""
    value = transforms.plain(value)
    fields = check_structure(value, path)
    transforms.check_version(fields, draft.version, at(path, "fields"))
    return {**value, "fields": list(map(transforms.with_plain_source, fields))}


def _id_of_same(
    items: list[Document],
    new: Document,
    key: str,
    same: Callable[[Document, Document], bool],
) -> int | None:
    """The id of an equal existing schema, spec or order."""
    return next((item.get(key, 0) for item in items if same(item, new)), None)


def _next_id(items: list[Document], key: str, *, first: int) -> int:
    return max((item.get(key, 0) + 1 for item in items), default=first)


def _chosen(update: Document, key: str, path: str, last: int | None) -> int:
    """The id that an update names; -1 refers to the last one added in this request."""
    id_ = integer_at(update, key, path, LAST_ADDED, INT_MAX)
    if id_ != LAST_ADDED:
        return id_
    if last is None:
        raise InvalidMetadata(f"{at(path, key)} is -1, but nothing was added before")
    return last


def _require(items: list[Document], key: str, id_: int, path: str) -> None:
    if all(item.get(key, 0) != id_ for item in items):
        raise InvalidMetadata(f"{path}: there is no {key} {id_}")
