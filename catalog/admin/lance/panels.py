"""Contents of a version of a Lance table: schema, fragments and indexes."""

from collections.abc import Mapping, Sequence
from itertools import islice

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from lance.dataset import LanceDataset

from catalog.admin import cells
from catalog.admin.maintenance.actions import index_links
from catalog.admin.pages import Panel
from catalog.admin.paging import number, paginate, query, word
from catalog.formats.lance import columns as lance_columns
from catalog.formats.lance import schema_changes
from catalog.formats.lance.columns import Column
from catalog.formats.lance.schema_changes import ChangeKind
from catalog.models import Table
from catalog.services.lance import contents as lance_contents
from catalog.services.lance.contents import SMALL, Bucket, Fragment, reading
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.indexes import IndexSummary

_FIELDS = 100  # of a schema on one page
_ENTRIES = 50  # of a field's metadata
_CHANGES = 200  # of a schema
_COLOURS = {
    ChangeKind.ADDED: "success",
    ChangeKind.DROPPED: "danger",
    ChangeKind.RENAMED: "warning",
    ChangeKind.TYPE: "warning",
    ChangeKind.NULLABILITY: "info",
}


# --- schema ------------------------------------------------------------------------------------


def schema_tab(request: HttpRequest, dataset: LanceDataset) -> list[Panel]:
    start = number(request, "field", 0) or 0
    with reading():
        schema = dataset.schema
        columns = lance_columns.columns(schema, dataset.lance_schema.fields())
        page_columns = list(islice(columns, start, start + _FIELDS + 1))
    entries = sorted(lance_columns.text_mapping(schema.metadata).items())
    metadata = paginate(request, entries, lambda entry: entry[0], "after")
    return [
        Panel(
            title="Schema",
            columns=("ID", "Column", "Type", "Nullability", "Metadata"),
            rows=[_column(column) for column in page_columns[:_FIELDS]],
            keys=[column.path for column in page_columns[:_FIELDS]],
            empty="The table has no columns.",
            first=query(request, field=None) if start else None,
            following=query(request, field=start + _FIELDS)
            if len(page_columns) > _FIELDS
            else None,
        ),
        Panel(
            title="Schema metadata",
            columns=("Key", "Value"),
            rows=[
                (cells.exact(cells.clipped(key)), cells.brief(value))
                for key, value in metadata.items
            ],
            empty="The schema has no metadata.",
            first=metadata.first,
            following=metadata.following,
        ),
    ]


def changes_panel(
    request: HttpRequest, old: LanceDataset | None, new: LanceDataset, fault: str = ""
) -> Panel:
    """The form that chooses another version, and the changes of the schema since that version."""
    chosen = number(request, "compare")
    form = render_to_string(
        "admin/catalog/compare_schemas.html",
        {
            "chosen": chosen,
            "kept": [(name, word(request, name)) for name in ("version", "branch")],
        },
    )
    title = "Compare with another version"
    if old is None:
        text = fault or "Enter a version to see the columns that were added, dropped or changed."
        return Panel((), (), text, title=title, lead=form)
    with reading():
        before = list(lance_columns.columns(old.schema, old.lance_schema.fields()))
        after = list(lance_columns.columns(new.schema, new.lance_schema.fields()))
    changes = schema_changes.changes(before, after)
    return Panel(
        title=title,
        columns=("Change", f"Version {old.version}", f"Version {new.version}"),
        rows=[
            (
                cells.badge(change.kind, _COLOURS[change.kind]),
                _declared(change.before),
                _declared(change.after),
            )
            for change in changes[:_CHANGES]
        ],
        empty=f"Versions {old.version} and {new.version} have the same columns.",
        lead=form,
        note=f"and {len(changes) - _CHANGES:,} more" if len(changes) > _CHANGES else "",
    )


def _declared(column: Column | None) -> object:
    if column is None:
        return cells.NOTHING
    return cells.spaced(
        [
            cells.clipped(column.path),
            cells.code(cells.clipped(column.type, 1000)),
            "" if column.is_nullable else cells.muted("required"),
        ]
    )


def _column(column: Column) -> Sequence[object]:
    marks: list[object] = []
    if column.is_key:
        marks.append(cells.badge("primary key", "info"))
    if column.dimension is not None:
        marks.append(cells.badge(f"vector, {column.dimension:,}", "success"))
    if column.is_blob:
        marks.append(cells.badge("blob", "warning"))
    if column.is_computed:
        marks.append(cells.badge("computed", "warning"))
    name = format_html(
        '<span class="m-field{}" style="padding-left: {}rem" title="{}">{} {}</span>',
        "" if column.depth else " m-top",
        f"{max(column.depth - 1, 0) * 1.2:.1f}",
        cells.clipped(column.path, 1000),
        cells.clipped(column.name),
        cells.spaced(marks),
    )
    return (
        cells.NOTHING if column.id is None else cells.exact(column.id),
        name,
        cells.code(cells.clipped(column.type, 1000)),
        cells.muted("nullable") if column.is_nullable else "required",
        _metadata(column.metadata),
    )


