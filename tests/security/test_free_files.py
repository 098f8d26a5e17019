"""Files of no table keep their protection when another table gets the directory around them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from catalog.access import SYSTEM
from catalog.models import FileReference, FreeDirectory, Job, JobKind, JobStatus, UnreadSnapshot
from catalog.models import Table as TableRow
from catalog.services.engine.commit import commit
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import job_runner
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.storage import file_references, recorded_references
from catalog.services.tables.table_operations import DropTable
from tests.factories import files, make_iceberg_table, make_table
from tests.security.foreign import COMMIT, World, snapshot, updates

pytestmark = pytest.mark.django_db
OTHER = ("other", "t")


@pytest.fixture
def lake(world: World, tmp_path: Path, settings) -> Path:
    """A directory outside the warehouse, with a data file that belongs to no table."""
    settings.MONODON_TRASH_SECONDS = 0
    lake = tmp_path / "lake"
    settings.MONODON_ALLOWED_ROOTS = [str(lake)]
    data = lake / "x" / "data"
    data.mkdir(parents=True)
    (data / "rows.parquet").write_bytes(b"rows")
    return lake


def refer(client: Any, path: Path) -> None:
    """Commit a snapshot of 'mine.t' with a data file. Its committer has no privilege on other
    tables."""
    body = {"requirements": [], "updates": updates(snapshot("data", f"file://{path}"))}
    response = client.call("POST", COMMIT, body)
    assert response.status_code == 200, response.content


def make_other(format_: str, location: Path) -> TableRow:
    if format_ == "lance":
        return make_table(*OTHER, location=str(location))
    make_iceberg_table(*OTHER, location=f"file://{location}")
    return TableRow.objects.named(OTHER).get()


def purge(format_: str) -> Job:
    if format_ == "lance":
        commit([DropTable(table=OTHER)], actor=SYSTEM)
    else:
        iceberg_tables.drop_table(actor=SYSTEM, table=OTHER, purge=True)
    job = Job.objects.get(kind=JobKind.PURGE_TABLE)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


CANCELED = (JobStatus.CANCELED, "other tables refer to its files")


@pytest.mark.parametrize("format_", ["lance", "iceberg"])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_table_at_a_directory_cannot_remove_referenced_files_in_it(
    lake, attacker, monkeypatch, format_, is_read
):
    """The victim may not read the new table, because the files belonged to no table before."""
    if not is_read:
        monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    refer(attacker, lake / "x" / "data" / "rows.parquet")
    assert UnreadSnapshot.objects.exists() != is_read
    make_other(format_, lake / "x")
    before = files(lake)
    job = purge(format_)
    assert (job.status, job.error) == CANCELED
    assert files(lake) == before
    (reference,) = FileReference.objects.select_related("table", "source")
    assert (str(reference.table), str(reference.source)) == ("mine.t", "other.t")
    assert reference.principal == "who"


def test_orphans_are_not_removed_either(lake, attacker):
    refer(attacker, lake / "x" / "data" / "rows.parquet")
    make_other("iceberg", lake / "x")
    before = files(lake)
    job = maintenance_scheduler.start(actor=SYSTEM, table=OTHER, kind="remove_orphans")
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, "1 other table refers to files" in job.error) == (JobStatus.FAILED, True)
    assert files(lake) == before


@pytest.mark.parametrize("is_read", [True, False])
def test_later_references_to_files_of_a_table_do_not_block_it(lake, attacker, monkeypatch, is_read):
    if not is_read:
        monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
    row = make_other("lance", lake / "x")
    old = timedelta(hours=1)
    TableRow.objects.filter(pk=row.pk).update(located_at=F("located_at") - old)
    refer(attacker, lake / "x" / "data" / "rows.parquet")
    assert not FreeDirectory.objects.exists()
    job = purge("lance")
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert not (lake / "x").exists()
    assert not FileReference.objects.exists()


@pytest.mark.parametrize("format_", ["lance", "iceberg"])
def test_missing_files_do_not_block_a_table_that_gets_their_directory(lake, attacker, format_):
    """The principal that named them may have no right on the table."""
    for name in ("data", "metadata", "data/p=1"):
        refer(attacker, lake / "future" / name / "rows.parquet")
    assert not FreeDirectory.objects.exists()
    location = lake / "future"
    make_other(format_, location)
    job = purge(format_)
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert not FileReference.objects.exists()


def test_files_beside_a_new_table_do_not_block_it(lake, attacker):
    refer(attacker, lake / "x" / "data" / "rows.parquet")
    make_other("lance", lake / "x" / "data" / "deeper")
    assert purge("lance").status == JobStatus.SUCCEEDED


def test_only_directories_of_no_table_are_recorded(world, attacker, lake):
    refer(attacker, world.mine / "data" / "own.parquet")
    assert not FreeDirectory.objects.exists()
    refer(attacker, lake / "x" / "data" / "rows.parquet")
    row = FreeDirectory.objects.get()
    assert (row.path, row.is_prefix) == (str(lake / "x" / "data"), False)
    assert row.principal == "who"


@pytest.mark.parametrize("is_older", [True, False])
def test_many_directories_are_recorded_as_their_parent(world, lake, is_older):
    """This protects against tables that get the parent later, but not against existing ones."""
    mine = TableRow.objects.named(("mine", "t")).get()
    directories = {f"{lake}/x/p={number}" for number in range(101)}
    row = make_other("lance", lake / "x" / "p=1000")
    file_references.record_free(actor=SYSTEM, table_id=mine.pk, directories=directories)
    directory = FreeDirectory.objects.get()
    assert (directory.path, directory.is_prefix) == (f"{lake}/x", True)
    if is_older:
        TableRow.objects.filter(pk=row.pk).update(located_at=F("located_at") - timedelta(hours=1))
    recorded_references.record_claimed(row)
    assert file_references.dependents(row).exists() != is_older
