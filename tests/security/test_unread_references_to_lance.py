"""Files in the directory of a Lance table are kept for snapshots of Iceberg tables that nobody has read yet."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from lance import write_dataset

from catalog.access import SYSTEM
from catalog.errors import ServiceUnavailable
from catalog.models import FileReference, Job, JobStatus, Principal, Table, UnreadSnapshot
from catalog.privileges import Privilege, closure
from catalog.services.engine.commit import commit
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import references as iceberg_references
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations
from tests.api.iceberg.client import Iceberg
from tests.factories import files
from tests.security.foreign import COMMIT, World, snapshot, updates, write_table
from tests.security.test_unread_references import NoSpark

pytestmark = pytest.mark.django_db
SOURCE, LANCE = ("secret", "source"), ("secret", "lance")


@pytest.fixture
def data(world: World, attacker: Iceberg, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An old file of an Iceberg table in what is the directory of a Lance table now, with an unread reference to it."""
    path = world.mine.parent / "shared"
    written = write_table(*SOURCE, properties={"write.data.path": f"file://{path}"})
    data = path / "part" / "data" / written.data.name
    data.parent.mkdir(parents=True)
    written.data.rename(data)
    source = Table.objects.named(SOURCE).get()
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, table=source)
    added = updates(snapshot("data", f"file://{data}"))
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
        answer = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert answer.status_code == 200, answer.content
    location = str(path / "part")
    for number in range(3):
        write_dataset(pa.table({"id": [number]}), location, mode="overwrite")
    os.utime(data, (0, 0))
    register = registration_operations.RegisterTable(table=LANCE, location=location)
    commit([register], actor=SYSTEM)
    assert UnreadSnapshot.objects.exists()
    assert not FileReference.objects.exists()
    return data


def run(kind: str) -> Job:
    policy = {"keep_for": 0, "keep_versions": 1, "orphan_age": 0}
    start = job_operations.StartMaintenance(
        table=LANCE, kind_of_job=kind, parameters={"policy": policy}
    )
    job: Job = commit([start], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    return job


def test_orphans_that_unread_snapshots_name_stay(data: Path):
    job = run("remove_orphans")
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert data.exists()
    assert not UnreadSnapshot.objects.exists()
    reference = FileReference.objects.get(source__name="lance")
    assert reference.table.name == "t"


def test_a_clean_up_reads_them(data: Path):
    job = run("clean_up")
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert data.exists()
    assert not UnreadSnapshot.objects.exists()
    assert FileReference.objects.filter(source__name="lance").exists()


@pytest.mark.parametrize("kind", ["remove_orphans", "clean_up"])
def test_nothing_is_removed_before_they_are_read(
    data: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(iceberg_references, "_MAX_MANIFESTS", 0)
    before = files(data.parents[1])
    job = run(kind)
    assert (job.status, "are still being read" in job.error) == (JobStatus.QUEUED, True)
    assert files(data.parents[1]) == before
    assert UnreadSnapshot.objects.exists()


def test_a_branch_is_deleted_when_they_are_read(data: Path):
    lance_branches.create_branch(actor=SYSTEM, table=LANCE, name="b")
    before = files(data.parents[1])
    with pytest.raises(ServiceUnavailable, match="are still being read"):
        lance_branches.delete_branch(actor=SYSTEM, table=LANCE, name="b")
    assert files(data.parents[1]) == before
    assert iceberg_references.read_unread() == 0
    FileReference.objects.all().delete()
    lance_branches.delete_branch(actor=SYSTEM, table=LANCE, name="b")
