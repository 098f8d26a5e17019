"""Partition specs: their fields, ids and equality (spec: Partitioning, Partition Evolution)."""

from typing import Any

from catalog.errors import InvalidMetadata
from catalog.formats.iceberg.reading import (
    INT_MAX,
    Document,
    at,
    filled_text_at,
    objects_at,
    optional_integer_at,
    shown,
)
from catalog.formats.iceberg.schema import transforms
from catalog.formats.iceberg.schema.schemas import Columns

FIRST_FIELD_ID = 1000


def check_structure(spec: Document, path: str) -> list[Document]:
    """Check and return the fields of a spec, independent of a schema."""
    optional_integer_at(spec, "spec-id", path, high=INT_MAX)
    fields = objects_at(spec, "fields", path)
    names: set[str] = set()
    ids: set[int] = set()
    for i, field in enumerate(fields):
        here = f"{at(path, 'fields')}[{i}]"
        transforms.check_sources(field, here)
        name = filled_text_at(field, "name", here)
        if name in names:
            raise InvalidMetadata(f"{here}: there are two partition fields named {shown(name)}")
        names.add(name)
        id_ = optional_integer_at(field, "field-id", here, high=INT_MAX)
        if id_ in ids:
            raise InvalidMetadata(f"{here}: there are two partition fields with id {id_}")
        if id_ is not None:
            ids.add(id_)
    return fields


def check_fit(spec: Document, columns: Columns, path: str) -> None:
    """Raise InvalidMetadata if a source is missing or its type does not fit the transform."""
    for i, field in enumerate(spec["fields"]):
        here = f"{at(path, 'fields')}[{i}]"
        transforms.check(field, columns, here, use="partition")
        for source in map(columns.get, transforms.sources(field)):
            if source and field["transform"] != "void" and not source.below_structs_only:
                raise InvalidMetadata(
                    f"{here}: column {shown(source.name)} is within a list or a map"
                )


def check_names(spec: Document, columns: Columns, path: str) -> None:
    """Raise InvalidMetadata if a new field has the name of a column that is not its source."""
    ids = {column.name: column.id for column in columns.values()}
    keys: set[transforms.Key] = set()
    for i, field in enumerate(spec["fields"]):
        here = f"{at(path, 'fields')}[{i}]"
        sources = transforms.sources(field)
        if ids.get(field["name"], sources[0]) not in sources[:1]:
            raise InvalidMetadata(
                f"{here}: {shown(field['name'])} is the name of another column of the schema"
            )
        key = transforms.key(field)
        if key in keys and field["transform"] != "void":
            raise InvalidMetadata(f"{here}: {field['transform']} of this column is there already")
        keys.add(key)


def with_field_ids(
    spec: Document, specs: list[Document], last_id: int, version: int, path: str
) -> Document:
    """The spec with an id in every field: the client's, otherwise one as clients assign them.

    From v2 on, a field that exists in another spec gets the same id, and other fields get the next
    free id. In v1, files hold partition values by position, so ids must count from 1000.
    """
    ids_by_key: dict[transforms.Key, int] = {}
    owners: dict[int, Document] = {}
    for field in (field for old in specs for field in old["fields"]):
        key, id_ = transforms.key(field), field["field-id"]
        ids_by_key[key] = max(ids_by_key.get(key, 0), id_)
        owners[id_] = field
    taken = {field["field-id"] for field in spec["fields"] if field.get("field-id") is not None}
    next_id = max(last_id, *taken, FIRST_FIELD_ID - 1) + 1
    fields: list[Document] = []
    for position, field in enumerate(spec["fields"]):
        here = f"{at(path, 'fields')}[{position}]"
        id_ = field.get("field-id")
        if version == 1:
            id_ = FIRST_FIELD_ID + position if id_ is None else id_
            if id_ != FIRST_FIELD_ID + position:
                raise InvalidMetadata(
                    f"{here}: field id {id_} is not the next one; v1 counts them from 1000"
                )
        elif id_ is None:
            id_ = ids_by_key.get(transforms.key(field))
            if id_ is None or id_ in taken:
                id_, next_id = next_id, next_id + 1
        _check_owner(field, owners.get(id_), id_, here)
        taken.add(id_)
        fields.append({**field, "field-id": id_})
    return {**spec, "fields": fields}


def _check_owner(field: Document, owner: Document | None, id_: int, path: str) -> None:
    """Check that an id of another spec's field is reused only for the same partition values."""
    if owner is None or transforms.key(owner) == transforms.key(field):
        return
    if transforms.sources(field) == transforms.sources(owner) and "void" in (
        field["transform"],
        owner["transform"],
    ):
        return
    raise InvalidMetadata(
        f"{path}: field id {id_} is that of {owner['transform']} of column "
        f"{', '.join(map(str, transforms.sources(owner)))}"
    )


def fresh(spec: Document | None, moved: dict[int, int], path: str) -> Document:
    """The spec of a new table: field ids from 1000, and source columns with their new ids."""
    if spec is None:
        return {"spec-id": 0, "fields": []}
    fields = []
    for i, field in enumerate(check_structure(spec, path)):
        renewed = transforms.moved_sources(field, moved, f"{at(path, 'fields')}[{i}]")
        fields.append({**renewed, "field-id": FIRST_FIELD_ID + i})
    return {**spec, "spec-id": 0, "fields": fields}


def same(first: Document, second: Document) -> bool:
    """True if two specs partition alike; spec and field ids do not count."""
    return _meaning(first) == _meaning(second)


def _meaning(spec: Document) -> list[tuple[Any, ...]]:
    return [(f["name"], *transforms.key(f)) for f in spec["fields"]]


def last_field_id(spec: Document) -> int:
    """The highest field id of a spec; 999 if it has no fields, because ids count from 1000."""
    return max((f["field-id"] for f in spec["fields"]), default=FIRST_FIELD_ID - 1)
