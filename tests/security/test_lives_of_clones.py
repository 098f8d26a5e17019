"""A source keeps the files of its clones whatever happens to either of them: drop, undrop, rename, move, purge, clones of
clones."""

import os
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from catalog.access import SYSTEM
from catalog.errors import CommitConflict, NotRecoverable
from catalog.models import Job, JobKind, JobStatus, Table, TrashItem
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance.ledger import needed_files, registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.maintenance import job_runner
from catalog.services.recovery import undrop_operations
from catalog.services.storage import file_references
from catalog.services.tables import table_operations
from tests.factories import files, make_namespace
from tests.security.inotify import watched
from tests.security.test_needed_by_clones import (
    ADA,
    CLONE,
    SOURCE,
    find,
    ids,
    make_clone,
    newest,
    overwrite,
    read,
    run,
    source,
    versions,
)

__all__ = ["source"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "later")]


@pytest.fixture
def later(monkeypatch, settings):
    """Dropped tables are purged when the test says so."""
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 86_400
    settings.MONODON_PURGE_GRACE_SECONDS = 0


def drop(table: tuple[str, ...]) -> TrashItem:
    commit([table_operations.DropTable(table=table)], actor=ADA)
    return TrashItem.objects.latest("pk")


def undrop(item: TrashItem) -> None:
    commit([undrop_operations.UndropTable(item=item.pk)], actor=ADA)


def purge(item: TrashItem) -> Job:
    Job.objects.filter(table=item.table, kind=JobKind.PURGE_TABLE).update(lease_until=None)
    job = Job.objects.filter(table=item.table, kind=JobKind.PURGE_TABLE).latest("pk")
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def rename(table: tuple[str, ...], new: tuple[str, ...]) -> None:
    commit([table_operations.RenameTable(table=table, new=new)], actor=ADA)


def _clone_of_clone(location: Path, version: int, table: tuple[str, ...]) -> None:
    target = location.with_name(f"clone-{'-'.join(table)}")
    lance.dataset(str(location)).shallow_clone(str(target), version)
    register = registration_operations.RegisterTable(table=table, location=str(target))
    commit([register], actor=ADA)


def _living() -> None:
    pass


def _dropped() -> None:
    drop(CLONE)


def _deregistered() -> None:
    commit([table_operations.DeregisterTable(table=CLONE)], actor=ADA)


def _undropped() -> None:
    undrop(drop(CLONE))


def _renamed() -> None:
    rename(CLONE, ("a", "other"))


def _hidden() -> None:
    make_namespace("hidden")
    rename(CLONE, ("hidden", "t"))


def _replaced() -> None:
    """Another table has the name of the clone."""
    overwritten = Path(find(CLONE).location).with_name("plain")
    lance.write_dataset(lance.dataset(find(SOURCE).location).to_table(), str(overwritten))
    register = registration_operations.RegisterTable(
        table=CLONE, location=str(overwritten), overwrite=True
    )
    commit([register], actor=ADA)


def _second_clone() -> None:
    """A clone of the clone; the first one is dropped, and kept for the second one."""
    _clone_of_clone(Path(find(CLONE).location), 2, ("a", "second"))
    assert purge(drop(CLONE)).status == JobStatus.CANCELED


def _written() -> None:
    overwrite(9, CLONE)


LIVES: list[Callable[[], None]] = [
    _living,
    _dropped,
    _deregistered,
    _undropped,
    _renamed,
    _hidden,
    _replaced,
    _second_clone,
    _written,
]


def _read_clone(location: str) -> list[int]:
    ids: list[int] = lance.dataset(location, version=2).to_table()["id"].to_pylist()
    return ids


@pytest.mark.parametrize("life", LIVES)
def test_a_source_keeps_the_files_of_a_clone(source, life):
    location = make_clone(2).location
    life()
    if life is _second_clone:
        location = find(("a", "second")).location
    data = {path: content for path, content in files(source.location).items() if "data/" in path}
    for kind in ("clean_up", "remove_orphans"):
        assert run(kind).status == JobStatus.SUCCEEDED
    assert versions() == [2, 4]
    assert _read_clone(location) == [2]
    rename(SOURCE, ("a", "source"))
    item = drop(("a", "source"))
    job = purge(item)
    assert (job.status, job.error) == (JobStatus.CANCELED, "other tables refer to its files")
    assert _read_clone(location) == [2]
    undrop(item)
    assert run("clean_up", ("a", "source")).status == JobStatus.SUCCEEDED
    assert _read_clone(location) == [2]
    assert (
        data.items()
        >= {
            path: content for path, content in files(source.location).items() if "data/" in path
        }.items()
    )


def test_a_purge_of_a_clone_touches_no_file_of_its_source(source):
    make_clone(2)
    overwrite(9, CLONE)
    item = drop(CLONE)
    with watched(f"{source.location}/data") as touched:
        assert purge(item).status == JobStatus.SUCCEEDED
    assert touched.events == []
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [4]


