"""A restored table has files of tables that had its directories meanwhile, and what refers to these keeps them."""

import errno
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from catalog.access import SYSTEM
from catalog.models import (
    FileReference,
    Job,
    JobStatus,
    Principal,
    Table,
    TrashItem,
    UnreadSnapshot,
)
from catalog.privileges import Privilege, closure
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import files as iceberg_files
from catalog.services.iceberg import parallel_reads
from catalog.services.iceberg import references as iceberg_references
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import job_runner
from catalog.services.maintenance import scheduler as maintenance_scheduler
from catalog.services.recovery.undrop_operations import UndropTable
from catalog.services.storage import recorded_references
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import dependents
from tests.api.iceberg.client import Iceberg
from tests.factories import files, make_iceberg_table
from tests.security.foreign import COMMIT, World, snapshot, updates, write_table
from tests.security.test_unread_references import NoSpark, Reads

pytestmark = pytest.mark.django_db
FIRST, MEANWHILE = ("secret", "first"), ("other", "meanwhile")


def named(table: tuple[str, ...]) -> Table:
    return Table.objects.select_related("namespace").named(table).get()


def refer_to(attacker: Iceberg, data: Path, *, is_read: bool = True) -> None:
    """A table refers to a file of a table that its principal may read, and to no file of the first one."""
    mask = closure(Privilege.READ).value
    Principal.objects.get(name="who").grants.create(mask=mask, table=named(MEANWHILE))
    added = updates(snapshot("data", f"file://{data}"))
    with pytest.MonkeyPatch.context() as patch:
        if not is_read:
            patch.setattr(iceberg_files, "_MAX_MANIFEST_BYTES", 0)
        answer = attacker.call("POST", COMMIT, {"requirements": [], "updates": added})
    assert answer.status_code == 200, answer.content


def restore(table: tuple[str, ...]) -> None:
    item = TrashItem.objects.get(table__name=table[-1])
    commit([UndropTable(item=item.pk)], actor=SYSTEM)


def age(seconds: int) -> None:
    """Let everything so far have happened earlier."""
    earlier = timedelta(seconds=seconds)
    Table.objects.update(located_at=F("located_at") - earlier, created_at=F("created_at") - earlier)
    for table in Table.objects.all():
        table.paths.update(created_at=F("created_at") - earlier)
    UnreadSnapshot.objects.update(created_at=F("created_at") - earlier)
    FileReference.objects.update(created_at=F("created_at") - earlier)


def clean_up(table: tuple[str, ...] = FIRST) -> Job:
    job = maintenance_scheduler.start(actor=SYSTEM, table=table, kind="clean_up")
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    return job


def live_meanwhile(world: World, attacker: Iceberg, place: str, *, is_read: bool) -> Path:
    """Another table has a directory of the first one while that is deregistered; returns a file to which others refer."""
    directory = world.mine.parent / "shared"
    at = f"file://{directory}"
    where: dict[str, Any] = (
        {"location": at} if place == "location" else {"properties": {"write.data.path": at}}
    )
    make_iceberg_table(*FIRST, **where)
    age(3600)
    iceberg_tables.unregister_table(actor=SYSTEM, table=FIRST)
    data = write_table(*MEANWHILE, **where).data
    assert directory in data.parents
    refer_to(attacker, data, is_read=is_read)
    iceberg_tables.unregister_table(actor=SYSTEM, table=MEANWHILE)
    age(600)
    restore(FIRST)
    assert TableFiles(named(FIRST)).may_change(str(data))
    return data


@pytest.mark.parametrize("reader", ["commit", "job", "task"])
@pytest.mark.parametrize("place", ["path", "location"])
def test_a_clean_up_of_a_restored_table_knows_the_dependents(
    world: World, attacker: Iceberg, reader: str, place: str
):
    data = live_meanwhile(world, attacker, place, is_read=reader == "commit")
    assert UnreadSnapshot.objects.exists() == (reader != "commit")
    if reader == "task":
        iceberg_references.read_unread()
        assert not UnreadSnapshot.objects.exists()
    before = files(data.parent)
    job = clean_up()
    assert job.status == JobStatus.FAILED, job.error
    assert "1 other table refers to files" in job.error
    assert files(data.parent) == before
    assert dependents.detach_dependents(actor=SYSTEM, table=FIRST) == dependents.Detachment(1, 0)
    assert clean_up().error == "no snapshots to expire"


def test_snapshots_committed_since_a_table_was_restored_do_not_delay_it(
    world: World, attacker: Iceberg, monkeypatch: pytest.MonkeyPatch
):
    live_meanwhile(world, attacker, "location", is_read=False)
    UnreadSnapshot.objects.update(created_at=F("created_at") + timedelta(minutes=15))
    reads = Reads(monkeypatch)
    job = clean_up()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "no snapshots to expire")
    assert reads.paths == []


def test_references_since_a_table_came_do_not_count_because_it_gets_another_directory(
    world: World, attacker: Iceberg
):
    """Whoever refers to other files of the table around it, also by manifests that others wrote."""
    path = world.mine.parent / "shared"
    data = write_table(*MEANWHILE, properties={"write.data.path": f"file://{path}"}).data
    make_iceberg_table(*FIRST, location=f"file://{path}/table")
    age(600)
    refer_to(attacker, data)
    FileReference.objects.update(directories=[])
    age(600)
    FileReference.objects.update(created_at=F("created_at") + timedelta(seconds=5))
    later = {"write.data.path": f"file://{world.mine.parent}/later"}
    update = {"action": "set-properties", "updates": later}
    change = TableChange(table=FIRST, requirements=[], updates=[update])
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    first = named(FIRST)
    recorded_references.record_claimed(first)
    assert not FileReference.objects.filter(source=first).exists()


@pytest.mark.parametrize("file", ["list", "manifest"])
def test_files_that_cannot_be_read_for_a_moment_keep_what_they_may_name(
    world: World, attacker: Iceberg, monkeypatch: pytest.MonkeyPatch, file: str
):
    """As while the process has too many open files."""
    data = write_table(*MEANWHILE).data
    refer_to(attacker, data, is_read=False)
    before, contents = files(data.parent), parallel_reads.contents

    def fail(paths: Sequence[str], *limits: Any) -> Iterator[bytes | OSError]:
        for path, content in zip(paths, contents(paths, *limits), strict=True):
            is_list = Path(path).name.startswith("snap-")
            is_lost = "/mine/" in path and is_list == (file == "list")
            yield OSError(errno.EMFILE, "too many files") if is_lost else content

    with monkeypatch.context() as patch:
        patch.setattr(parallel_reads, "contents", fail)
        job = clean_up(MEANWHILE)
    assert (job.status, "too many files" in job.error) == (JobStatus.QUEUED, True)
    assert UnreadSnapshot.objects.count() == 1
    assert files(data.parent) == before
    Job.objects.filter(pk=job.pk).update(lease_until=None)
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert "1 other table refers to files" in job.error
