"""Lineage of columns: what the columns of a view are made from, and the views that read columns."""

from collections.abc import Sequence

from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import Panel
from catalog.formats.iceberg.views.relations import ALL
from catalog.models import Table
from catalog.services.tables import column_lineage
from catalog.services.tables.column_lineage import Origin, Reader, ViewColumn

_MAX_ROWS = 200


def panels(request: HttpRequest, row: Table) -> Sequence[Panel]:
    """The panels "Columns" of a view and "Columns used by", for users who may read the object."""
    principal = actor(request)
    columns = column_lineage.columns_of(actor=principal, row=row)
    readers = column_lineage.readers_of(actor=principal, row=row)
    return [
        *([_columns(columns.columns, columns.problem)] if columns else []),
        *([_used_by(readers.readers, readers.is_complete)] if readers else []),
    ]


def _columns(columns: Sequence[ViewColumn], problem: str) -> Panel:
    has_dialects = any(column.dialects for column in columns)
    notes = [problem] if problem else []
    notes += _limit(len(columns), "column")
    notes.append("Conditions and groupings do not count, only what the values are made from.")
    return Panel(
        title="Columns",
        columns=("Column", "Comes from", "How", *(["Dialect"] if has_dialects else [])),
        rows=[
            (
                _name(column.name),
                _origins(column),
                # Of a column without origins, it is not known whether it is a copy of one.
                cells.NOTHING
                if column.remarks and not column.origins
                else _how(is_copy=column.is_copy),
                *([", ".join(column.dialects) or cells.NOTHING] if has_dialects else []),
            )
            for column in columns[:_MAX_ROWS]
        ],
        empty="The columns of the view are not known: its SQL is not parsed, or cannot be.",
        note=" ".join(notes),
    )


def _used_by(readers: Sequence[Reader], is_complete: bool) -> Panel:
    notes = _limit(len(readers), "use")
    if not is_complete:
        notes.append("There are more views than are read for this list.")
    notes.append("Only views that you may read are listed.")
    return Panel(
        title="Columns used by",
        columns=("Column", "View", "Column of the view", "How"),
        rows=[
            (
                _name(reader.column),
                cells.anchor(_url(reader.view), reader.view),
                _name(reader.view_column),
                _how(is_copy=reader.is_copy, is_certain=reader.is_certain),
            )
            for reader in readers[:_MAX_ROWS]
        ],
        empty="No column of a view that you may read is made from a column of this object.",
        note=" ".join(notes),
    )


def _limit(count: int, noun: str) -> list[str]:
    if count <= _MAX_ROWS:
        return []
    return [f"The list has the first {_MAX_ROWS} of {cells.counted(count, noun)}."]


def _url(table: Table) -> str:
    return f"{cells.page_url(table)}?tab=lineage"


def _name(column: str) -> SafeString:
    """The name of a column, which is text of clients."""
    if column == ALL:
        return cells.muted("all columns")
    return cells.code(column) if column else cells.muted("without a name")


def _how(*, is_copy: bool, is_certain: bool = True) -> str:
    return f"{'copied' if is_copy else 'computed'}{'' if is_certain else ', perhaps'}"


def _origins(column: ViewColumn) -> SafeString:
    """The origins, one a line, and the remarks on them."""
    lines: list[object] = [
        format_html_join(" or ", "{} of {}", (_origin(origin) for origin in origins))
        for origins in column.origins
    ]
    lines += [cells.muted(remark) for remark in column.remarks]
    return cells.lines(lines) if lines else cells.muted("no column")


def _origin(origin: Origin) -> tuple[SafeString, SafeString]:
    return _name(origin.column), cells.anchor(_url(origin.table), origin.table)
