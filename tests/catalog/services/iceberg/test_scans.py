"""Scans that the server plans: stored plans, their owners, and access to files."""

import os
import shutil
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.utils import timezone

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    ForeignFile,
    InvalidInput,
    InvalidMetadata,
    PermissionDenied,
    PlanNotFound,
    PlanTaskNotFound,
    TableNotFound,
)
from catalog.formats.iceberg.scans import planning as scan_planning
from catalog.models import ScanPlan
from catalog.privileges import READ_ONLY, Privilege
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import scans
from catalog.services.iceberg import tables as iceberg_tables
from tasks import maintenance as tasks
from tests.catalog.formats.iceberg.scans.test_planning import SIMPLE, compare, paths, row
from tests.catalog.formats.iceberg.written import Written
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged

pytestmark = pytest.mark.django_db
ADA = Principal("ada", READ_ONLY)
BOB = Principal("bob", READ_ONLY)
NOBODY = Principal("nobody", Privilege.BROWSE)
T = ("ws", "t")


def register(made: Written, *identifier: str) -> None:
    """Register a written table in the catalog."""
    make_namespace(*identifier[:-1])
    made.document["table-uuid"] = str(uuid.uuid4())
    path = made.directory / "metadata" / f"00001-{uuid.uuid4()}.metadata.json"
    path.write_bytes(orjson.dumps(made.document))
    iceberg_commits.register_table(
        actor=SYSTEM, table=identifier, metadata_location=f"file://{path}"
    )


@pytest.fixture
def write(warehouse: Path) -> Callable[..., Written]:
    """Function that registers a table with this number of manifests, each with one file."""

    def written(count: int, *identifier: str) -> Written:
        made = Written(warehouse / "-".join(identifier or T), SIMPLE)
        for number in range(count):
            made.commit([made.file([row(number, number)])])
        register(made, *(identifier or T))
        return made

    return written


@pytest.fixture
def small_groups(monkeypatch) -> None:
    monkeypatch.setattr(scan_planning, "FILES_AT_ONCE", 2)


def plan(actor: Principal = ADA, table: tuple[str, ...] = T, **request: Any) -> Any:
    body = {key.replace("_", "-"): value for key, value in request.items()}
    return scans.plan_scan(actor=actor, table=table, request=body)


def fetch(task: str, actor: Principal = ADA, table: tuple[str, ...] = T) -> dict[str, Any]:
    return scans.fetch_tasks(actor=actor, table=table, plan_task=task)


# --- small scans -------------------------------------------------------------------------------


def test_a_small_scan_is_answered_completely(write, django_assert_num_queries):
    write(3)
    with unchanged(), django_assert_num_queries(1):
        planned = plan(filter=compare("gt-eq", "id", 1))
    assert paths(planned.tasks) == ["00002", "00003"]
    assert planned.plan_tasks == []
    with unchanged():
        scans.cancel_plan(actor=ADA, table=T, plan=planned.plan)
        with pytest.raises(PlanNotFound):
            scans.fetch_plan(actor=ADA, table=T, plan=planned.plan)
        for odd in ("whole-", "whole-x", f"whole-{uuid.uuid4()}-0"):
            with pytest.raises(PlanNotFound):
                scans.cancel_plan(actor=ADA, table=T, plan=odd)


def test_a_table_without_snapshots_has_no_files(warehouse):
    make_iceberg_table(*T)
    with unchanged():
        assert plan().tasks == {"file-scan-tasks": []}


def test_a_filter_without_matches_stores_no_plan(write, small_groups):
    write(6)
    with unchanged():
        assert plan(filter=False).tasks == {"file-scan-tasks": []}


# --- large scans ----------------------------------------------------------------------------------


