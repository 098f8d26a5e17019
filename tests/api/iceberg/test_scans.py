"""Server-side scan planning over HTTP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest.scan_planning import PlanCompleted, ScanTasks

from catalog.access import SYSTEM
from catalog.formats.iceberg.scans import planning as scan_planning
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
from tests.api.iceberg.client import Iceberg
from tests.catalog.formats.iceberg.scans.test_planning import BY_DAY, SIMPLE, compare, paths, row
from tests.catalog.formats.iceberg.written import POSITION, Written
from tests.catalog.services.iceberg.test_scans import register
from tests.factories import make_namespace, make_table

BASE = "namespaces/ws/tables/t"
PLAN, TASKS = f"{BASE}/plan", f"{BASE}/tasks"


@pytest.fixture
def write(db, warehouse: Path) -> Callable[[int], Written]:
    def written(count: int) -> Written:
        made = Written(warehouse / "t", SIMPLE, BY_DAY)
        for number in range(count):
            made.commit([made.file([row(number, number)])])
        register(made, "ws", "t")
        return made

    return written


@pytest.fixture
def planned(iceberg: Iceberg, write, monkeypatch) -> dict[str, Any]:
    """A large scan, planned."""
    monkeypatch.setattr(scan_planning, "FILES_AT_ONCE", 2)
    write(5)
    return iceberg.post(PLAN, {})


@pytest.mark.operation("planTableScan")
def test_a_small_scan(reader: Iceberg, write):
    made = write(2)
    made_again = Written(made.directory.parent / "d", SIMPLE)
    made_again.commit([made_again.file([row(1)])])
    made_again.commit(
        [made_again.file([row(0)], content=POSITION, metrics=False)], operation="delete"
    )
    register(made_again, "ws", "deleted")
    answer = reader.post(PLAN, {"filter": compare("eq", "id", 1), "select": ["id"]})
    assert answer.pop("plan-id")
    assert answer == {
        "status": "completed",
        "file-scan-tasks": [
            {
                "data-file": {
                    "content": "data",
                    "file-path": f"file://{made.directory}/data/00002.parquet",
                    "file-format": "parquet",
                    "spec-id": 0,
                    "partition": ["1970-01-02"],
                    "file-size-in-bytes": 1002,
                    "record-count": 1,
                },
                "residual-filter": compare("eq", "id", 1),
            }
        ],
    }
    answer = reader.post("namespaces/ws/tables/deleted/plan", {})
    read = PlanCompleted.model_validate(answer)
    assert len(read.file_scan_tasks) == len(read.delete_files) == 1
    assert read.file_scan_tasks[0].delete_file_references == [0]


@pytest.mark.operation("planTableScan")
def test_a_large_scan(planned):
    assert planned["status"] == "completed"
    assert planned["file-scan-tasks"] == []
    assert planned["plan-tasks"] == [f"{planned['plan-id']}-{n}" for n in range(3)]
    assert "delete-files" not in planned


@pytest.mark.operation("planTableScan")
def test_refused_plans(iceberg: Iceberg, write):
    write(1)
    make_table("ws", "lance")
    bad = "BadRequestException"
    for body, text in [
        ({"snapshot-id": 5}, "there is no snapshot 5"),
        ({"start-snapshot-id": 5}, "go together"),
        (
            {"snapshot-id": 1001, "start-snapshot-id": 1, "end-snapshot-id": 2},
            "use one or the other",
        ),
        ({"filter": compare("eq", "nothing", 1)}, "there is no column 'nothing'"),
        ({"filter": compare("eq", "id", "one")}, "a string is no value of type long"),
        ({"filter": {"type": "like"}}, "'like' is no type of a predicate"),
    ]:
        iceberg.refused(400, bad, text, f"POST {PLAN}", body)
    iceberg.refused(400, bad, "is not valid JSON", f"POST {PLAN}", raw=b"{")
    deep = b'{"filter":' + b'{"type":"not","child":' * 150 + b"true" + b"}" * 151
    iceberg.refused(400, bad, "nested deeper", f"POST {PLAN}", raw=deep)
    for table in ("nothing", "lance"):
        iceberg.refused(
            404,
            "NoSuchTableException",
            "does not exist",
            f"POST namespaces/ws/tables/{table}/plan",
            {},
        )
    Iceberg().refused(401, "NotAuthorizedException", "No API key", f"POST {PLAN}", {})


@pytest.mark.operation("planTableScan")
def test_a_missing_manifest_is_not_a_server_error(iceberg: Iceberg, write):
    made = write(1)
    Path(made.manifests[0].manifest_path.removeprefix("file://")).unlink()
    iceberg.refused(400, "BadRequestException", "No such file", f"POST {PLAN}", {})


@pytest.mark.operation("planTableScan")
def test_names_are_relative_to_the_warehouse(iceberg: Iceberg, write, warehouse):
    make_namespace("prod")
    made = Written(warehouse / "p", SIMPLE)
    made.commit([made.file([row(1)])])
    register(made, "prod", "ws", "t")
    assert paths(iceberg.at("prod").post(PLAN, {})) == ["00001"]
    iceberg.refused(404, "NoSuchTableException", "ws.t", f"POST {PLAN}", {})


@pytest.mark.operation("fetchPlanningResult")
def test_the_result_of_a_plan(iceberg: Iceberg, planned):
    assert iceberg.get(f"{PLAN}/{planned['plan-id']}") == planned
    for plan in ("nothing", "00000000-0000-0000-0000-000000000000", planned["plan-tasks"][0]):
        iceberg.refused(404, "NoSuchPlanIdException", f"'{plan}'", f"GET {PLAN}/{plan}")
    iceberg.refused(
        404,
        "NoSuchTableException",
        "does not exist",
        f"GET namespaces/ws/tables/nothing/plan/{planned['plan-id']}",
    )


@pytest.mark.operation("cancelPlanning")
def test_canceling(iceberg: Iceberg, planned):
    other = iceberg.post(PLAN, {})
    assert iceberg.delete(f"{PLAN}/{planned['plan-id']}") is None
    for method in ("GET", "DELETE"):
        iceberg.refused(
            404, "NoSuchPlanIdException", "ended", f"{method} {PLAN}/{planned['plan-id']}"
        )
    task = {"plan-task": planned["plan-tasks"][0]}
    iceberg.refused(404, "NoSuchPlanTaskException", "ended", f"POST {TASKS}", task)
    assert iceberg.post(TASKS, {"plan-task": other["plan-tasks"][0]})["file-scan-tasks"]


@pytest.mark.operation("cancelPlanning")
def test_canceling_a_completed_plan(reader: Iceberg, write):
    """Java's client cancels every plan that has an id."""
    write(1)
    assert reader.delete(f"{PLAN}/{reader.post(PLAN, {})['plan-id']}") is None


