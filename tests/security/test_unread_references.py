"""References in manifests that a commit does not read completely protect their files too."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import ForeignFile
from catalog.models import FileReference, Job, JobKind, JobStatus, Principal, UnreadSnapshot
from catalog.models import Table as TableRow
from catalog.privileges import Privilege, closure
from catalog.services.engine import jobs
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import references as iceberg_references
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import job_runner
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.storage import file_references
from catalog.services.storage.table_files import TableFiles
from catalog.storage import local_directories
from tasks import maintenance as tasks
from tests.factories import files, make_iceberg_table
from tests.factories import snapshot as picture
from tests.security.foreign import COMMIT, MINE, World, snapshot, updates

pytestmark = pytest.mark.django_db
SOURCE = ("secret", "t")
LIMITS = [
    *("_MAX_LIST_BYTES", "_MAX_MANIFEST_BYTES", "_MAX_ENTRIES", "_MAX_LISTS"),
    "_MAX_MANIFESTS",
]


@pytest.fixture(autouse=True)
def _no_heartbeat(monkeypatch) -> None:
    """Disable the heartbeat, whose connection does not see the job of the test."""
    monkeypatch.setattr(jobs, "_HEARTBEAT_SECONDS", 3600.0)


@pytest.fixture
def source(world: World) -> TableRow:
    row = TableRow.objects.select_related("namespace").named(SOURCE).get()
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, table=row)
    return row


@pytest.fixture(params=LIMITS)
def limited(request, source, monkeypatch) -> None:
    """Limits that make a commit read less than everything, one for each reason."""
    monkeypatch.setattr(iceberg_files, request.param, 0)


def commit_reference(world: World, attacker: Any) -> None:
    """A snapshot of the own table with one file of the source."""
    added = updates(snapshot("data", world.path("hidden", "data")))
    response = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert response.status_code == 200, response.content


def commit_references(world: World, attacker: Any, count: int) -> None:
    """References in several commits, each with its own manifest."""
    for _ in range(count):
        commit_reference(world, attacker)


class Reads:
    """Counts the manifests that are read, by path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self._data_files = iceberg_references.data_files
        monkeypatch.setattr(iceberg_references, "data_files", self)

    def __call__(self, reader: Any, paths: list[str]) -> Any:
        self.paths += paths
        return self._data_files(reader, paths)


def references() -> list[tuple[str, str, str]]:
    rows = FileReference.objects.values_list("table__name", "source__name", "principal")
    return list(rows)


class NoSpark:
    def __call__(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        raise AssertionError("no Spark is to be started")


def clean_up() -> Job:
    job = maintenance_scheduler.start(actor=SYSTEM, table=SOURCE, kind="clean_up")
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    return job


def test_a_commit_records_the_references_it_reads(world, source, attacker):
    commit_reference(world, attacker)
    assert references() == [("t", "t", "who")]
    assert not UnreadSnapshot.objects.exists()


@pytest.mark.usefixtures("limited")
def test_clean_up_reads_references_not_read_by_commits(world, source, attacker):
    commit_reference(world, attacker)
    assert references() == []
    assert UnreadSnapshot.objects.get().principal == "who"
    before = files(source.location)
    job = clean_up()
    assert (job.status, "1 other table refers to files" in job.error) == (JobStatus.FAILED, True)
    assert references() == [("t", "t", "who")]
    assert not UnreadSnapshot.objects.exists()
    assert files(source.location) == before


@pytest.mark.usefixtures("limited")
def test_a_purge_reads_references_not_read_by_commits(world, source, attacker, settings):
    settings.MONODON_TRASH_SECONDS = 0
    commit_reference(world, attacker)
    before = files(source.location)
    iceberg_tables.drop_table(actor=SYSTEM, table=SOURCE, purge=True)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.CANCELED, "other tables refer to its files")
    assert files(source.location) == before


@pytest.mark.usefixtures("limited")
def test_an_inactive_principal_takes_over_no_reference(world, source, attacker):
    """Its snapshots still protect the files, but nobody may read them in its name."""
    other = Principal.objects.create(name="user:other", kind="user")
    other.grants.create(mask=closure(Privilege.READ).value, table=source)
    mine = TableRow.objects.named(MINE).get()
    file_references.record_references(
        actor=access.of_row(other), table_id=mine.pk, foreign={(source.pk, source.location)}
    )
    commit_reference(world, attacker)
    Principal.objects.filter(name="who").update(is_active=False)
    iceberg_references.read_unread()
    assert references() == [("t", "t", "user:other")]
    assert not UnreadSnapshot.objects.exists()