@pytest.mark.parametrize("kind", ["clean_up", "remove_orphans"])
def test_a_clean_up_of_a_clone_removes_no_file_of_its_source(source, kind):
    make_clone(2)
    for number in (8, 9):
        overwrite(number, CLONE)
    before = files(source.location)
    with watched(f"{source.location}/data") as touched:
        job = run(kind, CLONE)
    assert (job.status, touched.events) == (JobStatus.SUCCEEDED, [])
    assert files(source.location) == before
    if kind == "clean_up":
        assert versions(CLONE) == [4]


def test_a_file_of_the_source_with_the_name_of_an_own_one_stays(source):
    """An orphan of the clone has the name of a file of the source."""
    clone = make_clone(2)
    (name,) = (
        path.name
        for path in Path(f"{source.location}/data").iterdir()
        if path.name in newest(clone.location).read_bytes().decode(errors="replace")
    )
    own = Path(f"{clone.location}/data/{name}")
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(b"orphan")
    os.utime(own, (0, 0))
    before = files(source.location)
    assert run("remove_orphans", CLONE).status == JobStatus.SUCCEEDED
    assert files(source.location) == before
    assert read() == [2]


def test_a_clone_of_a_table_that_is_being_purged_is_refused(source, monkeypatch):
    """After the purge has looked for dependents."""
    item, refusals = drop(SOURCE), []
    purge_directory = job_runner._purge_directory

    def purge_later(job: Job, table: Table) -> None:
        try:
            target = f"{source.location}-clone"
            lance.dataset(source.location).shallow_clone(target, 2)
            register = registration_operations.RegisterTable(table=CLONE, location=target)
            commit([register], actor=ADA)
        except CommitConflict as refused:
            refusals.append(refused.message)
        purge_directory(job, table)

    monkeypatch.setattr(job_runner, "_purge_directory", purge_later)
    assert purge(item).status == JobStatus.SUCCEEDED
    assert len(refusals) == 1
    assert not Table.objects.named(CLONE).exists()


def test_a_clone_of_a_dropped_table_keeps_its_files(source):
    item = drop(SOURCE)
    target = f"{source.location}-clone"
    lance.dataset(source.location).shallow_clone(target, 2)
    commit([registration_operations.RegisterTable(table=CLONE, location=target)], actor=ADA)
    assert purge(item).status == JobStatus.CANCELED
    assert read() == [2]


def test_a_clone_of_a_branch_of_a_clone_is_a_dependent_of_both(source):
    """Its files are in both; each table keeps its own."""
    clone = make_clone(2)
    lance_branches.create_branch(actor=SYSTEM, table=CLONE, name="dev")
    lance_data.insert(actor=SYSTEM, table=CLONE, data=ids(7).to_reader(), branch="dev")
    lance_versions.settle_pending()
    target = f"{clone.location}-second"
    lance.dataset(clone.location).shallow_clone(target, ("dev", 3))
    second = registration_operations.RegisterTable(table=("a", "second"), location=target)
    commit([second], actor=ADA)
    assert read(("a", "second")) == [2, 7]
    for row in (source, clone):
        needed = needed_files.NeededFiles(row)
        needed.update()
        assert len([path for path in needed.files if "/data/" in path]) == 1
    for table in (SOURCE, CLONE):
        for kind in ("clean_up", "remove_orphans"):
            assert run(kind, table).status == JobStatus.SUCCEEDED
    assert read(("a", "second")) == [2, 7]


def test_a_clone_whose_directory_was_purged_with_a_later_table_needs_nothing(source):
    """It cannot be restored from the trash, nor read."""
    clone = make_clone(2)
    _deregistered()
    register = registration_operations.RegisterTable(table=("a", "u"), location=clone.location)
    commit([register], actor=ADA)
    item = drop(("a", "u"))
    assert [row.pk for row in file_references.dependents(source)] == [clone.pk, item.table_id]
    assert purge(item).status == JobStatus.SUCCEEDED
    assert not file_references.dependents(source).exists()
    assert file_references.count_dependents(source) == 0
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [4]
    with pytest.raises(NotRecoverable):
        undrop(TrashItem.objects.get(table=clone))


def test_the_purge_of_a_table_beside_a_clone_does_not_count_as_its_own(source):
    clone = make_clone(2)
    _deregistered()
    make_clone(3, ("a", "u"))
    assert purge(drop(("a", "u"))).status == JobStatus.SUCCEEDED
    assert [row.pk for row in file_references.dependents(source)] == [clone.pk]
    assert file_references.count_dependents(source) == 1
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [2, 4]


def test_a_purge_before_a_clone_was_deregistered_does_not_count_as_its_own(source):
    """Its directory was written since."""
    clone = make_clone(2)
    location = clone.location
    assert purge(drop(CLONE)).status == JobStatus.SUCCEEDED
    lance.dataset(source.location).shallow_clone(location, 2)
    commit([registration_operations.RegisterTable(table=CLONE, location=location)], actor=ADA)
    again = find(CLONE)
    _deregistered()
    assert [row.pk for row in file_references.dependents(source)] == [again.pk]
    assert file_references.count_dependents(source) == 1
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [2, 4]
