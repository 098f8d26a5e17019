"""What an Iceberg table's metadata names all the same, and is not the table's, is never used.

Every slot × every kind of file that is not the table's own × every use that the server makes of it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.test import override_settings

from catalog.access import SYSTEM, Principal
from catalog.errors import ForeignFile
from catalog.models import (
    ApiKey,
    AuditEvent,
    FileReference,
    Job,
    JobKind,
    JobStatus,
    Table,
)
from catalog.privileges import Privilege, closure
from catalog.services.access import authentication
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import contents as iceberg_contents
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import iceberg_actions, iceberg_statistics, job_runner, policies
from catalog.services.tables import job_operations
from tests.access.doors import KEY
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
    refusal,
    row,
    said,
    snapshot,
    updates,
)
from tests.security.watching import untouched

pytestmark = pytest.mark.django_db


def me() -> Principal:
    return authentication.authenticate(KEY)


@pytest.fixture
def planted(world: World, monkeypatch) -> Iterator[Any]:
    """Metadata that an older release let in, or that was changed in storage since."""

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


def run(kind: JobKind, spark: Any, **policy: Any) -> Job:
    start = job_operations.StartMaintenance(
        table=MINE, format="iceberg", kind_of_job=kind, parameters={"policy": policy}
    )
    job: Job = commit([start], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk, spark=spark)
    job.refresh_from_db()
    return job


def show() -> None:
    """What the page of the current snapshot's files does."""
    document = iceberg_tables.load_table(actor=SYSTEM, table=MINE).document
    reader = iceberg_contents.reader(me(), row())
    for manifest in iceberg_contents.manifests_of(reader, document["snapshots"][-1]):
        iceberg_contents.files_of(reader, manifest)


READS_ROWS = {JobKind.COMPACT, JobKind.REWRITE_POSITION_DELETES, JobKind.COMPUTE_STATISTICS}


@pytest.fixture
def much_to_do(monkeypatch) -> None:
    """Compaction begins, whatever there is."""
    real = iceberg_statistics._measure
    monkeypatch.setattr(
        iceberg_statistics, "_measure", lambda *given: replace(real(*given), rewrite_files=9)
    )


@pytest.mark.usefixtures("much_to_do")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slot", [*SLOTS, "deletes"])
def test_what_is_there_all_the_same_is_not_used(world, attacker, planted, slot, kind):
    open_table(*MINE).append(rows(1))
    path = planted(kind, slot)
    is_metadata = slot in {"list", "manifest"}
    with untouched(world.canaries()):
        with unchanged():
            assert said(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)
            with pytest.raises(ForeignFile) as refused:
                show()
            assert refused.value.message == refusal(path)
        for job_kind in iceberg_actions.WORK if is_metadata else READS_ROWS:
            job = run(job_kind, NoSpark(), keep_for=0, keep_versions=1)
            assert (job.status, job.error) == (JobStatus.FAILED, refusal(path)), job_kind
            # Nor by the job's process, should the table be so by then.
            with pytest.raises(ForeignFile) as refused:
                iceberg_tables.load_table(actor=replace(SYSTEM, job_kind=job.kind), table=MINE)
            assert refused.value.message == refusal(path)
        policy = policies.effective_policy(row())
        if is_metadata:
            with pytest.raises(ForeignFile) as refused:
                iceberg_statistics.measure(row(), policy)
            assert refused.value.message == refusal(path)
        else:
            # It counts what the own manifest says; nothing is opened for that.
            found = iceberg_statistics.measure(row(), policy)
            assert found is not None
            assert found.rows <= 4
        purged(world)


def purged(world: World) -> None:
    """Drop the table with its files, and look which are gone."""
    own = row().uuid
    with override_settings(MONODON_TRASH_SECONDS=0):
        iceberg_tables.drop_table(actor=SYSTEM, table=MINE, purge=True)
    job = Job.objects.latest("pk")
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert re.fullmatch(
        r"left in place: \d files (of other tables|outside its directories)", job.error
    ), job.error
    event = AuditEvent.objects.get(action="table.purge")
    assert event.table_uuid == own
    assert event.after["files"] == len(event.after["paths"]) > 0
    assert all(each.startswith(f"{world.mine}/") for each in event.after["paths"])


