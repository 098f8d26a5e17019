"""The list of tables: its pages, order, columns, facets and export, in catalogs of any size."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR
from django.core.paginator import InvalidPage, Paginator
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.views import ChangeList

from catalog import access
from catalog.admin.actor import actor, reads_everything
from catalog.admin.paging import InfinitePaginator
from catalog.admin.score_charts import FAIR, GOOD
from catalog.admin.tables import list_terms
from catalog.admin.tables.list_columns import BY_METHOD, COLUMNS
from catalog.admin.tables.list_filters import (
    GRADES,
    excludes_dropped,
    is_of_dropped,
    is_of_unmeasured,
)
from catalog.models import Table, TableFormat
from catalog.services.tables import facets, listing, summaries
from catalog.services.tables.listing import Order

COLUMNS_PARAMETER = "cols"
EXPORT_PARAMETER = "export"
EXPORT_ROWS = 10_000
"""Maximum number of rows of an export."""
_SESSION_KEY = "table_columns"
_BY_CREATION = Order(F("pk"))
_MEASURED = ("rows", "size", "health")
"""The columns of a measurement."""
_BEGINS_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Facets in the order of the page: title, parameter.
_FACETS = {
    "format": ("Format", "format__exact"),
    "kind": ("Kind", "kind__exact"),
    "state": ("State", "state"),
    "health": ("Health", "health"),
    "owner": ("Owner", "owner"),
    "label": ("Label", "label"),
}

_TEXTS: Mapping[str, Mapping[str, str]] = {
    "format": {str(value): str(label) for value, label in TableFormat.choices},
    "health": GRADES,
}
"""Values of facets that have another name on the page."""


def columns(request: HttpRequest) -> list[str]:
    """The methods of the chosen columns; the name of the table is always among them."""
    chosen = request.GET.getlist(COLUMNS_PARAMETER)
    if not any(key in COLUMNS for key in chosen):
        return [column.method for column in COLUMNS.values() if column.is_default]
    return [column.method for key, column in COLUMNS.items() if key in chosen or key == "name"]


def sortable(request: HttpRequest) -> list[str]:
    """The methods of the columns by which the user may sort.

    BROWSE alone does not include the history of a table, which an order would reveal.
    """
    hidden = set() if reads_everything(request) else {"committed"}
    return [
        column.method
        for key, column in COLUMNS.items()
        if column.order is not None and key not in hidden
    ]


def remembered(request: HttpRequest) -> HttpResponseRedirect | None:
    """Remember the chosen columns in the session; redirect a plain URL to the columns chosen last."""
    if request.method != "GET":
        return None
    chosen = [key for key in request.GET.getlist(COLUMNS_PARAMETER) if key in COLUMNS]
    last = request.session.get(_SESSION_KEY)
    if COLUMNS_PARAMETER in request.GET:
        if chosen != last:
            request.session[_SESSION_KEY] = chosen
        return None
    if not last:
        return None
    parameters = request.GET.copy()
    parameters.setlist(COLUMNS_PARAMETER, last)
    return HttpResponseRedirect(f"?{parameters.urlencode()}")


def is_export(request: HttpRequest) -> bool:
    return request.GET.get(EXPORT_PARAMETER) == "csv"


def _lacks_sort_key(request: HttpRequest, order: Order) -> bool:
    """True if no table of the list has the sort key, so that the list is in order of creation."""
    if is_of_dropped(request):
        return order.is_in_summary  # dropped tables have no summary
    return is_of_unmeasured(request) and order in [COLUMNS[key].order for key in _MEASURED]


@dataclass(frozen=True)
class FacetLink:
    """A value of a facet; the link adds the filter, or removes it if it is set."""

    text: str
    count: str
    url: str
    is_chosen: bool


class TableList(ChangeList):  # type: ignore[misc]
    """The list. A few matches are counted and sorted exactly; of many, pages follow an index."""

    preserved_filters: str

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Django would look up the URL of each row among all URLs, to find out that it is not that of the list.
        self._suffix = f"?{self.preserved_filters}" if self.preserved_filters else ""
        self.preserved_filters = ""

    def url_for_result(self, result: Table) -> str:
        return f"{super().url_for_result(result)}{self._suffix}"

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        parameters: dict[str, Any] = super().get_filters_params(params)
        for name in (COLUMNS_PARAMETER, EXPORT_PARAMETER):
            parameters.pop(name, None)
        return parameters

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Table]) -> list[str]:
        return ["-pk"]  # ``get_results`` sorts

    def get_results(self, request: HttpRequest) -> None:
        rows, condition = self.queryset, list_terms.of(request)
        if excludes_dropped(request):
            narrowed = listing.narrowed(actor(request), rows)
            if narrowed is not rows:
                rows, condition = narrowed, None
        self.matching = listing.matches(rows, actor(request), condition)
        self.is_behind = self.matching.is_estimate and not summaries.are_complete()
        per_page = EXPORT_ROWS if is_export(request) else self.list_per_page
        paginator_class = InfinitePaginator if self.matching.is_estimate else Paginator
        self.paginator = paginator_class(self.matching.ids, self.list_per_page)
        try:
            start = (self.paginator.validate_number(self.page_num) - 1) * self.list_per_page
        except InvalidPage as error:
            raise IncorrectLookupParameters from error
        order, is_descending = self._order()
        if self.matching.is_estimate and _lacks_sort_key(request, order):
            order = _BY_CREATION  # an index would be read to its end
        keys = listing.page(
            rows, self.matching, order, is_descending=is_descending, start=start, count=per_page
        )
        self.result_list = self._fetch(request, keys)
        self.result_count = self.matching.total
        self.show_full_result_count = False
        self.show_admin_actions = True
        self.full_result_count = None
        self.can_show_all = False
        self.multi_page = self.result_count > self.list_per_page

    # -- the order, which URLs name by the key of its column: positions differ between users

    def get_ordering_field_columns(self) -> dict[int, str]:
        key, is_descending = self._sorted_by()
        if key not in COLUMNS or COLUMNS[key].method not in self.list_display:
            return {}
        index = list(self.list_display).index(COLUMNS[key].method)
        return {index: "desc" if is_descending else "asc"}

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        parameters = dict(new_params or {})
        if position := str(parameters.get(ORDER_VAR) or ""):
            # Only the first column counts.
            first = position.partition(".")[0]
            method = self.list_display[int(first.lstrip("-"))]
            sign = "-" if first.startswith("-") else ""
            parameters[ORDER_VAR] = f"{sign}{BY_METHOD[method].key}"
        return str(super().get_query_string(parameters, remove))

    def _sorted_by(self) -> tuple[str, bool]:
        """The key of the column of the order, and whether the order is descending."""
        text = str(self.params.get(ORDER_VAR, ""))
        return text.removeprefix("-"), text.startswith("-")

    def _order(self) -> tuple[Order, bool]:
        """The requested order; by default the newest tables are first."""
        key, is_descending = self._sorted_by()
        column = COLUMNS.get(key)
        if column is None or column.order is None or column.method not in self.sortable_by:
            return _BY_CREATION, True
        return column.order, is_descending

    def _fetch(self, request: HttpRequest, keys: Sequence[int]) -> list[Table]:
        by_key: dict[int, Any] = self.queryset.filter(listing.among(keys)).order_by().in_bulk()
        rows = [by_key[key] for key in keys if key in by_key]
        if not reads_everything(request):
            readable = access.readable_tables(actor(request), keys)
            for row in rows:
                if row.pk not in readable:
                    row.committed_at = row.committed_by = None
        return rows

    # -- what the template shows

    @property
    def total(self) -> str:
        count = f"{self.result_count:,} table{'' if self.result_count == 1 else 's'}"
        return f"≈ {count}" if self.matching.is_estimate else count

    @property
    def facets(self) -> list[tuple[str, list[FacetLink]]]:
        values = facets.facets(self.matching, fair=FAIR, good=GOOD)
        mark = "≈ " if self.matching.is_estimate else ""
        by_facet = {
            facet: list(group) for facet, group in groupby(values, key=lambda value: value.facet)
        }
        lines = []
        for facet, (title, parameter) in _FACETS.items():
            chosen = self.params.get(parameter, "")
            links = []
            for value in by_facet.get(facet, ()):
                is_chosen = chosen == value.value
                url = self.get_query_string({parameter: None if is_chosen else value.value})
                text = _TEXTS.get(facet, {}).get(value.value, value.value)
                links.append(FacetLink(text, f"{mark}{value.count:,}", url, is_chosen))
            if links:
                lines.append((title, links))
        return lines

    @property
    def column_choices(self) -> list[tuple[str, str, bool]]:
        return [
            (key, column.title, column.method in self.list_display)
            for key, column in COLUMNS.items()
            if key != "name"
        ]

    @property
    def other_parameters(self) -> list[tuple[str, str]]:
        """The parameters of the page that the form of the columns repeats."""
        return [
            (name, value)
            for name, values in self.filter_params.items()
            if name not in {COLUMNS_PARAMETER, EXPORT_PARAMETER}
            for value in values
        ]

    @property
    def export_url(self) -> str:
        return self.get_query_string({EXPORT_PARAMETER: "csv"})


def export(table_list: TableList) -> HttpResponse:
    """The rows of the list with their chosen columns as CSV, at most ``EXPORT_ROWS``."""
    chosen = [BY_METHOD[name] for name in table_list.list_display if name in BY_METHOD]
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([name for column in chosen for name, _ in column.exported])
    for row in table_list.result_list:
        writer.writerow([_text(value(row)) for column in chosen for _, value in column.exported])
    response = HttpResponse(buffer.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="tables.csv"'
    return response


def _text(value: object) -> object:
    """A value for a spreadsheet, which must not take a text for a formula."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value.startswith(_BEGINS_FORMULA):
        return f"'{value}"
    return "" if value is None else value
