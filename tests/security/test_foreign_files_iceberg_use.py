"""Foreign files named by an Iceberg table's metadata are never used.

Every slot × every kind of file that is not the table's own × every use by the server.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from catalog import access, maintenance_actions, regular_files
from catalog.access import SYSTEM, Principal, tokens
from catalog.errors import ForeignFile
from catalog.formats.iceberg.job_properties import LEFT_OUT_FILES
from catalog.models import (
    ApiKey,
    AuditEvent,
    FileReference,
    Job,
    JobStatus,
    Table,
)
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege, closure
from catalog.services.access import authentication
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import contents as iceberg_contents
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import references as iceberg_references
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import iceberg_statistics, job_runner, policies
from catalog.services.tables import job_operations
from tests.access.protocols import KEY
from tests.api.iceberg.client import Iceberg
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import (
    snapshot as picture,
)
from tests.factories import (
    unchanged,
)
from tests.security.foreign import (
    COMMIT,
    KINDS,
    MINE,
    SLOTS,
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


def me() -> Principal:
    return authentication.authenticate(KEY)


@pytest.fixture
def planted(world: World, monkeypatch) -> Iterator[Any]:
    """Metadata that an older release accepted, or that was changed in storage later."""

    def plant(kind: str, slot: str) -> str:
        path = world.path(kind, "data" if slot == "deletes" else slot)
        with monkeypatch.context() as unguarded:
            unguarded.setattr(iceberg_files, "check_updates", lambda *_: iceberg_files.References())
            change = TableChange(table=MINE, requirements=[], updates=updates(snapshot(slot, path)))
            iceberg_commits.commit_table(actor=SYSTEM, change=change)
        return path

    return plant


class NoSpark:
    def __call__(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        raise AssertionError("no Spark is to be started")


def run(
    kind: str, spark: Any, *, is_dry_run: bool = False, actor: Principal = SYSTEM, **policy: Any
) -> Job:
    start = job_operations.StartMaintenance(
        table=MINE,
        format="iceberg",
        kind_of_job=kind,
        is_dry_run=is_dry_run,
        parameters={"policy": policy},
    )
    job: Job = commit([start], actor=actor).results[0]
    job_runner.run_job(job.pk, spark=spark)
    job.refresh_from_db()
    return job


def administrator() -> Principal:
    row = PrincipalRow.objects.create(name="user:administrator", kind="user", level="admin")
    return access.of_row(row)


ACTORS = {"system": lambda: SYSTEM, "administrator": administrator}


def show() -> None:
    """Read the files of the current snapshot, as its page does."""
    document = iceberg_tables.load_table(actor=SYSTEM, table=MINE).document
    reader = iceberg_contents.reader(me(), row())
    for manifest in iceberg_contents.manifests_of(reader, document["snapshots"][-1]):
        iceberg_contents.files_of(reader, manifest)


@pytest.fixture
def always_compact(monkeypatch) -> None:
    """Plan a compaction in any case."""
    real = iceberg_statistics._measure
    monkeypatch.setattr(
        iceberg_statistics,
        "_measure",
        lambda *arguments: replace(real(*arguments), rewrite_files=9),
    )


@pytest.mark.usefixtures("always_compact")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slot", [*SLOTS, "deletes"])
def test_existing_foreign_references_are_not_used(world, attacker, planted, slot, kind):
    open_table(*MINE).append(rows(1))
    path = planted(kind, slot)
    if kind != "link to a directory":  # Spark would follow them
        for link in ("data", "directory"):
            (world.mine / "metadata" / link).unlink()
    is_metadata = slot in {"list", "manifest"}
    with untouched(world.canaries()):
        with unchanged():
            assert message_of(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)
            with pytest.raises(ForeignFile) as refused:
                show()
            assert refused.value.message == refusal(path)
        every_kind = {action.key for action in maintenance_actions.of_format("iceberg")}
        for job_kind in every_kind if is_metadata else {"compute_statistics"}:
            before = open_table(*MINE).metadata_location
            job = run(job_kind, NoSpark(), keep_for=0, keep_versions=1)
            assert job.status == JobStatus.SUCCEEDED, (job_kind, job.error)
            assert job.error.startswith("No "), job_kind
            assert "may not be read for this table" in job.error, job_kind
            assert job.result["skipped"]["foreign_files"] == 1
            assert job.result["skipped"]["examples"] == [path]
            warning = job.events.get(level="warning")
            assert (warning.message, warning.data) == (job.error, job.result["skipped"])
            assert open_table(*MINE).metadata_location == before, job_kind
            # The process of the job does not use them either, if they were added before it runs.
            with pytest.raises(ForeignFile) as refused:
                iceberg_tables.load_table(actor=replace(SYSTEM, job_kind=job.kind), table=MINE)
            assert refused.value.message == refusal(path)
        if not is_metadata:
            left_out(kind, slot, path)
        policy = policies.effective_policy(row())
        if is_metadata:
            with pytest.raises(ForeignFile) as refused:
                iceberg_statistics.measure(row(), policy)
            assert refused.value.message == refusal(path)
        else:
            # The count comes from the table's own manifest; no file is opened for it.
            statistics = iceberg_statistics.measure(row(), policy)
            assert statistics is not None
            assert statistics.rows <= 4
        purged(world)


def left_out(kind: str, slot: str, path: str) -> None:
    """Run the jobs that can leave out files. Their process gets the list of these files with the table."""
    for job_kind in ("compact", "rewrite_position_deletes"):
        spark = Loading()
        job = run(job_kind, spark)
        if kind == "link to a directory":
            assert (job.status, spark.requests) == (JobStatus.FAILED, [])
            assert "has a link to a directory" in job.error
            continue
        assert job.status == JobStatus.SUCCEEDED, job.error
        (request,), (properties,) = spark.requests, spark.properties
        if job_kind == "compact" or slot == "deletes":
            assert request["leaves_out"] is True
            assert json.loads(properties[LEFT_OUT_FILES]) == [path]
            assert job.result["skipped"] == {"foreign_files": 1, "examples": [path]}
            assert job.error.startswith("1 file may not be read for this table: ")
            assert job.events.get(level="warning", message=job.error).data == job.result["skipped"]
        else:  # it reads no data files
            assert "leaves_out" not in request
            assert LEFT_OUT_FILES not in properties
            assert "skipped" not in job.result


class Loading:
    """Loads the table as the driver of a job does."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.properties: list[dict[str, str]] = []

    def __call__(self, job: Job, script: str, request: Any, report: Any, **_: Any) -> Any:
        self.requests.append(dict(request))
        response = Iceberg(tokens.issue_job_token(job.pk, job.attempts)).call("GET", COMMIT)
        assert response.status_code == 200, response.content
        self.properties.append(response.json()["metadata"]["properties"])
        return {}


