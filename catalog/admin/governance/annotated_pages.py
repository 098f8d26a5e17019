"""Annotations on the page of a namespace or table: among its details, and beside the columns of its schema."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.template.loader import render_to_string

from catalog.admin import cells
from catalog.admin.governance import annotations as governance_annotations
from catalog.admin.governance.annotation_actions import COLUMN_LEVELS
from catalog.admin.governance.annotations import ShownAnnotations
from catalog.admin.pages import Page, Panel, Tab
from catalog.models import Table
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
    edits: Table | None = None,
) -> Page:
    """The page with annotations among its details, and those of columns beside the schema.

    With the table whose annotations the user may edit, each column has a form.
    """
    tabs = [
        _with_columns(request, tab, shown, edits) if tab.key == "schema" else tab
        for tab in page.tabs
    ]
    return replace(page, facts=_details(page.facts, shown), tabs=tabs)


def _details(
    of_page: Sequence[tuple[str, object]], shown: ShownAnnotations
) -> list[tuple[str, object]]:
    """Details of a page with the annotations after the first detail."""
    lines = {name: value or cells.NOTHING for name, value in shown.lines}
    if shown.description:
        lines = {"Description": cells.prose(shown.description)} | lines
    others = [(name, value) for name, value in of_page if name not in lines]
    return [*others[:1], *lines.items(), *others[1:]]


def _with_columns(
    request: HttpRequest, tab: Tab, shown: ShownAnnotations, edits: Table | None
) -> Tab:
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
                panels[index] = _beside(request, panels[index], visible, edits)
        return [*panels, *([_others(shown, annotated)] if annotated else ())]

    return Tab(tab.key, tab.title, build)


def _is_annotated(column: ColumnAnnotations) -> bool:
    return bool(column.description or column.labels or column.sensitivity)


def _beside(
    request: HttpRequest,
    panel: Panel,
    annotated: Mapping[str, ColumnAnnotations],
    edits: Table | None,
) -> Panel:
    """The panel of a schema with the annotations of its columns."""
    rows = []
    for row, path in zip(panel.rows, panel.keys, strict=True):
        column = annotated.get(path)
        form = () if edits is None else (_form(request, edits, path, column),)
        rows.append((*row, *_cells(column), *form))
    columns = (*panel.columns, *_ANNOTATIONS, *(("Edit",) if edits else ()))
    return replace(panel, columns=columns, rows=rows)


_ANNOTATIONS = ("Description", "Labels", "Sensitivity")


def _cells(column: ColumnAnnotations | None) -> Sequence[object]:
    if column is None:
        return (cells.NOTHING,) * len(_ANNOTATIONS)
    text = column.description
    return (
        cells.prose(descriptions.render(text)) if text else cells.NOTHING,
        governance_annotations.labels(column.labels),
        governance_annotations.sensitivity(column.sensitivity),
    )


def _form(request: HttpRequest, row: Table, path: str, column: ColumnAnnotations | None) -> str:
    """The form of a column, folded."""
    base = cells.page_url(row).removesuffix("change/")
    chosen = urlencode({"column": path})
    return render_to_string(
        "admin/catalog/column_form.html",
        {
            "path": cells.clipped(path),
            "describe": f"{base}describe_column/?{chosen}",
            "label": f"{base}label/?{chosen}",
            "token": get_token(request),
            "description": column.description if column else "",
            "sensitivity": column.sensitivity.value if column and column.sensitivity else "",
            "levels": COLUMN_LEVELS,
        },
    )


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
