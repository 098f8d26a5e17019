"""Removing files that no version has, and none that anybody may still need."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM, Principal
from catalog.models import AuditEvent, Job, JobStatus, Table, TableVersion
from catalog.privileges import Privilege
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
    """A table with an index and deleted rows, all of whose files are old."""
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
    """Let files look as if they were written so long ago; by default all that the table has."""
    moment = time.time() - days * DAY
    for name in names or files(row.location):
        os.utime(f"{row.location}/{name}", (moment, moment))


def leave(row: Table, name: str, *, days: float = 10, like: str = "data") -> str:
    """A file that no version has."""
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


def test_a_table_that_has_none_stays_as_it_is(row):
    before = files(row.location)
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert files(row.location) == before
    assert job.result["plan"] == {"orphans": 0, "bytes": 0, "paths": []}
    assert not AuditEvent.objects.filter(action="maintenance.remove_orphans").exists()
    assert rows() == 95


def test_old_files_go_and_young_ones_stay(row):
    before = files(row.location)
    orphans = {
        leave(row, "data/dead.lance"),
        leave(row, "_deletions/9-1-77.arrow", like="_deletions"),
        leave(row, "_indices/8d1b3c52-8a3e-4c4e-9f0e-1b1f0a1f2a3b/page_data.lance"),
        leave(row, "_transactions/1-8d1b3c52-8a3e-4c4e-9f0e-1b1f0a1f2a3b.txn", like="_trans"),
    }
    young = leave(row, "data/young.lance", days=2)
    size = sum(len(files(row.location)[name]) for name in orphans)
    job = run()
    assert job.error == ""
    assert set(files(row.location)) == {*before, young}
    assert (job.result["files"], job.result["bytes"]) == (4, size)
    assert (job.progress, job.total) == (4, 4)
    assert rows() == 95
    event = AuditEvent.objects.get(action="maintenance.remove_orphans")
    assert event.after == {"job": job.pk, "files": 4, "bytes": size}
    assert event.actor == "ada"


def test_what_is_younger_than_a_day_stays_whatever_is_asked(row):
    name = leave(row, "data/young.lance", days=0.9)
    assert run(orphan_age=0).result["plan"]["orphans"] == 0
    assert name in files(row.location)


def test_a_dry_run_names_the_files(row):
    name = leave(row, "data/dead.lance")
    before = files(row.location)
    job = run(dry=True)
    assert files(row.location) == before
    size = len(before[name])
    assert job.result["plan"] == {"orphans": 1, "bytes": size, "paths": [name]}
    assert run().result["plan"] == job.result["plan"]


def test_what_only_an_old_version_has_stays(row):
    lance_data.insert(
        actor=SYSTEM, table=TABLE, data=pa.table({"id": [1]}).to_reader(), overwrite=True
    )
    lance_versions.settle_pending()
    age(row)
    run()
    assert lance_datasets.read(actor=SYSTEM, table=TABLE, version=2).to_table().num_rows == 95
    assert rows() == 1


def test_manifests_staged_in_vain_go_and_those_of_the_ledger_stay(row):
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


def test_files_of_branches(row):
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev")
    more = pa.table({"id": [1000]}).to_reader()
    lance_data.insert(actor=SYSTEM, table=TABLE, data=more, branch="dev")
    lance_versions.settle_pending()
    age(row)
    before = files(row.location)
    leave(row, "data/dead.lance")
    leave(row, "tree/dev/data/dead.lance")
    job = run()
    assert job.result["plan"]["paths"] == ["data/dead.lance", "tree/dev/data/dead.lance"]
    assert files(row.location) == before
    assert (rows(), rows("dev")) == (95, 96)


def test_what_a_branch_alone_still_has_stays(row):
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=2)
    lance_data.insert(
        actor=SYSTEM, table=TABLE, data=pa.table({"id": [1]}).to_reader(), overwrite=True
    )
    lance_versions.settle_pending()
    age(row)
    run()
    assert rows("dev") == 95


def test_nothing_goes_where_the_origin_of_a_branch_is_gone(row):
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=2)
    lance_versions.settle_pending()
    # As older releases allowed.
    TableVersion.objects.filter(branch="", version=2).update(deleted_at="2026-01-01T00:00Z")
    Path("/" + TableVersion.objects.get(branch="", version=2).manifest_path).unlink()
    leave(row, "data/dead.lance")
    before = files(row.location)
    job = run()
    assert (
        job.error == "nothing removed: version 2, from which branch 'dev' was created, is missing"
    )
    assert files(row.location) == before


def test_nothing_goes_where_there_is_a_branch_that_the_catalog_does_not_know(row):
    lance.dataset(row.location).create_branch("own", 2)
    leave(row, "data/dead.lance")
    before = files(row.location)
    assert run().error == "nothing removed: branch 'own' is not in the catalog"
    assert files(row.location) == before


def test_nothing_goes_where_another_table_has_files(row):
    make_iceberg_table("ws", "i")
    Table.objects.filter(name="i").update(location=f"{row.location}/data/inner")
    leave(row, "data/dead.lance")
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


def test_what_is_written_again_meanwhile_stays(row, monkeypatch):
    name = leave(row, "data/dead.lance")
    job = start()

    def report(_done: int, _total: int | None = None) -> None:
        age(row, name, days=0)

    lance_orphans.remove_orphans(job, report)
    assert name in files(row.location)


def test_a_job_that_is_stopped_tells_what_it_removed(row):
    for number in range(250):
        leave(row, f"data/dead{number}.lance")
    job = start()

    def report(done: int, _total: int | None = None) -> None:
        if done >= 200:
            raise JobCanceled("canceled on request")

    with pytest.raises(JobCanceled):
        lance_orphans.remove_orphans(job, report)
    assert AuditEvent.objects.get(action="maintenance.remove_orphans").after["files"] == 200
    assert sum(name.startswith("data/dead") for name in files(row.location)) == 50


def test_what_a_refused_branch_left_goes_and_hinders_nothing(row):
    staged = stage(row, 2, branch="refused")
    name = leave(row, "data/dead.lance")
    age(row)
    job = run()
    assert job.result["plan"]["paths"] == [f"tree/refused/_versions/{staged.name}", name]
    assert not staged.exists()
