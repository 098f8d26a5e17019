"""Request parameters, and pages of lists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Func, IntegerField, QuerySet
from django.http import HttpRequest
from unfold import paginator

T = TypeVar("T")

PANEL_SIZE = 25
COUNT_LIMIT = 1000
"""Limit of the counts beside a name: a namespace may hold a million tables."""


class InfinitePaginator(paginator.InfinitePaginator):  # type: ignore[misc]
    """Pages without a total count. The templates know it by the name of its base."""

    count = 10_000  # limited, because a large offset is slow


@dataclass(frozen=True)
class ListPage(Generic[T]):
    """A page of a list, and the URLs of its first and next pages."""

    items: Sequence[T]
    first: str | None
    following: str | None


def query(request: HttpRequest, **changes: object) -> str:
    """The query string of the request with these parameters set, or removed where None."""
    parameters: dict[str, object] = {key: request.GET[key] for key in request.GET}
    parameters.update(changes)
    return "?" + urlencode({key: text for key, text in parameters.items() if text is not None})


def number(request: HttpRequest, name: str, default: int | None = None) -> int | None:
    """A parameter as a row number; the default if it is missing or not a number."""
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default


def word(request: HttpRequest, name: str) -> str:
    """A parameter for comparison with a column, without NUL, which PostgreSQL does not accept."""
    return request.GET.get(name, "").replace("\x00", "")


def paginate(
    request: HttpRequest,
    items: Sequence[T],
    key: Callable[[T], str],
    parameter: str,
    size: int = PANEL_SIZE,
) -> ListPage[T]:
    """A page of a list in memory, after the item whose key the parameter holds.

    The key, unlike an offset, stays valid when items are added at the front of the list.
    """
    after = request.GET.get(parameter)
    start = 0
    if after:
        # The last of several items with this key, so that every page advances.
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
    """Annotation with the number of a subquery's rows, at most one more than the limit."""
    return Func(
        ArraySubquery(rows.values("pk")[: limit + 1]),
        function="CARDINALITY",
        output_field=IntegerField(),
    )
