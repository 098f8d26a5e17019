"""Growth of the catalog on the first page: sums of measured figures over time."""

import re
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.access import SYSTEM, On
from catalog.models import Table, TableHealth, TableState, TableSummary
from catalog.privileges import Privilege
from catalog.services.access import grants
from catalog.services.tables import summaries
from tests.factories import make_table

URL = "/admin/"


def create_table(*identifier: str, days_ago: float, dropped: float | None = None) -> Table:
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
    row.refresh_from_db()
    return row


def add_measurements(row: Table, *figures: tuple[float, dict[str, object]]) -> None:
    """Add measurements, oldest first, as pairs of an age in days and statistics, and the summary."""
    for position, (days_ago, statistics) in enumerate(figures, 1):
        TableHealth.objects.create(
            table=row,
            measured_at=timezone.now() - timedelta(days=days_ago),
            is_newest=position == len(figures),
            score=90,
            statistics=statistics,
        )
    if row.state != TableState.DROPPED:
        TableSummary.objects.create(
            table=row, name=row.name, **summaries.figures(90, figures[-1][1])
        )


def statistics(rows: int, size: int = 0) -> dict[str, object]:
    return {"rows": rows, "bytes": size}


def points(chart: str) -> list[tuple[float, str]]:
    """The points of a chart, as pairs of an age in days and a value."""
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
    add_measurements(
        create_table("a", "grown", days_ago=50),
        (20, statistics(100, 1024)),
        (4.5, statistics(300, 4096)),
    )
    # Only the newest measurement exists.
    add_measurements(create_table("a", "young", days_ago=10.5), (0, statistics(50)))
    add_measurements(create_table("b", "gone", days_ago=60, dropped=2.5), (40, statistics(1_000)))
    add_measurements(
        create_table("b", "broken", days_ago=25.5),
        (15.5, statistics(7)),
        (1, {"error": "No such file"}),
    )


def test_figures_are_added_up_at_each_time(browser, catalog):
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


def test_a_longer_period_may_be_selected(browser, catalog):
    page = browser.get(f"{URL}?days=90")
    values = points(page.context["growth"].amounts[0].chart)
    assert [at for at, _ in values] == list(range(90, -1, -3))
    assert (dict(values)[63], dict(values)[57], dict(values)[48]) == ("0", "1,000", "1,100")
    assert '"m-on" aria-current="page">90 days</a>' in page.content.decode()
    for nonsense in ("days=1", "days=x", "days=-90"):
        assert browser.get(f"{URL}?{nonsense}").context["days"] == 30


@pytest.mark.parametrize("few", [20_000, 0])
def test_only_tables_that_may_be_browsed_are_added_up(sign_in, catalog, monkeypatch, few):
    monkeypatch.setattr("catalog.admin.actor._MOST_FEW", few)
    client = sign_in()
    assert client.get(URL).context["growth"].amounts == ()
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(("a",)), principal="user:bob", privileges=Privilege.BROWSE
    )
    context = client.get(URL).context
    assert context["growth"].amounts[0].now == "350"
    assert (context["health"].tables, context["health"].rows) == (2, 350)
    assert "additions" not in context


def test_an_empty_catalog_explains_measurements(browser):
    page = browser.get(URL)
    assert page.context["growth"].amounts == ()
    assert "No measurements of tables that you may browse." in page.content.decode()


def test_an_empty_table_has_a_flat_line(browser):
    add_measurements(create_table("a", "t", days_ago=40), (1, statistics(0)))
    rows, size = browser.get(URL).context["growth"].amounts
    assert {value for _, value in points(rows.chart)} == {"0"}
    assert (rows.now, size.now.replace("\xa0", " ")) == ("0", "0 bytes")
    assert size.change.startswith("no change since ")


def test_only_the_largest_tables_are_added_up_with_a_note(browser, catalog, monkeypatch):
    monkeypatch.setattr("catalog.admin.growth.LARGEST", 1)
    growth = browser.get(URL).context["growth"]
    assert growth.amounts[0].now == "300"  # of the present tables, the largest in bytes
    assert growth.note == "Shows the 1 largest tables."


def test_growth_takes_a_fixed_number_of_statements(browser, catalog):
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            browser.get(URL)
        return len(
            [statement for statement in queries if "catalog_tablehealth" in statement["sql"]]
        )

    few = cost()
    for number in range(20):
        add_measurements(
            create_table("c", f"t{number}", days_ago=9),
            (8, statistics(1)),
            (2, statistics(2)),
            (1, statistics(3)),
        )
    # One for the dropped tables, one for the course, and one for the tables with the lowest scores.
    assert cost() == few == 3
    assert browser.get(URL).context["growth"].amounts[0].now == "417"