def purged(world: World) -> None:
    """Drop the table with its files, and return the removed files."""
    own, directory = row().uuid, Path(row().location)
    with override_settings(MONODON_TRASH_SECONDS=0):
        iceberg_tables.drop_table(actor=SYSTEM, table=MINE, purge=True)
    job = Job.objects.latest("pk")
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED, job.error
    has_files = any(path.is_file() and not path.is_symlink() for path in directory.rglob("*"))
    remaining = "; files remain in its directories" if has_files else ""
    assert re.fullmatch(
        rf"left in place: \d files (of other tables|outside its directories){remaining}", job.error
    ), job.error
    event = AuditEvent.objects.get(action="table.purge")
    assert event.table_uuid == own
    removed = AuditEvent.objects.get(action="table.remove_files")
    assert removed.table_uuid == own
    assert event.after["files"] == removed.after["files"] == len(removed.after["paths"]) > 0
    assert all(path.startswith(f"{world.mine}/") for path in removed.after["paths"])


@pytest.mark.parametrize("kind", ["hidden", "dropped", "system", "link", "pipe"])
@pytest.mark.parametrize("slot", ["manifest", "data"])
def test_a_stored_plan_is_checked_again(world, attacker, monkeypatch, slot, kind):
    """The manifest list is replaced before the tasks are fetched."""
    monkeypatch.setattr("catalog.formats.iceberg.scans.planning.FILES_AT_ONCE", 1)
    for number in range(2):
        open_table(*MINE).append(rows(number))
    plan = attacker.post(f"{COMMIT}/plan", {})
    path = world.path(kind, slot)
    current = open_table(*MINE).current_snapshot()
    assert current is not None
    local(snapshot(slot, path)["manifest-list"]).rename(local(current.manifest_list))
    with untouched(world.canaries()), unchanged():
        response = attacker.call("POST", f"{COMMIT}/tasks", {"plan-task": plan["plan-tasks"][0]})
    assert message_of(response) == refusal(path)


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_orphans_are_not_listed_through_links(world, is_dry_run):
    """Spark would follow the link, and the result of the job would name the files behind it."""
    metadata = world.mine / "metadata"
    for path in metadata.iterdir():
        if regular_files.is_special(str(path)) and path.name != "directory":
            path.unlink()
    job = run("remove_orphans", NoSpark(), is_dry_run=is_dry_run)
    assert (job.status, job.error) == (
        JobStatus.FAILED,
        "Orphans of 'mine.t' are not removed: 'metadata/directory' at its location is not a regular file",
    )
    assert (metadata / "directory").is_symlink()


