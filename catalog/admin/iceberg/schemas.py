"""Schemas of an Iceberg table or view: the fields of one, and the changes from each to the next."""

from collections.abc import Sequence
from itertools import islice

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.pages import Panel
from catalog.admin.paging import number, paginate, query
from catalog.formats.iceberg import describe_schemas, lenient
from catalog.formats.iceberg.describe_schemas import Field
from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.schema_changes import Change, ChangeKind, changes

_FIELDS = 100  # of a schema on one page
_SCHEMAS = 10  # compared on one page
_CHANGES = 50  # shown for a schema
_COLOURS = {ChangeKind.ADDED: "success", ChangeKind.DROPPED: "danger"}


def schema_tab(request: HttpRequest, document: Document, current: int | None) -> list[Panel]:
    """Fields of the requested schema, by default the current one, and the changes of all schemas."""
    chosen = number(request, "schema", current)
    return [_fields(request, document, chosen, current), _changes(request, document, current)]


def _fields(
    request: HttpRequest, document: Document, chosen: int | None, current: int | None
) -> Panel:
    schema = describe_schemas.schema(document, chosen)
    start = number(request, "field", 0) or 0
    fields = describe_schemas.fields(schema) if schema is not None else iter(())
    page_fields = list(islice(fields, start, start + _FIELDS + 1))
    schema_label = "?" if chosen is None else chosen
    return Panel(
        title=f"Schema {schema_label} (current)" if chosen == current else f"Schema {schema_label}",
        columns=("ID", "Field", "Type", "Required", "Default", "Comment"),
        rows=[_field(field) for field in page_fields[:_FIELDS]],
        keys=[field.path for field in page_fields[:_FIELDS]],
        empty="The metadata has no schema with this ID, or the schema has no fields.",
        first=query(request, field=None) if start else None,
        following=query(request, field=start + _FIELDS) if len(page_fields) > _FIELDS else None,
    )


def _field(field: Field) -> Sequence[object]:
    name = format_html(
        '<span class="m-field{}" style="padding-left: {}rem" title="{}">{}{}</span>',
        "" if field.depth else " m-top",
        f"{max(field.depth - 1, 0) * 1.2:.1f}",
        cells.clipped(field.path, 1000),
        cells.clipped(field.name) or "?",
        format_html(" {}", cells.badge("identifier", "info")) if field.is_identifier else "",
    )
    return (
        cells.exact(field.id),
        name,
        cells.code(field.type),
        "required" if field.is_required else cells.muted("optional"),
        _default(field),
        cells.expandable(field.doc),
    )


def _default(field: Field) -> object:
    initial, write = field.initial_default, field.write_default
    if initial is None and write is None:
        return cells.NOTHING
    if initial == write:
        return cells.brief(initial)
    return cells.lines(
        format_html("{} {}", cells.brief(default), cells.muted(which))
        for default, which in ((initial, "for existing rows"), (write, "for new rows"))
        if default is not None
    )


def _changes(request: HttpRequest, document: Document, current: int | None) -> Panel:
    schemas = describe_schemas.schemas(document)
    pairs = list(zip([None, *schemas], schemas, strict=False))[::-1]
    page = paginate(request, pairs, _key, "changes", _SCHEMAS)
    return Panel(
        title="Schema changes",
        columns=("Schema", "Changes"),
        rows=[
            (_schema_link(request, new, current), _change_lines(old, new))
            for old, new in page.items
        ],
        empty="No schemas in the metadata.",
        first=page.first,
        following=page.following,
        note="" if len(schemas) > 1 else "The schema has not changed since the table was created.",
    )


def _key(pair: tuple[Document | None, Document]) -> str:
    return str(lenient.integer(pair[1].get("schema-id")))


def _schema_link(request: HttpRequest, schema: Document, current: int | None) -> SafeString:
    id_ = lenient.integer(schema.get("schema-id", 0))
    link = cells.anchor(query(request, tab="schema", schema=id_, field=None), f"Schema {id_}")
    return cells.lines([link, *([cells.badge("current", "success")] if id_ == current else ())])


def _change_lines(old: Document | None, new: Document) -> SafeString | str:
    if old is None:
        count = sum(1 for _ in describe_schemas.fields(new))
        return f"Oldest schema in the metadata: {count:,} fields."
    schema_changes = changes(old, new)
    lines: list[object] = [_change(change) for change in schema_changes[:_CHANGES]]
    if len(schema_changes) > _CHANGES:
        lines.append(cells.muted(f"and {len(schema_changes) - _CHANGES:,} more"))
    return cells.lines(lines) if lines else cells.muted("No changes to fields.")


def _change(change: Change) -> SafeString:
    arrow = format_html(" {} ", cells.muted("→")) if change.before and change.after else ""
    return format_html(
        '<span class="m-change">{}<span title="field {}">{}</span><span>{}{}{}</span></span>',
        cells.badge(change.kind, _COLOURS.get(change.kind, "plain")),
        change.id,
        cells.clipped(change.path),
        cells.clipped(change.before),
        arrow,
        cells.clipped(change.after),
    )
