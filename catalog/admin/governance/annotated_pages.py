"""Annotations on the page of a namespace or table: among its details, and beside the columns of its schema."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.governance import annotations as governance_annotations
from catalog.admin.governance.annotations import ShownAnnotations
from catalog.admin.pages import Page, Panel, Tab
from catalog.admin.paging import word
from catalog.models import Namespace, Table
from catalog.services.governance import descriptions
from catalog.services.governance.annotations import ColumnAnnotations


def has_tab(page: Page, tab: str) -> bool:
    """True if the page has this tab. For any other value, the page shows its details."""
    return any(tab == page_tab.key for page_tab in page.tabs)


def with_annotations(
    request: HttpRequest,
    page: Page,
    shown: ShownAnnotations,
    *,
    edits: Table | Namespace | None = None,
) -> Page:
    """The page with annotations among its details, and those of columns beside the schema.

    With the object whose annotations the user may edit, each annotation has a link to its form. On the
    overview, those of columns have none.
    """
    has_columns = isinstance(edits, Table) and word(request, "tab") == "schema"
    tabs = [
        _with_columns(tab, shown, edits if has_columns else None) if tab.key == "schema" else tab  # type: ignore[arg-type]
        for tab in page.tabs
    ]
    return replace(page, facts=_details(page.facts, shown, edits), tabs=tabs)


def _details(
    of_page: Sequence[tuple[str, object]],
    shown: ShownAnnotations,
    edits: Table | Namespace | None,
) -> list[tuple[str, object]]:
    """Details of a page with the annotations after the first detail."""
    lines = {name: value or cells.NOTHING for name, value in shown.lines}
    if shown.description or edits:
        text = cells.prose(shown.description) if shown.description else cells.NOTHING
        lines = {"Description": text} | lines
    if edits:
        lines = {name: _editable(value, edits, name.lower()) for name, value in lines.items()}
    others = [(name, value) for name, value in of_page if name not in lines]
    return [*others[:1], *lines.items(), *others[1:]]


def _editable(value: object, row: Table | Namespace, field: str, path: str = "") -> SafeString:
    """An annotation with a link to its form, which a script opens in place of the annotation."""
    base = cells.page_url(row).removesuffix("change/")
    action = f"describe_column/?{urlencode({'column': path})}&" if path else "describe/?"
    url = f"{base}{action}only={field}"
    return format_html(
        '<div class="m-cell"><div>{}</div><a class="m-pen" href="{}" hx-get="{}" hx-target="closest .m-cell"'
        ' hx-swap="beforeend" aria-label="{}" title="Edit"><span class="material-symbols-outlined"'
        ' aria-hidden="true"></span></a></div>',
        value,
        url,
        url,
        f"Edit {field} of {cells.clipped(path) if path else row}",
    )


def _with_columns(tab: Tab, shown: ShownAnnotations, edits: Table | None) -> Tab:
    """The schema tab with the annotations of columns."""

    def build() -> list[Panel]:
        built = tab.build()
        panels = [built] if isinstance(built, Panel) else list(built)
        annotated = {column.path: column for column in shown.facts.columns if _is_annotated(column)}
        index = next((i for i, panel in enumerate(panels) if panel.keys), None)
        if index is not None:
            visible = {
                path: annotated.pop(path) for path in panels[index].keys if path in annotated
            }
            if visible or edits is not None:
                panels[index] = _beside(panels[index], visible, edits)
        return [*panels, *([_others(shown, annotated)] if annotated else ())]

    return Tab(tab.key, tab.title, build)


def _is_annotated(column: ColumnAnnotations) -> bool:
    return bool(column.description or column.labels or column.sensitivity)


def _beside(panel: Panel, annotated: Mapping[str, ColumnAnnotations], edits: Table | None) -> Panel:
    """The panel of a schema with the annotations of its columns."""
    rows = [
        (*row, *_cells(annotated.get(path), path, edits))
        for row, path in zip(panel.rows, panel.keys, strict=True)
    ]
    return replace(panel, columns=(*panel.columns, *_ANNOTATIONS), rows=rows)


_ANNOTATIONS = ("Description", "Labels", "Sensitivity")


def _cells(column: ColumnAnnotations | None, path: str, edits: Table | None) -> Sequence[object]:
    values: Sequence[object] = (cells.NOTHING,) * len(_ANNOTATIONS)
    if column is not None:
        text = column.description
        values = (
            cells.prose(descriptions.render(text)) if text else cells.NOTHING,
            governance_annotations.labels(column.labels),
            governance_annotations.sensitivity(column.sensitivity),
        )
    if edits is None:
        return values
    return [
        _editable(value, edits, name.lower(), path)
        for name, value in zip(_ANNOTATIONS, values, strict=True)
    ]


def _others(shown: ShownAnnotations, annotated: Mapping[str, ColumnAnnotations]) -> Panel:
    """Annotated columns that are not in the schema, or on another page of it."""
    return Panel(
        title="Annotations of other columns",
        columns=("Column", "Type", *_ANNOTATIONS),
        rows=[
            line
            for line, column in zip(shown.columns, shown.facts.columns, strict=True)
            if column.path in annotated
        ],
        empty="",
        note="These columns are on another page of the schema, or not in it.",
    )
