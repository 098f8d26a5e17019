"""How the catalog grew, on the first page: figures that were measured, added up at each point of time."""

import re
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.access import SYSTEM, On
from catalog.models import Table, TableHealth, TableState
from catalog.privileges import Privilege
from catalog.services.access import grants
from tests.factories import make_table

URL = "/admin/"


def made(*identifier: str, days_ago: float, dropped: float | None = None) -> Table:
    row = make_table(*identifier)
    now = timezone.now()
    Table.objects.filter(pk=row.pk).update(
        created_at=now - timedelta(days=days_ago),
        **(
            {}
            if dropped is None
            else {"state": TableState.DROPPED, "dropped_at": now - timedelta(days=dropped)}
        ),
    )
    return row


def measured(row: Table, *figures: tuple[float, dict[str, object]]) -> None:
    """Measurements, oldest first: how many days ago, and what was found."""
    for position, (days_ago, statistics) in enumerate(figures, 1):
        TableHealth.objects.create(
            table=row,
            measured_at=timezone.now() - timedelta(days=days_ago),
            is_newest=position == len(figures),
            score=90,
            statistics=statistics,
        )


def of(rows: int, size: int = 0) -> dict[str, object]:
    return {"rows": rows, "bytes": size}


def points(chart: str) -> list[tuple[float, str]]:
    """How many days ago, and what a chart says of then."""
    now = timezone.now()
    titles = re.findall(r"<title>([\d-]+ [\d:]+) UTC: ([^<]*)</title>", chart)
    return [
        (
            round((now.replace(tzinfo=None) - datetime.fromisoformat(at)).total_seconds() / 86400),
            value,
        )
        for at, value in titles
    ]


@pytest.fixture
def catalog(db: None, warehouse: object) -> None:
    measured(made("a", "grown", days_ago=50), (20, of(100, 1024)), (4.5, of(300, 4096)))
    # The measurements before its newest are forgotten, or nothing but it is known yet.
    measured(made("a", "young", days_ago=10.5), (0, of(50)))
    measured(made("b", "gone", days_ago=60, dropped=2.5), (40, of(1_000)))
    measured(made("b", "broken", days_ago=25.5), (15.5, of(7)), (1, {"error": "No such file"}))


def test_figures_are_added_up_at_each_point_of_time(browser, catalog):
    growth = browser.get(URL).context["growth"]
    rows, size = growth.amounts
    values = dict(points(rows.chart))
    assert len(values) == 31
    assert {at: values[at] for at in (30, 26, 25, 11, 10, 5, 4, 3, 2, 0)} == {
        30: "1,100",
        26: "1,100",
        25: "1,107",
        11: "1,107",
        10: "1,157",
        5: "1,157",
        4: "1,357",
        3: "1,357",
        2: "357",
        0: "357",
    }
    assert (rows.now, rows.change.split(" since ")[0]) == ("357", "−743")
    assert size.now.replace("\xa0", " ") == "4.0 KB"
    assert size.change.replace("\xa0", " ").startswith("+3.0 KB since ")
    assert growth.note == ""


def test_a_longer_period_is_asked_for(browser, catalog):
    page = browser.get(f"{URL}?days=90")
    values = points(page.context["growth"].amounts[0].chart)
    assert [at for at, _ in values] == list(range(90, -1, -3))
    assert (dict(values)[63], dict(values)[57], dict(values)[48]) == ("0", "1,000", "1,100")
    assert '"m-on" aria-current="page">90 days</a>' in page.content.decode()
    for nonsense in ("days=1", "days=x", "days=-90"):
        assert browser.get(f"{URL}?{nonsense}").context["days"] == 30


def test_only_what_may_be_browsed_is_added_up(sign_in, catalog):
    client = sign_in()
    assert client.get(URL).context["growth"].amounts == ()
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(("a",)), principal="user:bob", privileges=Privilege.BROWSE
    )
    context = client.get(URL).context
    assert context["growth"].amounts[0].now == "350"
    assert "additions" not in context


def test_an_empty_catalog_is_told_how_figures_come(browser):
    page = browser.get(URL)
    assert page.context["growth"].amounts == ()
    assert "No measurements." in page.content.decode()


def test_an_empty_table_draws_a_flat_line(browser):
    measured(made("a", "t", days_ago=40), (1, of(0)))
    rows, size = browser.get(URL).context["growth"].amounts
    assert {value for _, value in points(rows.chart)} == {"0"}
    assert (rows.now, size.now.replace("\xa0", " ")) == ("0", "0 bytes")
    assert size.change.startswith("no change since ")


def test_the_largest_are_told_and_it_is_said(browser, catalog, monkeypatch):
    monkeypatch.setattr("catalog.admin.growth.LARGEST", 1)
    growth = browser.get(URL).context["growth"]
    assert growth.amounts[0].now == "300"  # of those there are; the largest in bytes
    assert growth.note == "Shows the 1 largest of 4 tables."
    monkeypatch.setattr("catalog.admin.growth.MAX_ROWS", 2)
    assert (
        "of the 2 measured tables with the lowest health" in browser.get(URL).context["growth"].note
    )


def test_it_costs_two_statements_whatever_there_is(browser, catalog):
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            browser.get(URL)
        return len(
            [statement for statement in queries if "catalog_tablehealth" in statement["sql"]]
        )

    few = cost()
    for number in range(20):
        measured(made("c", f"t{number}", days_ago=9), (8, of(1)), (2, of(2)), (1, of(3)))
    assert cost() == few == 4  # and one for health, one for the tables that need work most
    assert browser.get(URL).context["growth"].amounts[0].now == "417"
