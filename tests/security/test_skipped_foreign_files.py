"""Maintenance jobs skip files that may not be read for their table, do the rest, and say so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catalog.access import SYSTEM, tokens
from catalog.errors import CommitConflict
from catalog.formats.iceberg.job_properties import LEFT_OUT_FILES
from catalog.formats.iceberg.reading import Document
from catalog.models import ApiKey, AuditEvent, Job, JobEvent, JobStatus, Table
from catalog.policies import effective
from catalog.privileges import Privilege, closure
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import iceberg_skips, iceberg_statistics, job_runner
from catalog.services.maintenance.removals import iceberg_snapshots
from catalog.services.tables import job_operations
from tasks.jobs.iceberg import errors
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files
from tests.security.foreign import (
    COMMIT,
    MINE,
    World,
    local,
    message_of,
    refusal,
    row,
    snapshot,
    updates,
)
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db
EXPIRE = {"keep_for": 0, "keep_versions": 1}
Spark = Callable[..., dict[str, Any]]


def no_spark(*arguments: Any, **options: Any) -> dict[str, Any]:
    raise AssertionError("no Spark is to be started")


def start(kind: str, *, is_dry_run: bool = False, **policy: Any) -> Job:
    operation = job_operations.StartMaintenance(
        table=MINE,
        format="iceberg",
        kind_of_job=kind,
        is_dry_run=is_dry_run,
        parameters={"policy": policy},
    )
    job: Job = commit([operation], actor=SYSTEM).results[0]
    return job


def work(job: Job, spark: Spark = no_spark) -> Job:
    Job.objects.filter(pk=job.pk).update(lease_until=None)
    job_runner.run_job(job.pk, spark=spark)
    job.refresh_from_db()
    return job


def run(kind: str, spark: Spark = no_spark, **options: Any) -> Job:
    return work(start(kind, **options), spark)


def change(*changes: dict[str, Any]) -> None:
    iceberg_commits.commit_table(
        actor=SYSTEM, change=TableChange(table=MINE, requirements=[], updates=list(changes))
    )


def ref(name: str, snapshot_id: int, kind: str = "branch") -> dict[str, Any]:
    return {
        "action": "set-snapshot-ref",
        "ref-name": name,
        "type": kind,
        "snapshot-id": snapshot_id,
    }


@pytest.fixture
def plant(world: World, monkeypatch) -> Callable[[str], str]:
    """Add a snapshot that names a file of the hidden table in a slot, as an older release accepted it."""

    def planted(slot: str) -> str:
        current = open_table(*MINE).current_snapshot()
        path = world.path("hidden", slot)
        with monkeypatch.context() as unguarded:
            unguarded.setattr(iceberg_files, "check_updates", lambda *_: iceberg_files.References())
            change(*updates(snapshot(slot, path)))
        if current is not None:
            change(ref("main", current.snapshot_id))
        return path

    for link in ("data", "directory", "device", "pipe"):
        (world.mine / "metadata" / link).unlink()
    return planted


def planted_id() -> int:
    """The snapshot that was planted last."""
    return int(open_table(*MINE).metadata.snapshots[-1].snapshot_id)


def snapshots() -> set[int]:
    return {each.snapshot_id for each in open_table(*MINE).metadata.snapshots}


def data_files() -> list[Path]:
    return [local(task.file.file_path) for task in open_table(*MINE).scan().plan_files()]


def canaries(world: World) -> list[Path]:
    return [path for victim in world.victims.values() for path in victim.all()]


def warning(job: Job) -> Any:
    event = job.events.get(level=JobEvent.Level.WARNING)
    assert event.message == job.error
    return event.data


# --- snapshots whose manifests may not be read -----------------------------------------------------


@pytest.mark.parametrize("slot", ["list", "manifest"])
def test_a_foreign_manifest_of_an_old_snapshot_expires_with_it(world: World, plant, slot: str):
    """The snapshot is removed without Spark, with those own files that readable manifests name."""
    open_table(*MINE).append(rows(1))
    (replaced,) = data_files()
    open_table(*MINE).overwrite(rows(2))
    open_table(*MINE).append(rows(3))
    path, needed = plant(slot), data_files()
    statistics = iceberg_statistics.measure(row(), effective([]))
    assert statistics is not None
    assert statistics.rows == 2
    main = open_table(*MINE).current_snapshot()
    assert main is not None
    before = files(world.mine)
    with untouched(canaries(world)):
        planned = run("clean_up", is_dry_run=True, **EXPIRE)
        assert files(world.mine) == before
        job = run("clean_up", **EXPIRE)
    assert (planned.status, job.status) == (JobStatus.SUCCEEDED, JobStatus.SUCCEEDED), job.error
    assert snapshots() == {main.snapshot_id}
    assert not replaced.exists()
    assert data_files() == needed
    assert all(file.exists() for file in needed)
    assert sorted(open_table(*MINE).scan().to_arrow()["id"].to_pylist()) == [2, 3]
    removed = AuditEvent.objects.get(action="table.remove_files").after["paths"]
    assert set(removed) == {f"{world.mine}/{name}" for name in before.keys() - files(world.mine)}
    assert str(replaced) in removed
    assert AuditEvent.objects.get(action="maintenance.clean_up").after["files"] == len(removed)
    assert job.result["files"] == job.result["planned"]["files"] == len(removed)
    assert job.result["promise"]["kept"]
    assert (job.result["skipped"]["foreign_files"], job.result["skipped"]["examples"]) == (
        1,
        [path],
    )
    assert warning(job) == planned.result["skipped"] == job.result["skipped"]
    assert "files that only they name were not removed" in job.error
    # Now nothing keeps other jobs from working.
    assert "skipped" not in (run("compact", min_small_files=9).result or {})
    orphans = run("remove_orphans", lambda *_, **__: {"orphan_files_count": 0, "orphan_bytes": 0})
    assert orphans.status == JobStatus.SUCCEEDED, orphans.error
    assert "skipped" not in orphans.result


@pytest.mark.parametrize("kind", ["tag", "branch"])
@pytest.mark.parametrize("slot", ["list", "manifest"])
def test_nothing_is_removed_while_a_needed_snapshot_is_unreadable(
    world: World, plant, slot: str, kind: str
):
    """A tag or branch keeps it, and its manifest may name any file."""
    open_table(*MINE).append(rows(1))
    open_table(*MINE).overwrite(rows(2))
    path = plant(slot)
    change(ref("kept", planted_id(), kind))
    before, location = files(world.mine), open_table(*MINE).metadata_location
    with untouched(canaries(world)):
        clean = run("clean_up", **EXPIRE)
        orphans = run("remove_orphans", orphan_age=1)
        listed = run("remove_orphans", is_dry_run=True)
    assert files(world.mine) == before
    assert open_table(*MINE).metadata_location == location
    for job, effect in (
        (clean, "No snapshots were removed"),
        (orphans, "No orphans were removed"),
        (listed, "No orphans were removed"),
    ):
        assert job.status == JobStatus.SUCCEEDED
        assert job.error == (
            f"{effect}: 1 manifest list or manifest of snapshot {planted_id()} may not be read for this"
            " table, so the files that these snapshots need are unknown"
        )
        assert warning(job) == job.result["skipped"]
        assert job.result == {
            "skipped": {"foreign_files": 1, "examples": [path], "snapshots": [planted_id()]}
        }
    assert not AuditEvent.objects.filter(action="table.remove_files").exists()


def test_a_snapshot_that_is_tagged_meanwhile_is_not_removed(world: World, plant, monkeypatch):
    open_table(*MINE).append(rows(1))
    open_table(*MINE).overwrite(rows(2))
    plant("manifest")
    remove = iceberg_snapshots._commit

    def tag_first(*arguments: Any) -> Document:
        change(ref("late", planted_id(), "tag"))
        return remove(*arguments)

    monkeypatch.setattr(iceberg_snapshots, "_commit", tag_first)
    before = snapshots()
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.QUEUED
    assert "is referenced by 'late'" in job.error
    assert snapshots() == before
    assert not AuditEvent.objects.filter(action="table.remove_files").exists()
    monkeypatch.undo()
    assert "may not be read" in work(job).error  # the next attempt keeps it, and removes nothing
    assert snapshots() == before


def test_no_file_is_removed_if_another_unreadable_snapshot_comes_meanwhile(
    world: World, plant, monkeypatch
):
    open_table(*MINE).append(rows(1))
    (replaced,) = data_files()
    open_table(*MINE).overwrite(rows(2))
    plant("manifest")
    remove = iceberg_snapshots._commit

    def plant_then_remove(*arguments: Any) -> Document:
        plant_again()
        return remove(*arguments)

    def plant_again() -> None:
        with monkeypatch.context() as unguarded:
            unguarded.setattr(iceberg_files, "check_updates", lambda *_: iceberg_files.References())
            change(updates(snapshot("list", world.path("hidden", "list")))[0])

    monkeypatch.setattr(iceberg_snapshots, "_commit", plant_then_remove)
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert job.result["files"] == 0
    assert replaced.exists()


def test_nothing_is_removed_if_too_many_files_would_be_compared(world: World, plant, monkeypatch):
    open_table(*MINE).append(rows(1))
    open_table(*MINE).overwrite(rows(2))
    plant("manifest")
    monkeypatch.setattr(iceberg_statistics, "MAX_FILES", 1)
    before = files(world.mine)
    job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED
    assert job.error.startswith("No snapshots were removed: some manifests may not be read")
    assert files(world.mine) == before


def test_no_needed_file_is_removed_by_another_name(world: World, plant):
    """A snapshot that expires names it through a link."""
    open_table(*MINE).append(rows(1))
    (needed,) = data_files()
    main = open_table(*MINE).current_snapshot()
    assert main is not None
    link = world.mine / "metadata" / "alias.parquet"
    link.symlink_to(needed)
    change(*updates(snapshot("data", f"file://{link}")))
    change(ref("main", main.snapshot_id))
    plant("manifest")
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert snapshots() == {main.snapshot_id}
    assert job.result["files"] > 0
    assert link.is_symlink()
    assert open_table(*MINE).scan().to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize(
    "spelling",
    [
        "file:/",
        "file://localhost/",
        "/",
        "/./",
        "//./",
        "/tmp/../",
        "%2e/../",
        "link",
        "FILE:/",
        "link/../",
        "?v=1",
        "#1",
    ],
)
def test_no_file_is_removed_that_a_remaining_snapshot_names_otherwise(
    world: World, plant, spelling: str
):
    """The table has the file again, as after the procedure add_files, which spells paths as Hadoop does."""
    open_table(*MINE).append(rows(1))
    (needed,) = data_files()
    open_table(*MINE).overwrite(rows(2))
    main = open_table(*MINE).current_snapshot()
    assert main is not None
    named = f"{spelling}{str(needed).lstrip('/')}"
    if spelling == "%2e/../":
        (world.mine / "%2e%2e").mkdir()
        named = f"file://{world.mine}/%2e%2e/../{needed.relative_to(world.mine)}"
    if spelling == "link":
        link = world.mine / "metadata" / "alias.parquet"
        link.symlink_to(needed)
        named = f"file://{link}"
    if spelling == "link/../":  # Hadoop goes back from the link, not from where it leads
        (world.mine / "link").symlink_to("/tmp")
        named = f"file://{world.mine}/link/../{needed.relative_to(world.mine)}"
    if spelling in {"?v=1", "#1"}:  # PyIceberg ends a path there
        named = f"file://{needed}{spelling}"
    change(*updates(snapshot("data", named)))
    current = id_of_main()
    plant("manifest")
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert snapshots() == {current}
    assert job.result["files"] > 0
    assert needed.exists()


def test_no_statistics_are_removed_that_another_snapshot_gets_meanwhile(
    world: World, plant, monkeypatch
):
    open_table(*MINE).append(rows(1))
    expiring = id_of_main()
    path = world.mine / "metadata" / "shared.stats"
    path.write_bytes(b"PFA1")
    change(statistics(expiring, path))
    open_table(*MINE).overwrite(rows(2))
    plant("manifest")
    remove = iceberg_snapshots._commit

    def share_first(*arguments: Any) -> Document:
        change(statistics(id_of_main(), path))
        return remove(*arguments)

    monkeypatch.setattr(iceberg_snapshots, "_commit", share_first)
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert expiring not in snapshots()
    assert job.result["files"] > 0
    assert path.exists()


def statistics(snapshot_id: int, path: Path) -> dict[str, Any]:
    return {
        "action": "set-statistics",
        "snapshot-id": snapshot_id,
        "statistics": {
            "snapshot-id": snapshot_id,
            "statistics-path": f"file://{path}",
            "file-size-in-bytes": 4,
            "file-footer-size-in-bytes": 4,
            "blob-metadata": [],
        },
    }


def test_no_metadata_file_is_removed_as_a_data_file(world: World, plant):
    """A writer has named the table's own metadata in a snapshot that expires."""
    open_table(*MINE).append(rows(1))
    metadata = open_table(*MINE).metadata_location
    change(*updates(snapshot("data", metadata)))
    named = id_of_main()
    open_table(*MINE).overwrite(rows(2))
    plant("manifest")
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert named not in snapshots()
    assert job.result["files"] > 0
    assert local(metadata).exists()


