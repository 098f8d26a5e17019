"""The form of a preview of rows, and its panel: the same for both table formats.

The form works without JavaScript: conditions are lines of three fields, and an empty line follows them.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from django.http import HttpRequest, QueryDict
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString

from catalog.admin import cells, charts
from catalog.admin.pages import Panel
from catalog.admin.paging import number, word
from catalog.formats import arrow_values
from catalog.formats.arrow_values import Shown
from catalog.formats.rows import conditions, selection
from catalog.formats.rows.conditions import (
    MAX_CONDITIONS,
    TITLES,
    Condition,
    InvalidCondition,
    Kind,
    Operator,
)
from catalog.formats.rows.previews import (
    DEFAULT_ROWS,
    MOST_COLUMNS,
    MOST_MEDIA,
    MOST_ROWS,
    MOST_SECONDS,
    SECONDS,
    Preview,
    Request,
)
from catalog.formats.rows.selection import MAX_START, Order

_OFFERED = 500  # columns to choose from
_NONE = Preview((), ())
_INPUTS: Mapping[Kind, str] = {Kind.DATE: "date"}
"""Types of input elements; others are texts, because browsers restrict or localize their values."""


@dataclass(frozen=True)
class Line:
    """A condition as it was entered, and the fault of one of its fields."""

    column: str = ""
    operator: str = ""
    value: str = ""
    input: str = "text"
    faulty: str = ""
    """The faulty field: column, operator or value."""
    fault: str = ""


@dataclass(frozen=True)
class Form:
    """A preview as it was requested."""

    schema: pa.Schema
    request: Request
    lines: Sequence[Line]
    order_fault: str = ""

    @property
    def is_valid(self) -> bool:
        return not self.order_fault and not any(line.fault for line in self.lines)


@dataclass(frozen=True)
class Version:
    """The version of a table in a preview: its fields in the form, and its parameters in links to other pages.

    The links name the version, so that a commit in between does not shift the rows.
    """

    fields: Sequence[tuple[str, str, str, str]]
    """Name, title, value and placeholder of each field."""
    parameters: Mapping[str, object] = field(default_factory=dict)


def read(request: HttpRequest, schema: pa.Schema) -> Form:
    """Read the parameters of a preview: ``where``, ``is`` and ``value`` for each condition, ``sort``, ``from``,
    ``rows``, ``column`` and ``longer``."""
    lines, parsed = _conditions(request.GET, schema)
    order, order_fault = _order(word(request, "sort"), schema)
    page = Request(
        columns=request.GET.getlist("column")[:MOST_COLUMNS],
        conditions=parsed,
        order=order,
        start=min(number(request, "from", 0) or 0, MAX_START),
        limit=max(1, min(number(request, "rows", DEFAULT_ROWS) or DEFAULT_ROWS, MOST_ROWS)),
        seconds=MOST_SECONDS if word(request, "longer") else SECONDS,
    )
    return Form(schema, page, lines, order_fault)


def _conditions(parameters: QueryDict, schema: pa.Schema) -> tuple[list[Line], list[Condition]]:
    entered = zip_longest(
        *(parameters.getlist(name)[: MAX_CONDITIONS + 1] for name in ("where", "is", "value")),
        fillvalue="",
    )
    lines: list[Line] = []
    parsed: list[Condition] = []
    for column, operator, value in entered:
        if not column and not value:
            continue
        line: dict[str, Any] = {
            "column": column[:500],
            "operator": operator[:20],
            "value": value[: conditions.LONGEST_VALUE],
        }
        try:
            if len(lines) >= MAX_CONDITIONS:
                raise InvalidCondition("column", f"At most {MAX_CONDITIONS} conditions.")
            if not column:
                raise InvalidCondition("column", "Select a column.")
            parsed.append(conditions.parse(schema, column, operator, value))
        except InvalidCondition as error:
            line |= {"faulty": error.field, "fault": error.message}
        else:
            line["input"] = _INPUTS.get(conditions.kind(schema.field(column).type), "text")
        lines.append(Line(**line))
    if len(lines) < MAX_CONDITIONS:
        lines.append(Line())
    return lines, parsed


def _order(text: str, schema: pa.Schema) -> tuple[Order | None, str]:
    name = text.removeprefix("-")
    if not name:
        return None, ""
    indexes = schema.get_all_field_indices(name)
    if len(indexes) != 1:
        return None, f"Column '{name[:100]}' does not exist."
    if not selection.is_sortable(schema.field(indexes[0]).type):
        return None, f"Rows cannot be sorted by column '{name[:100]}'."
    return Order(name, is_descending=text.startswith("-")), ""


def panel(
    request: HttpRequest,
    form: Form,
    version: Version,
    *,
    compute: Callable[[Request], tuple[Preview, str]],
    sql_filter: str | None = None,
) -> Panel:
    """The panel of a preview. ``compute`` returns the rows, and a message if they could not be read.

    ``sql_filter`` is the filter in SQL, for tables that have one.
    """
    preview, fault = compute(form.request) if form.is_valid else (_NONE, "")
    start, end = form.request.page_start, form.request.page_start + len(preview.rows)
    following = form.request.page_start + form.request.page_size
    pinned = dict(version.parameters)
    is_last = preview.has_more and following > MAX_START
    notes = [_range(start, end)] if preview.rows else []
    if is_last:
        notes.append(f"Pages end after {MAX_START:,} rows: add a condition or an order.")
    return Panel(
        columns=[_heading(request, form, name, pinned) for name in preview.columns],
        style="m-lines",
        rows=_rows(preview),
        empty=_empty(form, preview, fault, sql_filter),
        lead=_lead(request, form, version, preview, fault=fault, sql_filter=sql_filter),
        note=" ".join(notes),
        first=_url(request, {"from": None}) if start else None,
        following=_url(request, {"from": following} | pinned)
        if preview.has_more and not is_last
        else None,
    )


def _range(start: int, end: int) -> str:
    return f"Row {end:,}." if end - start == 1 else f"Rows {start + 1:,} to {end:,}."


def _empty(form: Form, preview: Preview, fault: str, sql_filter: str | None) -> str:
    if fault or preview.stopped or not form.is_valid:
        return "No rows to show."
    if form.request.start:
        return "There are no more rows."
    return (
        "No row matches the filter."
        if form.request.conditions or sql_filter
        else "This version has no rows."
    )


def _lead(
    request: HttpRequest,
    form: Form,
    version: Version,
    preview: Preview,
    *,
    fault: str,
    sql_filter: str | None,
) -> SafeString:
    names = form.schema.names
    chosen = form.request.columns
    notes = [preview.stopped] if preview.stopped else []
    if not chosen and len(names) > MOST_COLUMNS:
        notes.append(
            f"The first {MOST_COLUMNS} of {len(names):,} columns. Select others under Columns."
        )
    kinds = [(name, conditions.kind(form.schema.field(i).type)) for i, name in enumerate(names)]
    context = {
        "lines": form.lines,
        "operators": [(item.value, title, _kinds_of(item)) for item, title in TITLES.items()],
        "kinds": kinds[:_OFFERED],
        "sort": word(request, "sort"),
        "order_fault": form.order_fault,
        "sortable": [name for name, kind in kinds[:_OFFERED] if kind is not Kind.OTHER],
        "sql_filter": sql_filter,
        "rows": form.request.limit,
        "most": MOST_ROWS,
        "version_fields": version.fields,
        "columns": [(name, name in chosen) for name in names[:_OFFERED]],
        "any_chosen": bool(chosen),
        "hidden_columns": max(len(names) - _OFFERED, 0),
        "fault": cells.clipped(fault, 2000),
        "note": " ".join(notes),
        "longer_url": _url(request, {"longer": 1} | dict(version.parameters))
        if preview.is_late and form.request.seconds < MOST_SECONDS
        else "",
        "most_seconds": f"{MOST_SECONDS:g}",
        "csp_nonce": getattr(request, "csp_nonce", ""),
    }
    return render_to_string("admin/catalog/row_preview.html", context)


_SAMPLES: Mapping[Kind, pa.DataType] = {
    Kind.NUMBER: pa.int64(),
    Kind.TEXT: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIME: pa.time64("us"),
    Kind.UUID: pa.uuid(),
    Kind.OTHER: pa.binary(),
}


def _kinds_of(operator: Operator) -> str:
    """The kinds of columns to which an operator applies, for the script of the form."""
    kinds = [
        kind.name for kind, type_ in _SAMPLES.items() if operator in conditions.operators(type_)
    ]
    return " ".join(kinds)


def _heading(
    request: HttpRequest, form: Form, name: str, pinned: Mapping[str, object]
) -> SafeString | str:
    """The name of a column, as a link that sorts by it."""
    text = cells.clipped(name)
    if not selection.is_sortable(form.schema.field(name).type):
        return text
    order = form.request.order
    is_sorted = order is not None and order.column == name
    descends = is_sorted and order is not None and order.is_descending
    sort = name if not is_sorted or descends else f"-{name}"
    arrow = ("↓" if descends else "↑") if is_sorted else ""
    title = "Sort in descending order" if is_sorted and not descends else "Sort in ascending order"
    url = _url(request, {"sort": sort, "from": None} | dict(pinned))
    return format_html('<a href="{}" title="{}">{} {}</a>', url, title, text, arrow)


def _url(request: HttpRequest, changes: Mapping[str, object]) -> str:
    """The URL of the page with these parameters set, or removed where None; repeated ones stay."""
    parameters = request.GET.copy()
    for name, value in changes.items():
        if value is None:
            parameters.pop(name, None)
        else:
            parameters[name] = str(value)
    return f"?{parameters.urlencode()}"


def _rows(preview: Preview) -> list[list[SafeString | str]]:
    budget = MOST_MEDIA
    rows: list[list[SafeString | str]] = []
    for values in preview.rows:
        row: list[SafeString | str] = []
        for value in values:
            budget -= len(value.media)
            row.append(_media(value) if value.media and budget >= 0 else shown_cell(value))
        rows.append(row)
    return rows


def _media(shown: Shown) -> SafeString:
    """An image or a recording, which the page itself contains."""
    url = f"data:{shown.media_type};base64,{base64.b64encode(shown.media).decode()}"
    tag = '<img class="m-media" src="{}" alt="{}" loading="lazy">'
    if shown.media_type.startswith("audio/"):
        tag = '<audio class="m-media" src="{}" aria-label="{}" controls></audio>'
    described = cells.spaced([shown.note, filesizeformat(len(shown.media))])
    return cells.lines([format_html(tag, url, shown.note), cells.muted(described)])


def shown_cell(shown: Shown) -> SafeString | str:
    """A value of a row as the content of a cell."""
    match shown.kind:
        case arrow_values.Kind.NULL:
            return cells.muted("null")
        case arrow_values.Kind.BYTES:
            size = "" if shown.size is None else filesizeformat(shown.size)
            return cells.spaced(
                [
                    *([cells.code(shown.text)] if shown.text else ()),
                    *([shown.note] if shown.note else ()),
                    cells.muted(size),
                ]
            )
        case arrow_values.Kind.VECTOR | arrow_values.Kind.NESTED:
            return cells.lines(
                [
                    *([charts.vector(shown.bars)] if shown.bars else ()),
                    format_html('<code class="m-code">{}</code>', shown.text),
                    *([cells.muted(shown.note)] if shown.note else ()),
                ]
            )
    if not shown.text:
        return cells.muted("empty")
    return cells.lines([shown.text, cells.muted(shown.note)]) if shown.note else shown.text
