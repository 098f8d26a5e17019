"""Iceberg schemas as rows to display. Missing and malformed values are left out, never refused."""

from collections.abc import Iterator
from dataclasses import dataclass

from catalog.formats.iceberg import lenient
from catalog.formats.iceberg.reading import Document

_MAX_DEPTH = 60  # more levels than a valid schema has
_MAX_TYPE_LENGTH = 200  # characters of a type in one line


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema, at any depth."""

    id: int | None
    name: str
    path: str
    """The names of the enclosing fields and its own: ``point.x``."""
    depth: int
    type: str
    parent: int | None
    is_required: bool
    is_identifier: bool
    doc: str
    initial_default: object
    write_default: object


def schemas(document: Document) -> list[Document]:
    """All schemas, oldest first. A v1 table may have only the field ``schema``."""
    documents = lenient.objects(document.get("schemas"))
    if not documents and (only := lenient.mapping(document.get("schema"))):
        documents = [only]
    return sorted(documents, key=lambda schema: lenient.integer(schema.get("schema-id")) or 0)


def schema(document: Document, schema_id: int | None) -> Document | None:
    """The schema with this id."""
    return next((s for s in schemas(document) if s.get("schema-id", 0) == schema_id), None)


def current_schema_id(document: Document) -> int | None:
    return lenient.integer(document.get("current-schema-id", 0))


def fields(schema: Document) -> Iterator[Field]:
    """The fields of a schema and their nested fields, each struct before its fields."""
    identifiers = frozenset(lenient.integers(schema.get("identifier-field-ids")))
    yield from _struct(schema, "", 0, None, identifiers)


def _struct(
    struct: Document, prefix: str, depth: int, parent: int | None, identifiers: frozenset[int]
) -> Iterator[Field]:
    for nested in lenient.objects(struct.get("fields")):
        yield from _field(nested, prefix, depth, parent, identifiers)


def _field(
    document: Document, prefix: str, depth: int, parent: int | None, identifiers: frozenset[int]
) -> Iterator[Field]:
    name, id_ = lenient.text(document.get("name")), lenient.integer(document.get("id"))
    field = Field(
        id=id_,
        name=name,
        path=prefix + name,
        depth=depth,
        type=type_text(document.get("type")),
        parent=parent,
        is_required=document.get("required") is True,
        is_identifier=id_ in identifiers,
        doc=lenient.text(document.get("doc")),
        initial_default=document.get("initial-default"),
        write_default=document.get("write-default"),
    )
    yield field
    inside = document.get("type")
    if type(inside) is not dict or depth >= _MAX_DEPTH:
        return
    if inside.get("type") == "struct":
        yield from _struct(inside, f"{field.path}.", depth + 1, id_, identifiers)
    for component in {"list": ("element",), "map": ("key", "value")}.get(
        str(inside.get("type")), ()
    ):
        nested = {
            "id": inside.get(f"{component}-id"),
            "name": component,
            "type": inside.get(component),
            # A map's key is always required, and has no property for it.
            "required": inside.get(f"{component}-required", component == "key"),
        }
        yield from _field(nested, f"{field.path}.", depth + 1, id_, identifiers)


def type_text(type_: object, depth: int = 0) -> str:
    """A type in one line: ``map<string, list<long>>``, without the fields of structs."""
    if type(type_) is str:
        return cut(type_, _MAX_TYPE_LENGTH)
    if type(type_) is not dict or depth >= _MAX_DEPTH:
        return "?"
    match type_.get("type"):
        case "struct":
            return "struct"
        case "list":
            return cut(f"list<{type_text(type_.get('element'), depth + 1)}>", _MAX_TYPE_LENGTH)
        case "map":
            key, value = (
                type_text(type_.get(component), depth + 1) for component in ("key", "value")
            )
            return cut(f"map<{key}, {value}>", _MAX_TYPE_LENGTH)
    return "?"


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
