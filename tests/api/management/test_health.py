"""Health of tables, and maintenance plans."""

from datetime import timedelta

import pyarrow as pa
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import Table, TableHealth
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.tables import table_operations
from tests.api.management.client import Management
from tests.factories import (
    make_iceberg_table,
    make_lance_table,
    make_root,
    make_table,
    make_version,
    unchanged,
)


def put(table: Table, score: int, *, ago: timedelta = timedelta(0), **statistics) -> TableHealth:
    return TableHealth.objects.create(
        table=table,
        measured_at=timezone.now() - ago,
        is_newest=not ago,
        score=score,
        statistics=statistics,
        planned=[],
    )


def live(*name: str) -> Table:
    row = make_table(*name)
    make_version(name, 1)
    return row


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()


# --- the list ---------------------------------------------------------------------------------------


@pytest.mark.operation("ListHealth")
def test_the_list_has_pages_with_the_lowest_scores_first(reader: Management):
    for name, score in (("a", 90), ("b", 10), ("c", 10), ("d", 0), ("e", 100)):
        put(live("ws", name), score, **({"error": "It is away"} if name == "d" else {}))
    listed, token = [], ""
    while token is not None:
        page = reader.get(f"health?limit=2&page_token={token}")
        assert len(page["tables"]) <= 2
        listed += page["tables"]
        token = page["next_page_token"]
    assert ["".join(row["table"]) for row in listed] == ["wsd", "wsb", "wsc", "wsa", "wse"]
    assert listed[0] == {
        "table": ["ws", "d"],
        "format": "lance",
        "measured_at": listed[0]["measured_at"],
        "score": 0,
        "costs": [],
        "planned": [],
        "files_gone": 0,
        "bytes_read": 0,
        "error": "It is away",
    }
    assert listed[1]["error"] == ""
    assert reader.get("health?limit=5")["next_page_token"] is None


@pytest.mark.operation("ListHealth")
def test_the_list_is_filtered(reader: Management):
    put(live("one", "a"), 50)
    put(live("one", "inner", "b"), 60)
    put(live("onemore", "c"), 70)
    make_iceberg_table("one", "i")
    put(Table.objects.get(name="i"), 80)

    def names(query: str) -> str:
        return "".join(row["table"][-1] for row in reader.get(f"health?{query}")["tables"])

    assert names("") == "abci"
    assert names("namespace=one") == "abi"
    assert names("namespace=one$inner") == "b"
    assert names("namespace=$") == "abci"
    assert names("namespace=one:inner&delimiter=:") == "b"
    assert names("format=iceberg") == "i"
    assert names("format=lance&max_score=60") == "ab"
    assert names("max_score=0") == ""
    assert names("namespace=onemore&max_score=70") == "c"
    commit([table_operations.DropTable(table=("one", "a"))], actor=SYSTEM)
    assert names("") == "bci"


def test_a_page_takes_a_fixed_number_of_statements(reader: Management):
    reader.get("rules")  # the key is in the cache now
    for n in range(20):
        put(live("ws", f"t{n}"), n)
    with CaptureQueriesContext(connection) as statements:
        assert len(reader.get("health")["tables"]) == 20
    assert len(statements) == 1


# --- one table --------------------------------------------------------------------------------------


@pytest.mark.operation("GetTableHealth")
def test_the_health_of_a_table_has_a_series(reader: Management):
    row = live("ws", "t")
    assert reader.get("tables/ws$t/health") == {"newest": None, "series": []}
    put(row, 40, ago=timedelta(days=40), files=1)
    put(row, 20, ago=timedelta(days=2), files=200, small_files=190, rows=5)
    put(row, 0, ago=timedelta(days=1), error="It is away")
    put(row, 95, files=2, bytes=10, versions=3)
    health = reader.get("tables/ws$t/health")
    assert health["newest"]["score"] == 95
    assert health["newest"]["statistics"] == {"files": 2, "bytes": 10, "versions": 3}
    assert [point["score"] for point in health["series"]] == [20, 0, 95]
    assert health["series"][0] == {
        "measured_at": health["series"][0]["measured_at"],
        "score": 20,
        "rows": 5,
        "bytes": None,
        "files": 200,
        "small_files": 190,
        "deleted_rows": None,
        "versions": None,
    }
    assert len(reader.get("tables/ws$t/health?days=90")["series"]) == 4
    assert len(reader.get("tables/ws$t/health?days=1")["series"]) == 1


@pytest.mark.operation("GetTableHealth")
def test_a_long_series_is_sampled_evenly_and_ends_with_the_newest(reader: Management):
    row = live("ws", "t")
    for n in range(24, -1, -1):
        put(row, n, ago=timedelta(hours=n))
    scores = [point["score"] for point in reader.get("tables/ws$t/health?points=10")["series"]]
    assert scores == [24, 21, 18, 15, 12, 9, 6, 3, 0]


# --- measurements and plans -------------------------------------------------------------------------


def fragment(count: int) -> None:
    make_lance_table(("ws", "t"), pa.table({"id": [0]}))
    for n in range(1, count):
        lance_data.insert(actor=SYSTEM, table=("ws", "t"), data=pa.table({"id": [n]}).to_reader())


@pytest.mark.operation("PlanMaintenance")
def test_a_plan_is_not_stored(reader: Management):
    fragment(9)
    with unchanged():
        plan = reader.post("tables/ws$t/plan")
    assert (plan["table"], plan["format"], plan["score"]) == (["ws", "t"], "lance", 44)
    assert plan["statistics"]["small_files"] == 9
    (planned,) = plan["planned"]
    assert planned["kind"] == "compact"
    assert (planned["mode"], planned["files_gone"], planned["is_for_spark"]) == (
        "dry_run",
        8,
        False,
    )
    assert planned["reason"] == "9 of 9 files are small"
    assert planned["bytes_read"] > 0


@pytest.mark.operation("MeasureTable")
def test_a_measurement_stores_the_plan(management: Management):
    fragment(9)
    plan = management.post("tables/ws$t/plan")
    measured = management.post("tables/ws$t/measure")
    retention = plan.pop("retention")
    assert retention[0] == {
        "branch": "",
        "version": plan["statistics"]["version"],
        "reasons": ["current version of the main branch"],
        "expires": False,
    }
    assert {name: measured[name] for name in plan} == plan
    assert measured["files_gone"] == 8
    newest = management.get("tables/ws$t/health")["newest"]
    assert newest == measured
    assert TableHealth.objects.get().score == 44


@pytest.mark.operation("PlanMaintenance")
@pytest.mark.operation("MeasureTable")
def test_an_iceberg_table_is_measured(management: Management):
    make_iceberg_table("ws", "i")
    assert management.post("tables/ws$i/plan")["format"] == "iceberg"
    measured = management.post("tables/ws$i/measure")
    assert (measured["score"], measured["statistics"]["files"], measured["planned"]) == (100, 0, [])


def test_a_table_without_data_cannot_be_measured(management: Management):
    make_table("ws", "empty")
    for action in ("plan", "measure"):
        request = f"POST tables/ws$empty/{action}"
        management.refused(409, "table-has-no-data", "has no data yet", request)
