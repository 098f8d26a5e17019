"""Storage by namespace, and the most read and most written tables, on the overview."""

import re
from datetime import UTC, timedelta

from django.utils import timezone

from catalog.access import SYSTEM, On
from catalog.models import Table, TableState, TableSummary, TableUse, TableVersion
from catalog.privileges import parse
from catalog.services.access import grants
from tests.factories import make_table

URL = "/admin/"


def measured(*identifier: str, size: int) -> Table:
    row = make_table(*identifier)
    TableSummary.objects.update_or_create(
        table=row, defaults={"name": ".".join(identifier), "bytes": size}
    )
    return row


def read(row: Table, *, days_ago: int = 0, loads: int = 0, scans: int = 0, queries: int = 0):
    day = timezone.now().astimezone(UTC).date() - timedelta(days=days_ago)
    TableUse.objects.create(table=row, day=day, loads=loads, scans=scans, queries=queries)


def write(row: Table, *, commits: int, days_ago: float = 0):
    last = TableVersion.objects.filter(table=row).count()
    for number in range(last + 1, last + commits + 1):
        version = TableVersion.objects.create(
            table=row, version=number, manifest_path=f"{row.pk}/{number}"
        )
        TableVersion.objects.filter(pk=version.pk).update(
            created_at=timezone.now() - timedelta(days=days_ago)
        )


def rectangles(client) -> list[str]:
    return re.findall(r'<a href="[^"]*" title="([^"]*)">', str(chart(client)))


def chart(client) -> str:
    return client.get(URL).context["storage"].chart


def lines(client, index: int) -> list[tuple[str, str]]:
    panel = client.get(URL).context["busiest"][index]
    return [
        (re.sub("<[^>]*>", "", name), re.sub("<[^>]*>", "", count)) for name, count in panel.rows
    ]


def test_bytes_are_summed_by_top_level_namespace(browser):
    measured("a", "t", size=3 * 1024)
    measured("a", "deep", "t", size=1024)
    measured("b", "t", size=1024)
    measured("b", "empty", size=0)
    dropped = measured("c", "t", size=9999)
    Table.objects.filter(pk=dropped.pk).update(state=TableState.DROPPED, dropped_at=timezone.now())
    assert rectangles(browser) == ["a: 4.0\xa0KB", "b: 1.0\xa0KB"]
    assert "in=a&amp;o=-size" in chart(browser)


def test_a_single_top_level_namespace_is_divided(browser):
    measured("a", "b", "t", size=2048)
    measured("a", "c", "t", size=1024)
    assert rectangles(browser) == ["a.b: 2.0\xa0KB", "a.c: 1.0\xa0KB"]


def test_users_see_the_storage_of_tables_that_they_may_browse(sign_in):
    measured("mine", "t", size=1024)
    measured("hidden", "t", size=2048)
    client = sign_in()
    assert chart(client) == ""
    grants.set_grant(
        actor=SYSTEM,
        on=On.namespace(("mine",)),
        principal="user:bob",
        privileges=parse(("browse",)),
    )
    assert rectangles(client) == ["mine: 1.0\xa0KB"]
    # The numbers of reads and commits need the privilege to read.
    write(Table.objects.get(namespace__name="mine"), commits=1)
    assert lines(client, 1) == []


def test_reads_and_commits_of_a_week_are_counted(browser):
    much, little, old = (make_table("x", name) for name in ("much", "little", "old"))
    read(much, loads=3, scans=2, queries=4)
    read(much, days_ago=6, loads=1)
    read(little, loads=1)
    read(old, days_ago=7, loads=100)
    write(much, commits=1)
    write(little, commits=2)
    write(old, commits=5, days_ago=8)
    assert lines(browser, 0) == [("x.much", "7"), ("x.little", "1")]
    assert lines(browser, 1) == [("x.little", "2"), ("x.much", "1")]


def test_users_see_the_activity_of_tables_that_they_may_read(sign_in):
    mine, hidden = make_table("mine", "t"), make_table("hidden", "t")
    for row in (mine, hidden):
        read(row, loads=1)
        write(row, commits=1)
    client = sign_in()
    grants.set_grant(
        actor=SYSTEM,
        on=On.namespace(("mine",)),
        principal="user:bob",
        privileges=parse(("read",)),
    )
    assert lines(client, 0) == lines(client, 1) == [("mine.t", "1")]