@pytest.mark.parametrize("replaced", ["list", "manifest", "nothing"])
def test_the_rights_of_a_committer_open_only_what_it_has_committed(world, monkeypatch, replaced):
    """An administrator commits a snapshot, and a writer of the table replaces a file of it."""
    monkeypatch.setattr(iceberg_files, "_MAX_LIST_BYTES", 0)
    Principal.objects.create(name="admin", kind="user", level="admin")
    hidden = world.path("hidden", "data")
    planted = snapshot("data", hidden)["snapshot-id"]
    committed = snapshot("data", hidden if replaced == "nothing" else f"file://{world.mine}/x")
    change = TableChange(table=MINE, requirements=[], updates=updates(committed))
    iceberg_commits.commit_table(actor=access.named("admin"), change=change)
    metadata = Path(world.mine, "metadata")
    prefix = {"list": "snap-", "manifest": ""}.get(replaced)
    if prefix is not None:
        content = (metadata / f"{prefix}{planted}.avro").read_bytes()
        file = metadata / f"{prefix}{committed['snapshot-id']}.avro"
        file.write_bytes(content)
        os.utime(file, (0, 0))  # the owner of a file chooses the time of its modification
    UnreadSnapshot.objects.update(is_whole=True)  # the planted list names a manifest of another one
    assert iceberg_references.read_unread() == 0
    assert references() == [("t", "t", "admin")]
    files = TableFiles(TableRow.objects.named(MINE).get())
    if replaced == "nothing":
        assert set(files.require_readable(access.named("who"), [hidden])) == {hidden}
    else:
        with pytest.raises(ForeignFile):
            files.require_readable(access.named("who"), [hidden])


def test_nothing_is_removed_while_manifests_cannot_be_reached(
    world, source, attacker, monkeypatch, settings
):
    settings.MONODON_TRASH_SECONDS = 0
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 1)
    commit_reference(world, attacker)
    iceberg_tables.drop_table(actor=SYSTEM, table=SOURCE, purge=True)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    before, ledger = files(source.location), picture()

    def unreachable(path: str) -> None:
        raise OSError(f"the directory that holds {path} is not there")

    monkeypatch.setattr(local_directories, "require_reachable", unreachable)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED  # the job is retried
    assert UnreadSnapshot.objects.count() == 1
    assert files(source.location) == before
    after = picture()
    assert {name for name in after if after[name] != ledger[name]} <= {"Job", "Transaction"}


def test_references_to_unreadable_files_do_not_block_a_table(world, attacker, monkeypatch):
    """The files are not read for their table, either."""
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 1)
    commit_reference(world, attacker)
    assert UnreadSnapshot.objects.count() == 1
    iceberg_references.read_unread()
    assert references() == []
    assert not UnreadSnapshot.objects.exists()


@pytest.mark.parametrize("change", ["torn", "missing", "link"])
def test_an_unreadable_manifest_references_nothing(world, source, attacker, monkeypatch, change):
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 1)
    commit_reference(world, attacker)
    for path in Path(world.mine, "metadata").glob("*.avro"):
        if not path.name.startswith("snap-"):
            path.unlink()
            if change == "torn":
                path.write_bytes(b"Obj\x01torn")
            elif change == "link":
                path.symlink_to("/dev/zero")
    iceberg_references.read_unread()
    assert references() == []
    assert not UnreadSnapshot.objects.exists()


def test_manifests_of_a_snapshot_without_a_list_are_read(world, source, attacker, monkeypatch):
    """The snapshots of v1 may name their manifests themselves."""
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    old = make_iceberg_table("mine", "old", properties={"format-version": "1"})
    written = snapshot("data", world.path("hidden", "data"))
    manifest = Path(old.location, "metadata", "added.avro")
    shutil.copy(Path(world.mine, "metadata", f"{written['snapshot-id']}.avro"), manifest)
    added = {
        **{key: written[key] for key in ("snapshot-id", "timestamp-ms", "summary")},
        "manifests": [f"file://{manifest}"],
    }
    body = {"requirements": [], "updates": updates(added)}
    attacker.post("namespaces/mine/tables/old", body)
    assert (UnreadSnapshot.objects.count(), references()) == (1, [])
    assert iceberg_references.read_unread() == 0
    assert references() == [("old", "t", "who")]


def test_register_checks_manifests_of_older_snapshots(world, source, attacker, monkeypatch):
    """Manifests of snapshots that the metadata no longer contains."""
    commit_reference(world, attacker)
    FileReference.objects.all().delete()
    table = iceberg_tables.unregister_table(actor=SYSTEM, table=MINE)
    (added,) = table.document["snapshots"]
    listed = iceberg_files._listed
    monkeypatch.setattr(
        iceberg_files, "_listed", lambda *args: [(path, 1) for path, _ in listed(*args) or ()]
    )
    body = {"name": "again", "metadata-location": table.metadata_location}
    assert attacker.call("POST", "namespaces/mine/register", body).status_code == 200
    assert added["snapshot-id"] != 1
    assert references() == [("again", "t", "who")]


