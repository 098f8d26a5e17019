"""Preview of a Lance table: some of its rows, and the form that selects them."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from lance.dataset import LanceDataset

from catalog.admin import cells
from catalog.admin.pages import Panel
from catalog.admin.paging import number, word
from catalog.errors import CatalogError
from catalog.formats.arrow_values import Kind, Shown
from catalog.models import Table
from catalog.services.lance import preview as lance_preview
from catalog.services.lance.contents import Unreadable, reading
from catalog.services.lance.preview import DEFAULT_ROWS, MOST_COLUMNS, MOST_ROWS, Preview

_OFFERED = 500  # columns to choose from
_NONE = Preview((), ())


@dataclass(frozen=True)
class _Query:
    filter: str
    columns: Sequence[str]
    rows: int


def panel(row: Table, request: HttpRequest, dataset: LanceDataset) -> Panel:
    query = _Query(
        filter=word(request, "filter").strip(),
        columns=request.GET.getlist("column")[:MOST_COLUMNS],
        rows=max(1, min(number(request, "rows", DEFAULT_ROWS) or DEFAULT_ROWS, MOST_ROWS)),
    )
    preview, fault = _NONE, ""
    try:
        preview = lance_preview.preview(
            dataset,
            table=row.identifier,
            columns=query.columns,
            predicate=query.filter,
            limit=query.rows,
        )
    except CatalogError as error:
        fault = error.message
    except Unreadable as error:
        fault = f"The rows cannot be read: {error}"
    return Panel(
        columns=[cells.clipped(name) for name in preview.columns],
        style="m-lines",
        rows=[[_cell(value) for value in values] for values in preview.rows],
        empty=_empty(query, preview, fault),
        lead=_form(request, dataset, query, preview, cells.clipped(fault, 2000)),
    )


def _empty(query: _Query, preview: Preview, fault: str) -> str:
    if fault or preview.stopped:
        return "No rows to show."
    return "No row matches the filter." if query.filter else "This version has no rows."


def _form(
    request: HttpRequest, dataset: LanceDataset, query: _Query, preview: Preview, fault: str
) -> SafeString:
    with reading():
        names = dataset.schema.names
    notes = [preview.stopped] if preview.stopped else []
    if not query.columns and len(names) > MOST_COLUMNS:
        notes.append(
            f"The first {MOST_COLUMNS} of {len(names):,} columns. Select others under Columns."
        )
    version = number(request, "version")
    context = {
        "filter": query.filter,
        "rows": query.rows,
        "most": MOST_ROWS,
        "version": "" if version is None else version,
        "branch": word(request, "branch"),
        "columns": [(name, name in query.columns) for name in names[:_OFFERED]],
        "any_chosen": bool(query.columns),
        "hidden_columns": max(len(names) - _OFFERED, 0),
        "fault": fault,
        "note": " ".join(notes),
    }
    return render_to_string("admin/catalog/lance_preview.html", context)


def _cell(shown: Shown) -> SafeString | str:
    match shown.kind:
        case Kind.NULL:
            return cells.muted("null")
        case Kind.BYTES:
            size = "" if shown.size is None else filesizeformat(shown.size)
            return cells.spaced(
                [
                    *([cells.code(shown.text)] if shown.text else ()),
                    *([shown.note] if shown.note else ()),
                    cells.muted(size),
                ]
            )
        case Kind.VECTOR | Kind.NESTED:
            return cells.lines(
                [
                    format_html('<code class="m-code">{}</code>', shown.text),
                    *([cells.muted(shown.note)] if shown.note else ()),
                ]
            )
    if not shown.text:
        return cells.muted("empty")
    return cells.lines([shown.text, cells.muted(shown.note)]) if shown.note else shown.text
