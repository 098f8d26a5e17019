"""Pages of lists."""

from typing import TypeVar

from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)


def page_of(rows: QuerySet[M], size: int) -> tuple[list[M], M | None]:
    """The first rows, and the last one of them if there are more."""
    page = list(rows[: size + 1])
    return page[:size], page[size - 1] if len(page) > size else None
