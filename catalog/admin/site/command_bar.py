"""The command bar (Ctrl-K): pages, actions, objects, columns, labels and people that the user may open.

It replaces the search of the theme, which caches results: privileges may change at any time.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from django.contrib import admin
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from unfold.dataclasses import SearchResult

from catalog.admin import cells
from catalog.admin.actor import actor
from catalog.admin.paging import word
from catalog.admin.search import search
from catalog.admin.site import glossary, navigation
from catalog.models import ApprovalRequest, LabelDefinition, Principal

_LONGEST = 500  # characters of a query
_MAX_PAGES = 8
_MAX_LABELS = 5
_MAX_PRINCIPALS = 5


def urls() -> list[URLPattern]:
    """The route takes the place of the one of the theme, to which its template refers."""
    return [path("", admin.site.admin_view(_view), name="command-bar")]


def _view(request: HttpRequest) -> HttpResponseBase:
    text = word(request, "s").strip()[:_LONGEST]
    context = {
        "text": text,
        "results": _results(request, text) if text else [],
        "search_url": search.url(text),
    }
    return TemplateResponse(request, "unfold/helpers/command_results.html", context)


def _results(request: HttpRequest, text: str) -> list[SearchResult]:
    """Results of every kind, without duplicates. Twelve statements at most, and three per page to create."""
    parts: list[Iterable[SearchResult]] = [
        search.named(actor(request), text),
        islice(_pages(request, text), _MAX_PAGES),
        islice(_actions(request, text), _MAX_PAGES),
        search.in_bar(request, text),
        _labels(request, text),
        _people(request, text),
    ]
    unique: dict[tuple[str, str], SearchResult] = {}
    for results in parts:
        for result in results:
            unique.setdefault((result.link, result.title), result)
    return list(unique.values())


def _matches(text: str, title: str) -> bool:
    """True if each word of the query begins a word of the title."""
    words = title.lower().replace("-", " ").split()
    return all(
        any(candidate.startswith(part) for candidate in words) for part in text.lower().split()
    )


def _pages(request: HttpRequest, text: str) -> Iterator[SearchResult]:
    for title, icon, link, group in navigation.pages(request):
        if _matches(text, f"{title} {group}"):
            yield SearchResult(title, f"page {group}".strip(), link, icon)
    for entry in glossary.entries():
        if _matches(text, entry.word):
            yield SearchResult(entry.word, "glossary", glossary.url(entry), "help")


def _actions(request: HttpRequest, text: str) -> Iterator[SearchResult]:
    for title, name in (
        ("Request access", "my-access-request"),
        ("Create my API key", "my-access-key"),
        ("Change my password", "admin:password_change"),
    ):
        if _matches(text, title):
            yield SearchResult(title, "action", reverse(name), "bolt")
    if _matches(text, "Decide approvals that wait for me"):
        link = cells.list_url(ApprovalRequest, "waiting=me")
        yield SearchResult("Decide approvals", "action", link, "bolt")
    for model, model_admin in navigation.admins():
        title = f"Create {model._meta.verbose_name}"
        if _matches(text, title) and model_admin.has_add_permission(request):
            link = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_add")
            yield SearchResult(title, "action", link, "bolt")


def _labels(request: HttpRequest, text: str) -> Iterator[SearchResult]:
    """Labels, which everybody may know; for users who may not open their pages, a search for objects."""
    opens = navigation.may_see(request, LabelDefinition)
    rows = LabelDefinition.objects.filter(key__icontains=text).order_by("key")[:_MAX_LABELS]
    for row in rows:
        link = cells.page_url(row) if opens else search.url(f"label:{row.key}")
        yield SearchResult(row.key, "label", link, "label")


def _people(request: HttpRequest, text: str) -> Iterator[SearchResult]:
    """Principals, for users who may open their pages."""
    if not navigation.may_see(request, Principal):
        return
    rows = Principal.objects.filter(name__icontains=text).order_by("name")[:_MAX_PRINCIPALS]
    for row in rows:
        yield SearchResult(row.name, row.get_kind_display(), cells.page_url(row), "badge")