def test_no_metadata_file_with_another_name_is_removed_as_a_data_file(world: World, plant):
    """The table was registered by a file that is not named like one of metadata."""
    open_table(*MINE).append(rows(1))
    metadata = local(open_table(*MINE).metadata_location).rename(world.mine / "first.json")
    iceberg_tables.unregister_table(actor=SYSTEM, table=MINE)
    iceberg_commits.register_table(actor=SYSTEM, table=MINE, metadata_location=f"file://{metadata}")
    change(*updates(snapshot("data", f"file://{metadata}")))
    named = id_of_main()
    open_table(*MINE).overwrite(rows(2))
    plant("manifest")
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert named not in snapshots()
    assert job.result["files"] > 0
    assert metadata.exists()


def id_of_main() -> int:
    current = open_table(*MINE).current_snapshot()
    assert current is not None
    return int(current.snapshot_id)


def test_snapshots_that_share_a_list_are_all_reported(world: World, plant):
    """One expires, and a tag keeps the other one."""
    open_table(*MINE).append(rows(1))
    plant("manifest")
    first = planted_id()
    shared = open_table(*MINE).metadata.snapshots[-1].manifest_list
    added = snapshot("manifest", world.path("hidden", "manifest"))
    with pytest.MonkeyPatch.context() as unguarded:
        unguarded.setattr(iceberg_files, "check_updates", lambda *_: iceberg_files.References())
        change(
            {"action": "add-snapshot", "snapshot": added | {"manifest-list": shared}},
            ref("tagged", first, "tag"),
        )
    second = planted_id()
    before = files(world.mine)
    with untouched(canaries(world)):
        job = run("clean_up", **EXPIRE)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert job.result["skipped"]["snapshots"] == sorted([first, second])
    assert files(world.mine) == before


