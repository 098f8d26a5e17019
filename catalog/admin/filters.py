"""Filters of lists."""

from collections.abc import Sequence
from typing import Any

from django.db.models import Q, QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter


class SingleChoiceFilter(DropdownFilter):  # type: ignore[misc]
    """A filter with a single choice, ``value_text``; ``condition`` selects the rows."""

    value_text: tuple[str, str]

    def condition(self) -> Q:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [self.value_text]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(self.condition()) if self.value() == self.value_text[0] else queryset