def test_a_manifest_that_many_snapshots_name_is_read_once(world, source, attacker, monkeypatch):
    monkeypatch.setattr(iceberg_files, "_MAX_LIST_BYTES", 0)
    commit_reference(world, attacker)
    manifest = next(
        path
        for path in Path(world.mine, "metadata").glob("*.avro")
        if not path.name.startswith("snap-")
    )
    added = [
        snapshot("manifest", f"file://{manifest}", **{"sequence-number": number})
        for number in range(2, 201)
    ]
    body = {
        "requirements": [],
        "updates": [update for snapshot in added for update in updates(snapshot)],
    }
    assert attacker.call("POST", COMMIT, body).status_code == 200
    assert UnreadSnapshot.objects.count() == 200
    reads = Reads(monkeypatch)
    job = clean_up()
    assert "1 other table refers to files" in job.error
    assert reads.paths == [f"file://{manifest}"]
    assert references() == [("t", "t", "who")]
    assert not UnreadSnapshot.objects.exists()


@pytest.mark.parametrize("limit", LIMITS)
def test_clean_up_does_not_read_references_that_cannot_concern_its_table(
    world, attacker, monkeypatch, limit
):
    """The attacker may not read the table, whose location the server chose."""
    monkeypatch.setattr(iceberg_files, limit, 0)
    commit_reference(world, attacker)
    reads = Reads(monkeypatch)
    before = files(world.victims["hidden"].data.parents[1])
    job = clean_up()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "no snapshots to expire")
    assert reads.paths == []
    assert UnreadSnapshot.objects.count() == 1
    assert files(world.victims["hidden"].data.parents[1]) == before


def test_a_purge_does_not_read_references_that_cannot_concern_its_table(
    world, attacker, monkeypatch, settings
):
    settings.MONODON_TRASH_SECONDS = 0
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    commit_reference(world, attacker)
    reads = Reads(monkeypatch)
    iceberg_tables.drop_table(actor=SYSTEM, table=SOURCE, purge=True)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, reads.paths) == (JobStatus.SUCCEEDED, [])
    assert UnreadSnapshot.objects.count() == 1


def test_one_call_reads_a_limited_number_of_files(world, source, attacker, monkeypatch):
    """Nothing is removed before everything is read; the next attempt continues."""
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    commit_references(world, attacker, 2)
    monkeypatch.setattr(iceberg_references, "_MAX_FILES", 1)
    before = files(source.location)
    job = clean_up()
    assert (job.status, "are still being read" in job.error) == (JobStatus.QUEUED, True)
    assert UnreadSnapshot.objects.count() == 1
    assert files(source.location) == before
    Job.objects.filter(pk=job.pk).update(lease_until=None)
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert (job.status, "1 other table refers to files" in job.error) == (JobStatus.FAILED, True)
    assert not UnreadSnapshot.objects.exists()


def test_reading_continues_within_a_snapshot(world, source, attacker, monkeypatch):
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    added = updates(snapshot("deletes", world.path("hidden", "data")))
    body = {"requirements": [], "updates": added}
    assert attacker.call("POST", COMMIT, body).status_code == 200
    monkeypatch.setattr(iceberg_references, "_MAX_FILES", 1)
    reads = Reads(monkeypatch)
    assert iceberg_references.read_unread() == 1
    assert (UnreadSnapshot.objects.get().manifests_read, references()) == (1, [("t", "t", "who")])
    assert iceberg_references.read_unread() == 0
    assert len(set(reads.paths)) == len(reads.paths) == 2


def test_many_references_of_one_principal_do_not_delay_those_of_others(
    world, source, attacker, monkeypatch
):
    """The limit applies to each principal separately."""
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    commit_references(world, attacker, 4)
    other = Principal.objects.create(name="other", kind="service")
    last = UnreadSnapshot.objects.order_by("-pk").first()
    UnreadSnapshot.objects.filter(pk=last.pk).update(principal=other.name)
    monkeypatch.setattr(iceberg_references, "_MAX_FILES", 1)
    assert iceberg_references.read_unread() == 2
    assert set(UnreadSnapshot.objects.values_list("principal", flat=True)) == {"who"}


def test_a_clean_up_that_reads_renews_its_lease_and_stops_on_request(
    world, source, attacker, monkeypatch
):
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    commit_references(world, attacker, 3)
    reads = Reads(monkeypatch)
    original = Reads.__call__
    leases = []

    def request_stop(self: Reads, reader: Any, path: str) -> Any:
        leases.append(Job.objects.get().lease_until)
        Job.objects.update(cancel_requested=len(leases) == 2)
        return original(self, reader, path)

    monkeypatch.setattr(Reads, "__call__", request_stop)
    before = files(source.location)
    job = clean_up()
    assert (job.status, job.error) == (JobStatus.CANCELED, "canceled on request")
    assert (len(reads.paths), UnreadSnapshot.objects.count()) == (2, 2)
    assert leases[1] > leases[0]
    assert files(source.location) == before


def test_the_periodic_task_forgets_snapshots_of_purged_tables(world, attacker, monkeypatch):
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    commit_reference(world, attacker)
    iceberg_tables.drop_table(actor=SYSTEM, table=MINE, purge=True)
    Job.objects.filter(kind=JobKind.PURGE_TABLE).update(status=JobStatus.SUCCEEDED)
    reads = Reads(monkeypatch)
    assert tasks.read_unread_snapshots() == 0
    assert reads.paths == []