def _metadata(entries: Mapping[str, str]) -> SafeString:
    lines: list[object] = [
        format_html("{} {}", cells.muted(cells.clipped(key)), cells.brief(entries[key]))
        for key in sorted(entries)[:_ENTRIES]
    ]
    if len(entries) > _ENTRIES:
        lines.append(cells.muted(f"and {len(entries) - _ENTRIES:,} more"))
    return cells.lines(lines)


# --- fragments ---------------------------------------------------------------------------------


def fragments(request: HttpRequest, dataset: LanceDataset) -> Panel:
    entries = lance_contents.fragments(dataset)
    page = paginate(request, entries, lambda item: str(item.fragment_id), "after")
    summaries = [lance_contents.fragment(item, len(entries)) for item in page.items]
    return Panel(
        columns=("Fragment", "Rows", "Deleted rows", "Data files", "Size"),
        rows=[_fragment(item) for item in summaries],
        empty="No fragments: this version has no rows.",
        first=page.first,
        following=page.following,
        note=f"Fragments with fewer than {SMALL:,} rows are marked as small. Compaction merges them."
        if any(item.is_small for item in summaries)
        else "",
        lead=_picture(lance_contents.distribution(entries)) if entries else "",
    )


def _fragment(fragment: Fragment) -> Sequence[object]:
    share = fragment.rows + fragment.deleted_rows
    deleted: object = f"{fragment.deleted_rows:,}"
    if fragment.deleted_rows:
        percent = f"{100 * fragment.deleted_rows / share:.1f}%"
        deleted = cells.spaced([deleted, cells.muted(percent)])
    return (
        cells.spaced(
            [fragment.id, *([cells.badge("small", "warning")] if fragment.is_small else ())]
        ),
        f"{fragment.rows:,}",
        deleted,
        f"{fragment.data_files:,}",
        cells.size(fragment.bytes),
    )


def _picture(buckets: Sequence[Bucket]) -> SafeString:
    """Numbers of fragments by size, as bars."""
    most = max(bucket.fragments for bucket in buckets)
    bars = format_html_join(
        "",
        "<span>{}</span>{}<span>{}</span>",
        (
            (_range(bucket), cells.meter(bucket.fragments, most, ""), f"{bucket.fragments:,}")
            for bucket in buckets
        ),
    )
    return format_html(
        '<div class="m-bars" role="img" aria-label="Fragments by rows">{}</div>', bars
    )


def _range(bucket: Bucket) -> str:
    if bucket.below is None:
        return f"{bucket.least:,} rows or more"
    if not bucket.least:
        return f"fewer than {bucket.below:,} rows"
    return f"{bucket.least:,} to {bucket.below - 1:,}"


# --- indexes -----------------------------------------------------------------------------------


def indexes(row: Table, request: HttpRequest, dataset: LanceDataset) -> Panel:
    with reading():
        summaries = lance_indexes.index_summaries(dataset)
    is_newest = not (request.GET.get("version") or request.GET.get("branch"))
    links = index_links(request, row) if is_newest and summaries else None
    page = paginate(request, summaries, lambda index: index.name, "after")
    return Panel(
        columns=(
            "Index",
            "Type",
            "Columns",
            "Indexed rows",
            "Unindexed rows",
            "Size",
            "Segments",
            "Created",
            *([""] if links else ()),
        ),
        rows=[
            (*_index(index), *([links(index.name, index.unindexed_rows)] if links else ()))
            for index in page.items
        ],
        empty="No indexes. Clients create indexes with create_scalar_index() or create_index().",
        first=page.first,
        following=page.following,
        note="Unindexed rows are searched by a full scan."
        if any(index.unindexed_rows for index in summaries)
        else "",
    )


def _index(index: IndexSummary) -> Sequence[object]:
    kind = cells.spaced(
        [
            cells.clipped(index.type),
            *([cells.muted(index.distance_type)] if index.distance_type else ()),
        ]
    )
    inside, outside = index.indexed_rows, index.unindexed_rows
    stale: object = cells.NOTHING
    if inside is not None and outside is not None:
        percent = 100 * outside / (inside + outside) if outside else 0
        stale = cells.meter(outside, inside + outside, f"{outside:,} ({percent:.1f}%)")
    return (
        cells.exact(cells.clipped(index.name)),
        kind,
        cells.lines(cells.clipped(column) for column in index.columns),
        cells.NOTHING if inside is None else f"{inside:,}",
        stale,
        cells.size(index.size_bytes),
        cells.NOTHING if index.segments is None else f"{index.segments:,}",
        cells.when(index.created_at),
    )