@pytest.mark.parametrize("kind", ["hidden", "dropped", "system", "link", "pipe"])
@pytest.mark.parametrize("slot", ["manifest", "data"])
def test_a_plan_that_was_kept_is_looked_at_again(world, attacker, monkeypatch, slot, kind):
    """Its manifest list is another when its tasks are fetched."""
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
    assert said(response) == refusal(path)


@pytest.mark.parametrize("kind", ["hidden", "dropped", "twin", "system", "link"])
def test_clean_up_is_told_whose_the_files_are(world, planted, kind):
    planted(kind, "data")
    open_table(*MINE).overwrite(rows(1))
    spark = _Asked()
    with untouched(world.canaries()):
        job = run(JobKind.CLEAN_UP, spark, keep_for=0, keep_versions=1)
    assert job.status == JobStatus.SUCCEEDED, job.error
    (request,) = spark.requests
    assert request["own_prefixes"] == [str(world.mine)]
    assert request["foreign_prefixes"] == []
    assert job.result["planned"]["foreign_files"] == 1
    event = AuditEvent.objects.get(action="maintenance.clean_up")
    assert event.after == {"job": job.pk, "files": 2, "paths": ["a", "b"]}
    assert event.table_uuid == row().uuid


class _Asked:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def __call__(self, job: Job, script: str, request: Any, report: Any, **_: Any) -> Any:
        self.requests.append(dict(request))
        return {"deleted_data_files_count": 2, "deleted_files": ["a", "b"]}


# --- what is allowed ---------------------------------------------------------------------------


def test_files_of_a_table_that_one_may_read_are_planned_and_spared(world, attacker):
    """As Spark's ``snapshot`` makes a table of another's data files."""
    who = ApiKey.objects.get(name="who").principal
    source = Table.objects.get(namespace__name="secret", name="t")
    who.grants.create(mask=closure(Privilege.READ).value, table=source)
    path = world.path("hidden", "data")
    body = {"requirements": [], "updates": updates(snapshot("data", path))}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    reference = FileReference.objects.get()
    assert (reference.table, reference.source, reference.principal) == (row(), source, who.name)
    (task,) = attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]
    assert task["data-file"]["file-path"] == path
    # The source knows of it.
    job: Job = commit(
        [
            job_operations.StartMaintenance(
                table=("secret", "t"),
                format="iceberg",
                kind_of_job=JobKind.CLEAN_UP,
                parameters={"policy": {"keep_for": 0, "keep_versions": 1}},
            )
        ],
        actor=SYSTEM,
    ).results[0]
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert (job.status, job.error) == (
        JobStatus.FAILED,
        (
            "Table 'secret.t' has dependents: 'mine.t'. They refer to its files, so no files are"
            " removed"
        ),
    )
    iceberg_tables.drop_table(actor=SYSTEM, table=("secret", "t"), purge=True)
    purge = Job.objects.latest("pk")
    Job.objects.filter(pk=purge.pk).update(lease_until=None)
    job_runner.run_job(purge.pk)
    purge.refresh_from_db()
    assert (purge.status, purge.error) == (JobStatus.CANCELED, "other tables refer to its files")
    assert world.victims["hidden"].data.exists()
    # Whoever committed it may not read it any more: nobody reads it by way of that table.
    who.grants.filter(table=source).delete()
    assert said(attacker.call("POST", f"{COMMIT}/plan", {})) == refusal(path)


def test_files_that_no_table_has_are_read_in_an_allowed_root(world, attacker, settings, tmp_path):
    """As ``add_files`` brings them in."""
    free = tmp_path / "outside"
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


def test_nothing_else_is_needed_of_who_has_only_their_own(world, attacker):
    before = picture()
    open_table(*MINE).append(rows(1, 2))
    assert before != picture()
    assert len(attacker.post(f"{COMMIT}/plan", {})["file-scan-tasks"]) == 1
    found = iceberg_statistics.measure(row(), policies.effective_policy(row()))
    assert found is not None
    assert found.rows == 2
