"""Manifests that a commit did not read keep files also if another table gets the directory of the files."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models import F

from catalog.access import SYSTEM
from catalog.models import FileReference, Job, JobStatus, Principal, Table, UnreadSnapshot
from catalog.privileges import Privilege, closure
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import references as iceberg_references
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import job_runner
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.tables import dependents
from tests.api.iceberg.client import Iceberg
from tests.factories import files, make_iceberg_table
from tests.security.foreign import COMMIT, World, snapshot, updates, write_table
from tests.security.test_unread_references import NoSpark, Reads

pytestmark = pytest.mark.django_db
SOURCE, NEXT = ("secret", "source"), ("other", "next")


@pytest.fixture(autouse=True)
def _unread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit commits so that they read no manifest."""
    monkeypatch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)


def refer_into(attacker: Iceberg, path: Path) -> Path:
    """A table refers to a file below a path of another one that its principal may read; returns the file."""
    written = write_table(*SOURCE, properties={"write.data.path": f"file://{path}"})
    source = Table.objects.named(SOURCE).get()
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, table=source)
    data = path / "part" / written.data.name
    data.parent.mkdir()
    written.data.rename(data)
    added = updates(snapshot("data", f"file://{data}"))
    answer = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert answer.status_code == 200, answer.content
    assert UnreadSnapshot.objects.filter(principal="who").exists()
    assert not FileReference.objects.exists()
    return data


def take(data: Path, place: str) -> Table:
    """Another table, which the principal may not read, gets the directory of the file."""
    inside = f"file://{data.parent}"
    if place == "path":
        make_iceberg_table(*NEXT, properties={"write.data.path": inside})
    else:
        make_iceberg_table(*NEXT, location=inside)
    return Table.objects.named(NEXT).get()


def clean_up() -> Job:
    job = maintenance_scheduler.start(actor=SYSTEM, table=NEXT, kind="clean_up")
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    return job


@pytest.mark.parametrize("reader", ["job", "task"])
@pytest.mark.parametrize("place", ["path", "location"])
@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_clean_up_of_a_table_inside_the_path_knows_the_dependents(
    world: World, attacker: Iceberg, reader: str, place: str, is_dropped: bool
):
    data = refer_into(attacker, world.mine.parent / "shared")
    if is_dropped:
        iceberg_tables.unregister_table(actor=SYSTEM, table=SOURCE)
    following = take(data, place)
    if reader == "task":
        iceberg_references.read_unread()
        assert not UnreadSnapshot.objects.exists()
    before = files(data.parent)
    job = clean_up()
    assert job.status == JobStatus.FAILED, job.error
    assert "1 other table refers to files" in job.error
    assert files(data.parent) == before
    reference = FileReference.objects.get(source=following)
    assert (reference.table.name, reference.principal) == ("t", "who")
    assert dependents.detach_dependents(actor=SYSTEM, table=NEXT) == dependents.Detachment(1, 0)
    assert clean_up().error == "no snapshots to expire"


@pytest.mark.parametrize("reader", ["job", "task"])
def test_snapshots_committed_since_do_not_keep_files_that_their_principal_may_not_read(
    world: World, attacker: Iceberg, monkeypatch: pytest.MonkeyPatch, reader: str
):
    """A principal that may read the former table only cannot prevent removals from the table."""
    data = refer_into(attacker, world.mine.parent / "shared")
    following = take(data, "location")
    UnreadSnapshot.objects.update(created_at=F("created_at") + timedelta(minutes=2))
    if reader == "task":
        iceberg_references.read_unread()
        assert not UnreadSnapshot.objects.exists()
    reads = Reads(monkeypatch)
    job = clean_up()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "no snapshots to expire")
    assert not any("/mine/" in path for path in reads.paths)
    assert not FileReference.objects.filter(source=following).exists()
