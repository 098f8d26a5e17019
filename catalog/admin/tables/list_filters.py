"""The filters of the list of tables."""

from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from unfold.contrib.filters.admin import DropdownFilter, TextFilter

from catalog.admin.score_charts import FAIR, GOOD
from catalog.identifiers import lookup
from catalog.models import LabelAssignment, Table, TableHealth, TableState

GRADES = {
    "poor": f"Below {FAIR}",
    "fair": f"{FAIR} to {GOOD - 1}",
    "good": f"{GOOD} or more",
    "unknown": "Not measured",
}
"""The values of the filter by health."""
BOUNDS = {"poor": (0, FAIR), "fair": (FAIR, GOOD), "good": (GOOD, 101)}


class StateFilter(DropdownFilter):  # type: ignore[misc]
    title = "state"
    parameter_name = "state"
    all_option = ["", "Declared and live"]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            *((state.value, state.label) for state in TableState),
            ("all", "All, including dropped"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Table]) -> QuerySet[Table]:
        chosen = self.value()
        if chosen == "all":
            return queryset
        if chosen in TableState.values:
            return queryset.filter(state=chosen)
        return queryset.exclude(state=TableState.DROPPED)


def excludes_dropped(request: HttpRequest) -> bool:
    """True if the chosen state excludes dropped tables."""
    return request.GET.get(StateFilter.parameter_name) not in {"all", TableState.DROPPED}


def is_of_dropped(request: HttpRequest) -> bool:
    """True if the list has dropped tables only."""
    return request.GET.get(StateFilter.parameter_name) == TableState.DROPPED


class _Text(TextFilter):  # type: ignore[misc]
    """A filter whose value is a text, without NUL, which PostgreSQL does not accept."""

    @property
    def text(self) -> str:
        return str(self.value() or "").replace("\x00", "").strip()


class NamespaceFilter(_Text):
    title = "namespace, such as nyc.weather"
    parameter_name = "in"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Table]) -> QuerySet[Table]:
        if not self.text:
            return queryset
        return queryset.filter(namespace__digest=lookup(self.text))


class OwnerFilter(_Text):
    title = "owner, such as user:ada"
    parameter_name = "owner"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Table]) -> QuerySet[Table]:
        return queryset.filter(owner=self.text) if self.text else queryset


class HealthFilter(DropdownFilter):  # type: ignore[misc]
    title = "health"
    parameter_name = "health"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(GRADES.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Table]) -> QuerySet[Table]:
        chosen = self.value()
        if chosen not in GRADES:
            return queryset
        measured = TableHealth.objects.newest().filter(
            table=OuterRef("pk"), statistics__has_key="rows"
        )
        if chosen == "unknown":
            return queryset.filter(~Exists(measured), kind="table")
        low, high = BOUNDS[chosen]
        return queryset.filter(Exists(measured.filter(score__gte=low, score__lt=high)))


def is_of_unmeasured(request: HttpRequest) -> bool:
    """True if the list has tables without a measurement only."""
    return request.GET.get(HealthFilter.parameter_name) == "unknown"


class LabelFilter(_Text):
    title = "label, such as pii or tier=gold"
    parameter_name = "label"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Table]) -> QuerySet[Table]:
        if not self.text:
            return queryset
        key, has_value, value = self.text.partition("=")
        condition = Q(definition__key=key.strip(), column="", table__isnull=False)
        if has_value:
            condition &= Q(value=value.strip())
        return queryset.filter(pk__in=LabelAssignment.objects.filter(condition).values("table"))
