"""The search page, and the objects that the command bar (Ctrl-K) finds."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.dataclasses import SearchResult

from catalog.access import Principal, visible_namespaces, visible_tables
from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.pages import ReadOnlyAdmin
from catalog.admin.paging import query, word
from catalog.errors import CatalogError
from catalog.identifiers import label, lookup
from catalog.models import Namespace, Table, TableFormat
from catalog.services.search import query as search_query
from catalog.services.search import search
from catalog.services.search.matches import Match
from catalog.services.search.search import Result

NAME = "admin:catalog_search"
_PERMISSION = "catalog.view_table"
_IN_BAR = 10
_COLUMNS_IN_BAR = 5
_ICONS = {"namespace": "account_tree", "table": "table", "view": "table_eye"}
_EXAMPLES: Sequence[tuple[str, str]] = (
    (
        "customer ord",
        "Words in names, columns, descriptions and labels; the last word may be a prefix",
    ),
    ('"customer orders"', "An exact phrase"),
    ("column:email", "Tables with this column"),
    (
        "label:pii=yes",
        "Objects that have or inherit the label with this value; label:pii matches any value",
    ),
    ("sensitivity:restricted", "Objects with this sensitivity, or with a column that has it"),
    ("owner:ada", "Objects of an owner"),
    ("in:prod.sales orders", "Objects in a namespace and below"),
    ("format:lance kind:table", "Objects by format and kind: table, view or namespace"),
)


def urls(admin: ReadOnlyAdmin) -> list[URLPattern]:
    """The route of the page, included in the URLs of the label admin."""

    def view(request: HttpRequest) -> HttpResponseBase:
        return _view(admin, request)

    return [path("search/", admin.admin_site.admin_view(view), name="catalog_search")]


def url(text: str = "") -> str:
    address = reverse(NAME)
    return f"{address}?{urlencode({'q': text})}" if text else address


def in_bar(request: HttpRequest, text: str) -> list[SearchResult]:
    """Objects for the command bar, each followed by its columns that match. They are indexed first."""
    try:
        page = search.search(actor=actor(request, _PERMISSION), text=text, limit=_IN_BAR)
    except CatalogError:
        return []
    results = [
        SearchResult(respelled, "did you mean this search?", url(respelled), "spellcheck")
        for respelled in [search_query.respelled(text)]
        if respelled
    ]
    columns = 0
    for result in page.results:
        name, link = label(result.identifier), _page(result)
        others = [match for match in result.matches if match.field != "column"]
        description = " · ".join([_kind(result), *(_plain(match) for match in others[:1])])
        results.append(SearchResult(name, description, link, _ICONS[result.kind]))
        for match in result.matches:
            if match.field == "column" and columns < _COLUMNS_IN_BAR:
                columns += 1
                title, schema = _plain(match), f"{link}?tab=schema"
                results.append(SearchResult(title, f"column of {name}", schema, "view_column"))
    if page.next_page:
        results.append(SearchResult("More results", f"for {text}", url(text), "search"))
    return results


def named(principal: Principal, text: str) -> Iterable[SearchResult]:
    """The table, view or namespace with exactly this name, which may not be indexed yet."""
    name = lookup(text)
    for table in Table.objects.present().filter(visible_tables(principal), digest=name):
        yield SearchResult(
            text, f"{table.get_format_display()} {table.kind}", cells.page_url(table), "table"
        )
    for row in Namespace.objects.live().filter(visible_namespaces(principal), digest=name):
        yield SearchResult(text, "namespace", cells.page_url(row), "account_tree")


def _view(admin: ReadOnlyAdmin, request: HttpRequest) -> HttpResponseBase:
    text = word(request, "q").strip()
    respelled = search_query.respelled(text[: search_query.MAX_QUERY])
    context: dict[str, Any] = {
        "title": "Search",
        "opts": None,  # the path above the page would lead to the labels, which have the route
        "text": text,
        "url": url(),
        "respelled": respelled,
        "respelled_url": url(respelled),
        "examples": [(example, url(example), meaning) for example, meaning in _EXAMPLES],
    }
    status = 200
    if text:
        try:
            page = search.search(
                actor=actor(request, _PERMISSION),
                text=text,
                page_token=word(request, "page") or None,
            )
        except CatalogError as error:
            context["refused"], status = error.message, 400
        else:
            context |= {
                "results": [_shown(result) for result in page.results],
                "is_corrected": page.is_corrected,
                "first": query(request, page=None) if word(request, "page") else None,
                "following": query(request, page=page.next_page) if page.next_page else None,
            }
    return admin.render(request, "admin/catalog/search.html", context, status)


def _shown(result: Result) -> dict[str, Any]:
    return {
        "title": label(result.identifier),
        "url": _page(result),
        "kind": _kind(result),
        "owner": result.owner,
        "matches": [(match.field, _marked(match)) for match in result.matches],
    }


def _kind(result: Result) -> str:
    return f"{TableFormat(result.format).label} {result.kind}" if result.format else result.kind


def _page(result: Result) -> str:
    model = "namespace" if result.kind == "namespace" else "table"
    return reverse(f"admin:catalog_{model}_change", args=[result.pk])


def _marked(match: Match) -> SafeString:
    """The escaped text with the matches marked."""
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<mark>{}</mark>", piece.text) if piece.is_hit else piece.text,)
            for piece in match.parts
        ),
    )


def _plain(match: Match) -> str:
    return cells.clipped("".join(piece.text for piece in match.parts), 80)
