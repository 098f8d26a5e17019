"""The tiles at the top of a table's page: figures with their course, the last commit, and reads."""

import re
from datetime import UTC, timedelta

import pyarrow as pa
import pytest
from django.utils import timezone

from catalog.access import SYSTEM, On
from catalog.models import Table, TableHealth, TableUse
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.lance import data as lance_data
from tests.catalog.admin.site.test_growth import add_measurements
from tests.factories import make_lance_table

pytestmark = pytest.mark.usefixtures("warehouse", "db")
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def table() -> Table:
    make_lance_table(("x", "t"), ROWS)
    lance_data.insert(actor=SYSTEM, table=("x", "t"), data=ROWS.to_reader())
    row = Table.objects.get(name="t")
    TableHealth.objects.all().delete()
    return row


def tiles(client, row: Table) -> dict[str, tuple[str, str]]:
    """The text and the label of the small chart of each tile."""
    page = client.get(f"/admin/catalog/table/{row.pk}/change/").context["page"]
    return {
        tile.title: (
            " ".join(re.sub("<[^>]*>", "", f"{tile.value} {tile.note}").split()),
            "".join(re.findall('aria-label="([^"]*)"', str(tile.spark))),
        )
        for tile in page.tiles
    }


def test_figures_have_the_course_of_the_measurements(browser, table):
    add_measurements(
        table,
        (3, {"rows": 5, "bytes": 1024, "files": 4}),
        (2, {"error": "NoSuchFile"}),
        (1, {"rows": 1200, "bytes": 3072, "files": 2}),
    )
    shown = tiles(browser, table)
    assert list(shown) == ["Rows", "Size", "Files", "Last commit", "Health", "Reads"]
    assert shown["Rows"] == (
        "1,200",
        "Rows: 5 at first, 1,200 at last, at most 1,200",
    )
    assert shown["Size"][1] == "Size: 1.0\xa0KB at first, 3.0\xa0KB at last, at most 3.0\xa0KB"
    assert shown["Health"][0].endswith(" measured 1 day ago")
    assert shown["Files"][1] == "Files: 4 at first, 2 at last, at most 4"


def test_a_failed_measurement_has_no_figures(browser, table):
    add_measurements(table, (2, {"rows": 5, "bytes": 1, "files": 1}), (1, {"error": "NoSuchFile"}))
    assert tiles(browser, table)["Rows"][0].endswith("not measured yet")


def test_commits_are_counted_by_day(browser, table):
    versions = table.versions.order_by("version")
    first = versions[0]
    type(first).objects.filter(pk=first.pk).update(created_at=timezone.now() - timedelta(days=5))
    text, course = tiles(browser, table)["Last commit"]
    assert "by system" in text
    assert course == "Commits per day: 1 at first, 1 at last, at most 1"


def test_reads_of_the_last_month_are_counted(browser, table):
    today = timezone.now().astimezone(UTC).date()
    for days, loads, scans, queries in ((0, 3, 2, 4), (29, 10, 0, 0), (30, 500, 0, 0)):
        TableUse.objects.create(
            table=table,
            day=today - timedelta(days=days),
            loads=loads,
            scans=scans,
            queries=queries,
        )
    shown = tiles(browser, table)["Reads"]
    assert shown == ("16 in the last 30 days", "Reads per day: 10 at first, 6 at last, at most 10")


def test_a_user_who_may_only_browse_sees_no_figures(client, django_user_model, table):
    user = django_user_model.objects.create_user("eve", is_staff=True)
    grants.set_grant(
        actor=SYSTEM,
        on=On.table(table.identifier),
        principal="user:eve",
        privileges=parse(("browse",)),
    )
    client.force_login(user)
    assert tiles(client, table) == {}