# --- data files and delete files --------------------------------------------------------------------


def append_foreign(world: World, attacker: Iceberg) -> str:
    """Data files are committed whoever they belong to."""
    path = world.path("hidden", "data")
    body = {"requirements": [], "updates": updates(snapshot("data", path))}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    return path


def conflicting(*arguments: Any, **options: Any) -> dict[str, Any]:
    raise CommitConflict("again")


class Loading:
    """Loads the table as the driver of a job does."""

    def __init__(self) -> None:
        self.left_out: list[Any] = []
        self.requests: list[dict[str, Any]] = []

    def __call__(self, job: Job, script: str, request: Any, report: Any, **_: Any) -> Any:
        self.requests.append(dict(request))
        token = tokens.issue_job_token(job.pk, job.attempts)
        response = Iceberg(token).call("GET", COMMIT)
        if response.status_code != 200:
            raise CommitConflict(message_of(response))  # as the driver's kind of error says
        properties = response.json()["metadata"]["properties"]
        self.left_out.append(properties.get(LEFT_OUT_FILES))
        return {}


@pytest.fixture
def always_compact(monkeypatch) -> None:
    real = iceberg_statistics._measure
    monkeypatch.setattr(
        iceberg_statistics, "_measure", lambda *values: replace(real(*values), rewrite_files=9)
    )


