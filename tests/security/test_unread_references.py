"""References in manifests that a commit does not read to the end protect their files all the same."""

from pathlib import Path
from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.models import FileReference, Job, JobKind, JobStatus, Principal, UnreadSnapshot
from catalog.models import Table as TableRow
from catalog.privileges import Privilege, closure
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import references as iceberg_references
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import job_runner
from catalog.services.maintenance import scheduler as maintenance_scheduler
from tests.factories import files
from tests.factories import snapshot as picture
from tests.security.foreign import COMMIT, MINE, World, snapshot, updates

pytestmark = pytest.mark.django_db
SOURCE = ("secret", "t")


@pytest.fixture
def source(world: World) -> TableRow:
    row = TableRow.objects.select_related("namespace").named(SOURCE).get()
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, table=row)
    return row


@pytest.fixture(params=["_MAX_LIST_BYTES", "_MAX_MANIFEST_BYTES", "_MAX_ENTRIES", "_MAX_LISTS"])
def limited(request, source, monkeypatch) -> None:
    """A commit that looks at less than there is, for each of the reasons."""
    monkeypatch.setattr(iceberg_files, request.param, 0)


def commit_reference(world: World, attacker: Any) -> None:
    """A snapshot of the own table with one file of the source."""
    added = updates(snapshot("data", world.path("hidden", "data")))
    response = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert response.status_code == 200, response.content


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
    assert (job.status, "has dependents: 'mine.t'" in job.error) == (JobStatus.FAILED, True)
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

    monkeypatch.setattr(iceberg_references.local_directories, "require_reachable", unreachable)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED  # it is tried again
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


def test_register_checks_manifests_of_older_snapshots(world, source, attacker, monkeypatch):
    """Manifests of snapshots that the metadata no longer contains."""
    commit_reference(world, attacker)
    FileReference.objects.all().delete()
    table = iceberg_tables.unregister_table(actor=SYSTEM, table=MINE)
    (added,) = table.document["snapshots"]
    listed = iceberg_files._listed
    monkeypatch.setattr(
        iceberg_files, "_listed", lambda path: [(path_, 1) for path_, _ in listed(path) or ()]
    )
    body = {"name": "again", "metadata-location": table.metadata_location}
    assert attacker.call("POST", "namespaces/mine/register", body).status_code == 200
    assert added["snapshot-id"] != 1
    assert references() == [("again", "t", "who")]