@pytest.mark.parametrize("kind", ["hidden", "dropped", "twin", "system", "link"])
def test_clean_up_distinguishes_own_and_foreign_files(world, planted, kind):
    planted(kind, "data")
    open_table(*MINE).overwrite(rows(1))
    spark = _Asked()
    with untouched(world.canaries()):
        job = run("clean_up", spark, keep_for=0, keep_versions=1)
    assert job.status == JobStatus.SUCCEEDED, job.error
    (request,) = spark.requests
    assert request["own_prefixes"] == [str(world.mine)]
    assert request["foreign_prefixes"] == []
    assert job.result["planned"]["foreign_files"] == 1
    event = AuditEvent.objects.get(action="maintenance.clean_up")
    assert event.after == {"job": job.pk, "files": 2}
    removed = AuditEvent.objects.get(action="table.remove_files")
    assert removed.after == {"job": job.pk, "files": 2, "paths": ["a", "b"]}
    assert event.table_uuid == removed.table_uuid == row().uuid


class _Asked:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def __call__(
        self, job: Job, script: str, request: Any, report: Any, *, on_part: Any, **_: Any
    ) -> Any:
        self.requests.append(dict(request))
        on_part({"removed": ["a", "b"]})
        return {"deleted_data_files_count": 2, "deleted_files": ["a", "b"]}


# --- permitted files ---------------------------------------------------------------------------


def share(world, directory: str) -> None:
    """The table refers to files of the hidden table, committed by a principal that may read it."""
    owner = PrincipalRow.objects.create(name="user:owner")
    source = Table.objects.get(namespace__name="secret", name="t")
    owner.grants.create(mask=closure(Privilege.READ).value, table=source)
    FileReference.objects.create(
        table=row(), source=source, principal=owner.name, directories=[str(local(directory))]
    )


@pytest.mark.parametrize("slot", ["list", "manifest"])
def test_a_reference_opens_no_other_directories_of_the_source(world, attacker, slot):
    """Writers of a clone can name any file of the source, and readers of it can ask for one."""
    data, metadata = (world.path("hidden", name).rpartition("/")[0] for name in ("data", slot))
    assert data != metadata
    share(world, data)
    path = world.path("hidden", slot)
    body = {"requirements": [], "updates": updates(snapshot(slot, path))}
    with untouched(world.canaries()), unchanged():
        assert message_of(attacker.call("POST", COMMIT, body)) == refusal(path)


def test_a_reference_is_not_extended_by_those_who_may_not_read_the_source(world, attacker):
    data = world.path("hidden", "data")
    share(world, f"{data.rpartition('/')[0]}/day=1")
    body = {"requirements": [], "updates": updates(snapshot("data", data))}
    assert attacker.call("POST", COMMIT, body).status_code == 200  # data files are checked at use
    (reference,) = FileReference.objects.all()
    assert reference.directories == [f"{local(data).parent}/day=1"]
    with untouched(world.canaries()):
        assert message_of(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(data)


def test_a_reference_is_kept_when_a_writer_without_access_to_the_source_commits(world, attacker):
    data = world.path("hidden", "data")
    share(world, data.rpartition("/")[0])
    body = {"requirements": [], "updates": updates(snapshot("data", data))}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    (reference,) = FileReference.objects.all()
    assert reference.principal == "user:owner"
    (task,) = attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]
    assert task["data-file"]["file-path"] == data


