"""Reads of tables are counted in memory and added to the database."""

from datetime import timedelta

import pyarrow as pa
import pytest
from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.models import TableUse
from catalog.privileges import Privilege
from catalog.services.iceberg import metrics_reports
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.lance import describe, queries
from catalog.services.tables import usage
from catalog.services.tables.usage import Read
from tests.factories import make_iceberg_table, make_lance_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
ADA = Principal("ada", Privilege.ALL)


@pytest.fixture(autouse=True)
def _empty():
    usage._counts.clear()
    yield
    usage._counts.clear()


def stored() -> list[tuple[int, int, int]]:
    return list(TableUse.objects.order_by("pk").values_list("loads", "scans", "queries"))


def test_reads_of_a_lance_table_are_counted():
    make_lance_table(("ws", "t"), pa.table({"id": [1]}))
    describe.describe_table(actor=ADA, table=("ws", "t"))
    queries.count_rows(actor=ADA, table=("ws", "t"))
    queries.count_rows(actor=ADA, table=("ws", "t"), predicate="id > 0")
    queries.count_rows(actor=SYSTEM, table=("ws", "t"))
    assert usage.flush() == 1
    assert stored() == [(1, 0, 2)]
    assert usage.flush() == 0


def test_loads_and_scan_reports_of_an_iceberg_table_are_counted():
    make_iceberg_table("ws", "t")
    for _ in range(2):
        iceberg_tables.load_table(actor=ADA, table=("ws", "t"))
    report = {"table-name": "ws.t", "snapshot-id": -1, "metrics": {}}
    scan = {"report-type": "scan-report", "schema-id": 0, "filter": True}
    scan |= {"projected-field-ids": [], "projected-field-names": []}
    commit = {"report-type": "commit-report", "sequence-number": 0, "operation": "append"}
    for more in (scan, commit):
        metrics_reports.report_metrics(actor=ADA, table=("ws", "t"), report=report | more)
    usage.flush()
    assert stored() == [(2, 1, 0)]


def test_counts_of_processes_are_added():
    make_table("ws", "t")
    for _ in range(2):
        usage.count(ADA, ("ws", "t"), Read.LOAD)
        usage.count(ADA, ("ws", "gone"), Read.LOAD)
        usage.flush()
    assert stored() == [(2, 0, 0)]


def put(row, days_ago: int, **counts: int) -> None:
    day = timezone.now().date() - timedelta(days=days_ago)
    TableUse.objects.create(table=row, day=day, **counts)


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_an_outage_of_the_database_does_not_end_the_thread(monkeypatch, caplog, error):
    def fail() -> int:
        raise error("the server is away")

    monkeypatch.setattr(usage, "flush", fail)
    monkeypatch.setattr(connections, "close_all", lambda: None)  # the test's own connection
    usage.write()
    assert caplog.messages == ["Reads of tables could not be counted"]


def test_the_reads_per_day_are_those_of_the_last_week():
    row = make_table("ws", "t")
    row.created_at = timezone.now() - timedelta(days=30)
    assert usage.reads_per_day(row) is None, "nothing was ever counted"
    other = make_table("ws", "other")
    put(other, 3, loads=1)
    assert usage.reads_per_day(row) is None, "counted for less than a week"
    put(other, 10, loads=1)
    assert usage.reads_per_day(row) == 0
    put(row, 8, loads=700)
    put(row, 2, loads=10, scans=8, queries=20)
    put(row, 1, loads=4)
    assert usage.reads_per_day(row) == 4  # 28 scans and queries in 7 days
    row.created_at = timezone.now() - timedelta(days=3)
    assert usage.reads_per_day(row) == 7


def test_old_counts_are_deleted():
    row = make_table("ws", "t")
    put(row, 91, loads=1)
    put(row, 89, loads=1)
    assert usage.delete_old() == 1
    assert TableUse.objects.count() == 1
