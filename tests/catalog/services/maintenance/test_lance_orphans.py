"""Removal of orphans: files that no version has and no writer may still need."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.models import AuditEvent, Job, JobStatus, Table, TableVersion
from catalog.privileges import Privilege
from catalog.services.engine import database_clock, jobs
from catalog.services.engine.commit import commit
from catalog.services.engine.jobs import JobCanceled
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.maintenance import job_runner, lance_orphans
from catalog.services.tables import job_operations
from tests.factories import files, make_administrator, make_iceberg_table, make_lance_table, stage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)
DAY = 86_400


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


@pytest.fixture
def row() -> Table:
    """A table with an index and deleted rows. All its files are old."""
    made = make_lance_table(TABLE, pa.table({"id": range(100)}))
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id < 5")
    lance_commits.write(
        actor=SYSTEM,
        table=TABLE,
        operation=data_operations.CreateTableIndex,
        work=lambda dataset: dataset.create_scalar_index("id", "BTREE"),
    )
    lance_versions.settle_pending()
    age(made)
    return made


def age(row: Table, *names: str, days: float = 10) -> None:
    """Set back the modification times of files, by default of all files of the table."""
    moment = time.time() - days * DAY
    for name in names or files(row.location):
        os.utime(f"{row.location}/{name}", (moment, moment))


def add_orphan(row: Table, name: str, *, days: float = 10, like: str = "data") -> str:
    """Create a file that no version has."""
    target = Path(row.location, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    source = next(path for path in files(row.location) if path.startswith(like))
    shutil.copyfile(f"{row.location}/{source}", target)
    age(row, name, days=days)
    return name


def start(*, dry: bool = False, **values: Any) -> Job:
    operation = job_operations.StartMaintenance(
        table=TABLE,
        kind_of_job="remove_orphans",
        is_dry_run=dry,
        parameters={"policy": {"orphan_age": 3 * DAY} | values},
    )
    job: Job = commit([operation], actor=ADA).results[0]
    return job


def run(*, dry: bool = False, **values: Any) -> Job:
    job = start(dry=dry, **values)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def rows(branch: str = "") -> int:
    return lance_datasets.read(actor=SYSTEM, table=TABLE, branch=branch).to_table().num_rows


def test_a_table_without_orphans_is_unchanged(row):
    before = files(row.location)
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert files(row.location) == before
    assert job.result["plan"] == {"orphans": 0, "bytes": 0, "paths": []}
    assert not AuditEvent.objects.filter(action="maintenance.remove_orphans").exists()
    assert rows() == 95


def test_orphans_are_removed_that_are_younger_than_the_oldest_version(row, monkeypatch):
    """Lance lists no transaction or deletion file that was written after that version."""
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id < 10")
    lance_versions.settle_pending()
    before = files(row.location)
    orphans = {
        add_orphan(row, "_deletions/0-1-77.arrow", like="_deletions", days=0),
        add_orphan(row, "_transactions/1-8d1b3c52-8a3e-4c4e-9f0e-1b1f0a1f2a3b.txn", days=0),
        add_orphan(row, "data/dead.lance", days=0),
    }
    cutoff = database_clock.cutoff
    monkeypatch.setattr(database_clock, "cutoff", lambda age: cutoff(age) + timedelta(days=10))
    planned = run(dry=True)
    assert set(planned.result["plan"]["paths"]) == orphans
    assert run().result["files"] == len(orphans)
    assert files(row.location) == before
    assert rows() == 90


def test_old_orphans_are_removed_and_new_ones_kept(row):
    before = files(row.location)
    orphans = {
        add_orphan(row, "data/dead.lance"),
        add_orphan(row, "_deletions/9-1-77.arrow", like="_deletions"),
        add_orphan(row, "_indices/8d1b3c52-8a3e-4c4e-9f0e-1b1f0a1f2a3b/page_data.lance"),
        add_orphan(row, "_transactions/1-8d1b3c52-8a3e-4c4e-9f0e-1b1f0a1f2a3b.txn", like="_trans"),
    }
    young = add_orphan(row, "data/young.lance", days=2)
    size = sum(len(files(row.location)[name]) for name in orphans)
    job = run()
    assert job.error == ""
    assert set(files(row.location)) == {*before, young}
    assert (job.result["files"], job.result["bytes"]) == (4, size)
    assert (job.progress, job.total) == (4, 4)
    assert rows() == 95
    event = AuditEvent.objects.get(action="maintenance.remove_orphans")
    assert event.after == {"job": job.pk, "files": 4, "bytes": size}
    removed = AuditEvent.objects.get(action="table.remove_files")
    location = job.table.location
    assert removed.after == {
        "job": job.pk,
        "files": 4,
        "paths": [f"{location}/{path}" for path in job.result["plan"]["paths"]],
    }
    assert removed.table_uuid == event.table_uuid == job.table.uuid
    assert event.actor == "ada"


def test_files_younger_than_a_day_are_always_kept(row):
    name = add_orphan(row, "data/young.lance", days=0.9)
    assert run(orphan_age=0).result["plan"]["orphans"] == 0
    assert name in files(row.location)


def test_a_dry_run_lists_the_files(row):
    name = add_orphan(row, "data/dead.lance")
    before = files(row.location)
    job = run(dry=True)
    assert files(row.location) == before
    size = len(before[name])
    assert job.result["plan"] == {"orphans": 1, "bytes": size, "paths": [name]}
    assert run().result["plan"] == job.result["plan"]


def test_files_of_old_versions_are_kept(row):
    lance_data.insert(
        actor=SYSTEM, table=TABLE, data=pa.table({"id": [1]}).to_reader(), overwrite=True
    )
    lance_versions.settle_pending()
    age(row)
    run()
    assert lance_datasets.read(actor=SYSTEM, table=TABLE, version=2).to_table().num_rows == 95
    assert rows() == 1


def test_unused_staged_manifests_are_removed_and_those_of_the_ledger_kept(row):
    vain = stage(row, 9)
    waiting = stage(row, 7)
    entry = TableVersion.objects.get(version=1)
    TableVersion.objects.filter(pk=entry.pk).update(
        manifest_path=str(waiting).lstrip("/"), staged_path=None, deleted_at="2026-01-01T00:00Z"
    )
    age(row)
    job = run()
    assert job.result["plan"]["paths"] == [f"_versions/{vain.name}"]
    assert not vain.exists()
    assert waiting.exists()


def test_orphans_of_branches_are_removed(row):
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev")
    more = pa.table({"id": [1000]}).to_reader()
    lance_data.insert(actor=SYSTEM, table=TABLE, data=more, branch="dev")
    lance_versions.settle_pending()
    age(row)
    before = files(row.location)
    add_orphan(row, "data/dead.lance")
    add_orphan(row, "tree/dev/data/dead.lance")
    job = run()
    assert job.result["plan"]["paths"] == ["data/dead.lance", "tree/dev/data/dead.lance"]
    assert files(row.location) == before
    assert (rows(), rows("dev")) == (95, 96)


def test_files_of_a_branch_alone_are_kept(row):
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=2)
    lance_data.insert(
        actor=SYSTEM, table=TABLE, data=pa.table({"id": [1]}).to_reader(), overwrite=True
    )
    lance_versions.settle_pending()
    age(row)
    run()
    assert rows("dev") == 95


def test_nothing_is_removed_if_the_origin_of_a_branch_is_missing(row):
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=2)
    lance_versions.settle_pending()
    # Older releases allowed this.
    TableVersion.objects.filter(branch="", version=2).update(deleted_at="2026-01-01T00:00Z")
    Path("/" + TableVersion.objects.get(branch="", version=2).manifest_path).unlink()
    add_orphan(row, "data/dead.lance")
    before = files(row.location)
    job = run()
    assert (
        job.error == "nothing removed: version 2, from which branch 'dev' was created, is missing"
    )
    assert files(row.location) == before


def test_nothing_is_removed_if_storage_has_an_unknown_branch(row):
    lance.dataset(row.location).create_branch("own", 2)
    add_orphan(row, "data/dead.lance")
    before = files(row.location)
    assert run().error == "nothing removed: branch 'own' is not in the catalog"
    assert files(row.location) == before


def test_nothing_is_removed_in_a_directory_with_files_of_another_table(row):
    make_iceberg_table("ws", "i")
    Table.objects.filter(name="i").update(location=f"{row.location}/data/inner")
    add_orphan(row, "data/dead.lance")
    before = files(row.location)
    assert run().error == "nothing removed: another table also has files at its location"
    assert files(row.location) == before


def test_links_are_not_followed(row, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "dead.lance").write_bytes(b"somebody else's")
    os.utime(outside / "dead.lance", (1, 1))
    Path(row.location, "_indices", "8d1b3c52-8a3e-4c4e-9f0e-1b1f0a1f2a3b").symlink_to(outside)
    Path(row.location, "data", "link.lance").symlink_to(outside / "dead.lance")
    run()
    assert (outside / "dead.lance").exists()


def test_files_written_again_during_the_job_are_kept(row, monkeypatch):
    name = add_orphan(row, "data/dead.lance")
    job = jobs.take(start().pk)
    assert job is not None

    def report(_completed: int, _total: int | None = None) -> None:
        age(row, name, days=0)

    lance_orphans.remove_orphans(job, report)
    assert name in files(row.location)


def test_a_stopped_job_reports_the_removed_files(row):
    for number in range(250):
        add_orphan(row, f"data/dead{number}.lance")
    job = jobs.take(start().pk)
    assert job is not None

    def report(completed: int, _total: int | None = None) -> None:
        if completed >= 200:
            raise JobCanceled("canceled on request")

    with pytest.raises(JobCanceled):
        lance_orphans.remove_orphans(job, report)
    assert AuditEvent.objects.get(action="maintenance.remove_orphans").after["files"] == 200
    assert sum(name.startswith("data/dead") for name in files(row.location)) == 50


def test_files_of_a_refused_branch_are_removed(row):
    staged = stage(row, 2, branch="refused")
    name = add_orphan(row, "data/dead.lance")
    age(row)
    job = run()
    assert job.result["plan"]["paths"] == [f"tree/refused/_versions/{staged.name}", name]
    assert not staged.exists()