@pytest.mark.usefixtures("always_compact")
def test_rights_that_are_lost_before_the_table_is_loaded(world: World, plant, attacker):
    """The attempt ends without a change, and the next one leaves out the file."""
    requester = ApiKey.objects.get(name="who").principal
    source = Table.objects.get(namespace__name="secret", name="t")
    grant = requester.grants.create(mask=closure(Privilege.READ).value, table=source)
    path = append_foreign(world, attacker)
    location = open_table(*MINE).metadata_location
    loading = Loading()

    def losing(*arguments: Any, **options: Any) -> Any:
        grant.delete()
        return loading(*arguments, **options)

    with untouched(canaries(world)):
        job = run("compact", losing)
        assert (job.status, job.error) == (JobStatus.QUEUED, refusal(path))
        assert "leaves_out" not in loading.requests[0]
        assert not job.leaves_out_files
        work(job, loading)
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert loading.requests[1]["leaves_out"] is True
    assert loading.left_out == [f'["{path}"]']
    assert job.result["skipped"] == {"foreign_files": 1, "examples": [path]}
    assert open_table(*MINE).metadata_location == location


@pytest.mark.usefixtures("always_compact")
def test_a_job_gets_no_304(world: World, plant, attacker):
    """Its files are checked again whenever it loads the table."""
    requester = ApiKey.objects.get(name="who").principal
    source = Table.objects.get(namespace__name="secret", name="t")
    grant = requester.grants.create(mask=closure(Privilege.READ).value, table=source)
    path = append_foreign(world, attacker)
    tag = attacker.call("GET", COMMIT)["ETag"]

    def loading_twice(job: Job, *_: Any, **__: Any) -> Any:
        client = Iceberg(tokens.issue_job_token(job.pk, job.attempts))
        headers = {"If-None-Match": tag}
        assert client.call("GET", COMMIT, headers=headers).status_code == 200
        principal = jobs.principal_of_token(tokens.issue_job_token(job.pk, job.attempts))
        assert iceberg_tables.find_etag(actor=principal, table=MINE) is None
        grant.delete()
        raise CommitConflict(message_of(client.call("GET", COMMIT, headers=headers)))

    job = run("compact", loading_twice)
    assert (job.status, job.error) == (JobStatus.QUEUED, refusal(path))
    assert attacker.call("GET", COMMIT, headers={"If-None-Match": tag}).status_code == 304


