"""Request parameters, and pages of lists: which rows a page shows, and the links to the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Func, IntegerField, QuerySet
from django.http import HttpRequest

T = TypeVar("T")

PANEL_SIZE = 25


COUNT_LIMIT = 1000
"""Counts beside a name are not taken further: a namespace may hold a million tables."""


@dataclass(frozen=True)
class ListPage(Generic[T]):
    """A page of a list, and where its first and next pages are."""

    items: Sequence[T]
    first: str | None
    following: str | None


def query(request: HttpRequest, **changes: object) -> str:
    """The request's query with these parameters set, or removed where None."""
    parameters: dict[str, object] = {key: request.GET[key] for key in request.GET}
    parameters.update(changes)
    return "?" + urlencode({key: text for key, text in parameters.items() if text is not None})


def number(request: HttpRequest, name: str, default: int | None = None) -> int | None:
    """A parameter that is a number of a row; the default for whatever else stands there."""
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default


def word(request: HttpRequest, name: str) -> str:
    """A parameter that is compared with a column: PostgreSQL knows no NUL."""
    return request.GET.get(name, "").replace("\x00", "")


def paginate(
    request: HttpRequest,
    items: Sequence[T],
    key: Callable[[T], str],
    parameter: str,
    size: int = PANEL_SIZE,
) -> ListPage[T]:
    """A page of a list that is at hand: what comes after the item whose key the parameter tells.

    By key, so that what is added in front of the list meanwhile moves nothing.
    """
    after = request.GET.get(parameter)
    start = 0
    if after:
        # The last of several with this key: then every page leads on.
        indexes = range(len(items) - 1, -1, -1)
        start = next((index + 1 for index in indexes if key(items[index]) == after), 0)
    page_items = items[start : start + size]
    return ListPage(
        items=page_items,
        first=query(request, **{parameter: None}) if start else None,
        following=(
            query(request, **{parameter: key(page_items[-1])})
            if start + size < len(items)
            else None
        ),
    )


def count_up_to(rows: QuerySet[Any], limit: int = COUNT_LIMIT) -> Func:
    """The number of a subquery's rows, at most one more than the limit, as an annotation."""
    return Func(
        ArraySubquery(rows.values("pk")[: limit + 1]),
        function="CARDINALITY",
        output_field=IntegerField(),
    )
