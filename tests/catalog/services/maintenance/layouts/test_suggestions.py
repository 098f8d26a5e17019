"""Sort orders that the filters of reported scans suggest."""

from typing import Any

import pytest

from catalog.layouts import Strategy
from catalog.models import MetricsReport, Table
from catalog.services.maintenance.layouts import suggestions
from catalog.services.maintenance.layouts.suggestions import Suggestion
from tests.factories import make_iceberg_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
FILES = 100


def eq(column: str) -> dict[str, Any]:
    return {"type": "eq", "term": column, "value": "(hash-1)"}


def both(left: Any, right: Any) -> dict[str, Any]:
    return {"type": "and", "left": left, "right": right}


ABOVE = {"type": "gt", "term": "id", "value": "(2-digit-int)"}
ANY_OF_TEN = {"type": "in", "term": "name", "values": ["(hash-1)"] * 10}


def suggest(*filters: tuple[Any, int], read: int = 80) -> Suggestion | None:
    make_iceberg_table("ws", "t")
    row = Table.objects.get()
    MetricsReport.objects.bulk_create(
        MetricsReport(
            table=row,
            kind="scan-report",
            report={
                "report-type": "scan-report",
                "filter": predicate,
                "metrics": {"result-data-files": {"unit": "count", "value": read}},
            },
        )
        for predicate, number in filters
        for _ in range(number)
    )
    return suggestions.suggest(row, FILES)


def test_one_column_in_most_filters_suggests_a_sort() -> None:
    suggestion = suggest((both(eq("name"), ABOVE), 18), (True, 2))
    assert suggestion is not None
    assert (suggestion.layout.strategy, suggestion.layout.text) == (Strategy.SORT, "name")
    assert (suggestion.scans, suggestion.filtered) == (20, {"name": 18, "id": 18})
    assert suggestion.skipped == pytest.approx(0.2)
    # 18 scans read one file of a hundred, two read as many as before.
    assert suggestion.expected == pytest.approx((18 * 0.99 + 2 * 0.2) / 20)


def test_several_columns_suggest_a_zorder() -> None:
    suggestion = suggest((eq("name"), 12), (eq("id"), 10))
    assert suggestion is not None
    assert (suggestion.layout.strategy, suggestion.layout.text) == (Strategy.ZORDER, "name, id")
    # A value of one of two columns is in a tenth of the files.
    assert suggestion.expected == pytest.approx(0.9)


def test_ranges_promise_nothing() -> None:
    suggestion = suggest((ABOVE, 20))
    assert suggestion is not None
    assert suggestion.expected == suggestion.skipped


def test_a_list_of_values_is_in_as_many_files() -> None:
    suggestion = suggest((ANY_OF_TEN, 20), read=100)
    assert suggestion is not None
    assert (suggestion.skipped, suggestion.expected) == (0, pytest.approx(0.9))


@pytest.mark.parametrize(
    "predicate",
    [
        True,
        None,
        {"type": "or", "left": eq("name"), "right": eq("id")},
        {"type": "not", "child": eq("name")},
        {"type": "eq", "term": {"type": "transform", "transform": "day", "term": "at"}, "value": 1},
        eq("dropped"),
        {"type": "and", "left": 7, "right": ["x"]},
        {"type": "not-eq", "term": "name", "value": 1},
    ],
)
def test_filters_that_suggest_nothing(predicate: Any) -> None:
    assert suggest((predicate, 30)) is None


@pytest.mark.parametrize(("filtering", "others"), [(19, 0), (5, 25)])
def test_few_scans_and_rare_columns_suggest_nothing(filtering: int, others: int) -> None:
    assert suggest((eq("name"), filtering), (True, others)) is None