@pytest.mark.usefixtures("always_compact")
def test_an_attempt_without_files_to_leave_out_may_not_leave_out_files(
    world: World, plant, attacker
):
    """What the attempt before recorded does not permit the process of this one to load any table."""
    path = append_foreign(world, attacker)
    job = run("compact", conflicting)
    assert job.status == JobStatus.QUEUED
    assert job.leaves_out_files
    requester = ApiKey.objects.get(name="who").principal
    source = Table.objects.get(namespace__name="secret", name="t")
    grant = requester.grants.create(mask=closure(Privilege.READ).value, table=source)
    append_foreign(world, attacker)
    loading = Loading()

    def losing(*arguments: Any, **options: Any) -> Any:
        grant.delete()
        return loading(*arguments, **options)

    with untouched(canaries(world)):
        work(job, losing)
    assert "leaves_out" not in loading.requests[0]
    assert (job.status, job.error) == (JobStatus.QUEUED, refusal(path))


def test_files_that_are_left_out_are_no_reason_to_sort_a_table_again(world: World, plant):
    """They stay unsorted, so each job would rewrite all others."""
    open_table(*MINE).append(rows(1))
    open_table(*MINE).append(rows(2))
    policy = effective([("test", {"strategy": "sort", "sort_order": "id"})])
    before = iceberg_statistics.measure(row(), policy)
    paths = frozenset(task.file.file_path for task in open_table(*MINE).scan().plan_files())
    after = iceberg_statistics.measure(row(), policy, paths)
    assert before is not None
    assert after is not None
    assert (before.unsorted_files, before.rewrite_files) == (2, 2)
    assert (after.unsorted_files, after.unsorted_bytes, after.rewrite_files) == (0, 0, 0)


@pytest.mark.usefixtures("always_compact")
def test_too_many_files_are_not_left_out(world: World, plant, attacker, monkeypatch):
    monkeypatch.setattr(iceberg_skips, "MAX_LEFT_OUT", 0)
    append_foreign(world, attacker)
    for kind in ("compact", "rewrite_position_deletes"):
        job = run(kind, Loading() if kind == "rewrite_position_deletes" else no_spark)
        assert job.status == JobStatus.SUCCEEDED, job.error
        is_skipped = kind == "compact"  # the other reads no data files
        assert ("more than 0 files may not be read" in job.error) is is_skipped
        assert ("skipped" in job.result) is is_skipped


def test_the_reader_of_a_result_sees_few_paths_of_the_tables_own_metadata(
    world: World, plant, attacker
):
    path = append_foreign(world, attacker)
    job = run("compact", min_small_files=9)
    text = f"{job.error} {job.result}"
    assert "secret" not in text.replace(path, "")
    assert job.result["skipped"]["examples"] == [path]


def test_a_refused_file_makes_the_driver_try_again():
    error = ValueError(refusal("file:///x"))
    assert errors.kind_of(error) == "conflict"