@pytest.mark.operation("fetchScanTasks")
def test_fetching_tasks(iceberg: Iceberg, planned):
    paths_of_tasks = []
    for task in planned["plan-tasks"]:
        answer = iceberg.post(TASKS, {"plan-task": task})
        assert set(answer) == {"file-scan-tasks"}
        ScanTasks.model_validate(answer)
        paths_of_tasks += paths(answer)
    assert paths_of_tasks == ["00001", "00002", "00003", "00004", "00005"]


@pytest.mark.operation("fetchScanTasks")
def test_refused_tasks(iceberg: Iceberg, planned):
    for body in ({}, {"plan-task": 5}, {"plan-task": None}):
        iceberg.refused(400, "BadRequestException", "plan-task: expected", f"POST {TASKS}", body)
    for task in ("nothing", f"{planned['plan-id']}-9", planned["plan-id"]):
        iceberg.refused(
            404, "NoSuchPlanTaskException", f"'{task}'", f"POST {TASKS}", {"plan-task": task}
        )
    _, key = api_keys.create_api_key(actor=SYSTEM, name="other", level=PrincipalLevel.READ)
    task = {"plan-task": planned["plan-tasks"][0]}
    Iceberg(key).refused(404, "NoSuchPlanTaskException", "ended", f"POST {TASKS}", task)


@pytest.mark.operation("fetchScanTasks")
def test_an_idempotency_key_repeats_the_answer(iceberg: Iceberg, planned):
    headers = {"idempotency-key": "01890af0-0000-7000-8000-000000000001"}
    body = {"plan-task": planned["plan-tasks"][0]}
    first = iceberg.post(TASKS, body, headers=headers)
    iceberg.delete(f"{PLAN}/{planned['plan-id']}")
    assert iceberg.post(TASKS, body, headers=headers) == first