def test_a_large_scan_is_fetched_in_tasks(write, small_groups, django_assert_num_queries):
    made = write(5)
    with django_assert_num_queries(2):
        planned = plan(filter=compare("gt", "id", 0))
    assert planned.tasks == {"file-scan-tasks": []}
    assert planned.plan_tasks == [f"{planned.plan}-{n}" for n in range(3)]
    with unchanged(), django_assert_num_queries(2):
        again = scans.fetch_plan(actor=ADA, table=T, plan=planned.plan)
    assert again == planned
    # Commits in the meantime do not change the plan.
    make_namespace("other")
    iceberg_tables.rename_table(actor=SYSTEM, table=T, new=("other", "t"))
    moved = ("other", "t")
    tasks = []
    for task in planned.plan_tasks:
        with unchanged(), django_assert_num_queries(2):
            tasks.append(paths(fetch(task, table=moved)))
    assert tasks == [["00002"], ["00003", "00004"], ["00005"]]
    assert paths(fetch(planned.plan_tasks[1], table=moved)) == tasks[1]
    assert made.files == 5


def test_an_incremental_scan_is_fetched_in_tasks(write, monkeypatch):
    monkeypatch.setattr(scan_planning, "SNAPSHOTS_AT_ONCE", 2)
    write(6)
    planned = plan(start_snapshot_id=1001, end_snapshot_id=1006)
    assert [paths(fetch(task)) for task in planned.plan_tasks] == [
        ["00002", "00003"],
        ["00004", "00005"],
        ["00006"],
    ]


def test_tasks_contain_deletes_and_statistics(write, small_groups, warehouse):
    from tests.catalog.formats.iceberg.written import POSITION

    made = Written(warehouse / "deleted", SIMPLE)
    for number in range(4):
        made.commit([made.file([row(number, number)])])
    made.commit([made.file([row(0)], content=POSITION, metrics=False)], operation="delete")
    register(made, "ws", "deleted")
    planned = plan(table=("ws", "deleted"), stats_fields=["id"])
    for task in planned.plan_tasks:
        answer = fetch(task, table=("ws", "deleted"))
        assert [task["delete-file-references"] for task in answer["file-scan-tasks"]] == [[0], [0]]
        assert len(answer["delete-files"]) == 1
        assert "lower-bounds" in answer["file-scan-tasks"][0]["data-file"]


def test_a_canceled_plan_is_deleted(write, small_groups, django_assert_num_queries):
    write(5)
    planned, stored = plan(), plan()
    with django_assert_num_queries(2):
        scans.cancel_plan(actor=ADA, table=T, plan=planned.plan)
    with unchanged():
        for call in (scans.cancel_plan, scans.fetch_plan):
            with pytest.raises(PlanNotFound):
                call(actor=ADA, table=T, plan=planned.plan)
        with pytest.raises(PlanTaskNotFound):
            fetch(planned.plan_tasks[0])
    assert fetch(stored.plan_tasks[0])["file-scan-tasks"]


def test_plans_expire_after_an_hour(write, small_groups):
    write(5)
    old, new = plan(), plan()
    ScanPlan.objects.filter(pk=old.plan).update(
        created_at=timezone.now() - scans.LIFETIME - timedelta(seconds=1)
    )
    with unchanged():
        with pytest.raises(PlanTaskNotFound):
            fetch(old.plan_tasks[0])
        for call in (scans.cancel_plan, scans.fetch_plan):
            with pytest.raises(PlanNotFound):
                call(actor=ADA, table=T, plan=old.plan)
    assert tasks.delete_expired_scan_plans() == 1
    assert [str(pk) for pk in ScanPlan.objects.values_list("pk", flat=True)] == [new.plan]
    assert scans.delete_expired_plans() == 0


def test_a_plan_belongs_to_its_table_and_its_requester(write, small_groups):
    write(5)
    write(5, "ws", "other")
    planned = plan()
    for actor, table in ((BOB, T), (ADA, ("ws", "other"))):
        with unchanged():
            with pytest.raises(PlanTaskNotFound):
                fetch(planned.plan_tasks[0], actor, table)
            for call in (scans.cancel_plan, scans.fetch_plan):
                with pytest.raises(PlanNotFound):
                    call(actor=actor, table=table, plan=planned.plan)