class Rewriting:
    """Merges manifests as Spark does: its manifest names the data files of those before it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, job: Job, *arguments: Any, **options: Any) -> dict[str, Any]:
        token = tokens.issue_job_token(job.pk, job.attempts)
        body = {"requirements": [], "updates": updates(snapshot("data", self._path))}
        response = Iceberg(token).call("POST", COMMIT, body)
        assert response.status_code == 200, response.content
        return {}


@pytest.mark.parametrize("limit", ["_MAX_MANIFEST_BYTES", None])
@pytest.mark.parametrize("requester", ["system", "administrator"])
def test_jobs_share_no_files_that_only_their_requester_may_read(
    world, attacker, monkeypatch, requester, limit
):
    for link in ("data", "directory"):  # Spark would follow them
        (world.mine / "metadata" / link).unlink()
    path = world.path("hidden", "data")
    body = {"requirements": [], "updates": updates(snapshot("data", path))}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    if limit is not None:
        monkeypatch.setattr(iceberg_files, limit, 0)
    job = run("rewrite_manifests", Rewriting(path), actor=ACTORS[requester]())
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert len(open_table(*MINE).snapshots()) == 2
    iceberg_references.read_unread()
    assert not FileReference.objects.exists()
    with untouched(world.canaries()):
        assert message_of(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)


def test_readable_foreign_files_are_planned_but_not_removed(world, attacker):
    """Spark's ``snapshot`` creates a table from the data files of another table."""
    requester = ApiKey.objects.get(name="who").principal
    source = Table.objects.get(namespace__name="secret", name="t")
    requester.grants.create(mask=closure(Privilege.READ).value, table=source)
    path = world.path("hidden", "data")
    body = {"requirements": [], "updates": updates(snapshot("data", path))}
    lease = timezone.now() + timedelta(minutes=1)
    removing = Job.objects.create(
        table=source, kind="clean_up", status=JobStatus.RUNNING, lease_until=lease
    )
    answer = attacker.call("POST", COMMIT, body)
    assert answer.status_code == 409
    assert "removing files of another table" in answer.json()["error"]["message"]
    assert not FileReference.objects.exists()
    assert open_table(*MINE).current_snapshot() is None
    removing.delete()
    assert attacker.call("POST", COMMIT, body).status_code == 200
    reference = FileReference.objects.get()
    assert (reference.table, reference.source, reference.principal) == (
        row(),
        source,
        requester.name,
    )
    assert reference.directories == [path.rpartition("/")[0].removeprefix("file://")]
    (task,) = attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]
    assert task["data-file"]["file-path"] == path
    # The readers of the source's jobs may not browse the dependent.
    job: Job = commit(
        [
            job_operations.StartMaintenance(
                table=("secret", "t"),
                format="iceberg",
                kind_of_job="clean_up",
                parameters={"policy": {"keep_for": 0, "keep_versions": 1}},
            )
        ],
        actor=SYSTEM,
    ).results[0]
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert (job.status, job.error) == (
        JobStatus.FAILED,
        "1 other table refers to files of 'secret.t', so no files are removed",
    )
    iceberg_tables.drop_table(actor=SYSTEM, table=("secret", "t"), purge=True)
    purge = Job.objects.latest("pk")
    Job.objects.filter(pk=purge.pk).update(lease_until=None)
    job_runner.run_job(purge.pk)
    purge.refresh_from_db()
    assert (purge.status, purge.error) == (JobStatus.CANCELED, "other tables refer to its files")
    assert world.victims["hidden"].data.exists()
    # The principal that committed the reference may no longer read the source, so nobody may read
    # it through that table.
    requester.grants.filter(table=source).delete()
    assert message_of(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)


def test_unowned_files_in_an_allowed_root_are_readable(
    world, attacker, settings, recalled_warehouse
):
    """``add_files`` imports them this way."""
    free = recalled_warehouse.parent / "outside"
    settings.MONODON_ALLOWED_ROOTS = [str(free)]
    path = world.path("system", "data")
    body = {"requirements": [], "updates": updates(snapshot("data", path))}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    (task,) = attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]
    assert task["data-file"]["file-path"] == path
    iceberg_tables.drop_table(actor=SYSTEM, table=MINE, purge=True)
    settings.MONODON_TRASH_SECONDS = 0
    job = Job.objects.latest("pk")
    Job.objects.filter(pk=job.pk).update(lease_until=None)
    with untouched([world.victims["system"].data]):
        job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED
    assert job.error == "left in place: 1 files outside its directories"


def test_tables_with_own_files_need_no_other_privilege(world, attacker):
    before = picture()
    open_table(*MINE).append(rows(1, 2))
    assert before != picture()
    assert len(attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]) == 1
    statistics = iceberg_statistics.measure(row(), policies.effective_policy(row()))
    assert statistics is not None
    assert statistics.rows == 2