@pytest.mark.parametrize(
    "task", ["", "-", "0", "x-0", "{}", "{}-", "{}-3", "{}--1", "{}-x", "{}-٣", "{}-0 ", "{}-1e1"]
)
def test_unknown_tasks_are_refused(write, small_groups, task):
    write(5)
    name = task.format(plan().plan)
    with unchanged(), pytest.raises(PlanTaskNotFound, match="does not exist or has ended"):
        fetch(name)


# --- refusals ----------------------------------------------------------------------------------


def test_only_iceberg_tables_are_planned(write):
    make_table("ws", "lance")
    for table in (("ws", "nothing"), ("nothing", "t"), ("ws", "lance")):
        with unchanged():
            with pytest.raises(TableNotFound):
                plan(table=table)
            with pytest.raises(TableNotFound):
                fetch("x-0", table=table)
            for call in (scans.cancel_plan, scans.fetch_plan):
                with pytest.raises(TableNotFound):
                    call(actor=ADA, table=table, plan=str(uuid.uuid4()))


def test_scans_require_read(write):
    write(1)
    with unchanged():
        with pytest.raises(PermissionDenied):
            plan(NOBODY)
        with pytest.raises(PermissionDenied):
            fetch("x-0", NOBODY)
        for call in (scans.cancel_plan, scans.fetch_plan):
            with pytest.raises(PermissionDenied):
                call(actor=NOBODY, table=T, plan="x")


def test_malformed_requests_are_refused(write):
    write(1)
    with unchanged(), pytest.raises(InvalidInput, match="go together"):
        plan(start_snapshot_id=1001)


def test_manifests_outside_the_allowed_roots_are_not_opened(warehouse, tmp_path, monkeypatch):
    outside = Written(tmp_path / "outside", SIMPLE)
    outside.commit([outside.file([row(1)])])
    made = Written(warehouse / "inside", SIMPLE)
    made.manifests = list(outside.manifests)
    made.commit()  # its list names a manifest in another directory
    make_namespace("ws")
    with unchanged(), pytest.raises(ForeignFile, match="does not belong to table"):
        register(made, "ws", "inside")
    with monkeypatch.context() as unguarded:
        unguarded.setattr(iceberg_files, "check_document", lambda *_: iceberg_files.References())
        register(made, "ws", "inside")
    shutil.rmtree(outside.directory)  # the message does not reveal whether the file exists
    with unchanged(), pytest.raises(ForeignFile, match="does not belong to table"):
        plan(table=("ws", "inside"))


def test_a_link_out_of_the_roots_is_not_followed(write, warehouse, tmp_path):
    made = write(1)
    path = Path(made.manifests[0].manifest_path.removeprefix("file://"))
    outside = tmp_path / "secret.avro"
    shutil.move(path, outside)
    path.symlink_to(outside)
    with unchanged(), pytest.raises(ForeignFile, match="does not belong to table"):
        plan()


def test_unreadable_files_are_named(write):
    made = write(1)
    path = Path(made.manifests[0].manifest_path.removeprefix("file://"))
    path.unlink()
    with unchanged(), pytest.raises(InvalidMetadata, match="cannot be read: No such file"):
        plan()
    path.mkdir()
    with unchanged(), pytest.raises(ForeignFile, match="does not belong to table"):
        plan()
    path.rmdir()
    os.mkfifo(path)
    with unchanged(), pytest.raises(ForeignFile, match="does not belong to table"):
        plan()
    path.unlink()
    path.write_bytes(b"no Avro")
    with unchanged(), pytest.raises(InvalidMetadata, match="torn, or none at all"):
        plan()


def test_a_manifest_that_is_too_large_is_not_read(write, monkeypatch):
    write(1)
    monkeypatch.setattr(iceberg_files, "_MAX_FILE_BYTES", 100)
    with unchanged(), pytest.raises(InvalidMetadata, match="is larger than 100 bytes"):
        plan()


def test_paths_are_not_decoded(warehouse):
    """Percent signs are literal, and spaces are not encoded."""
    made = Written(warehouse / "a%20b c", SIMPLE)
    made.commit([made.file([row(1)])])
    register(made, "ws", "odd")
    assert paths(plan(table=("ws", "odd")).tasks) == ["00001"]
