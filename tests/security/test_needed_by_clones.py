"""Clean-up, and the deletion of branches, spare every file that a clone needs, whatever happens to the clone meanwhile."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from django.db import OperationalError

from catalog.access import SYSTEM, Principal
from catalog.errors import CommitConflict, InvalidTableState
from catalog.models import Job, JobStatus, Table, TableVersion
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import needed_files, registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.maintenance import job_runner, lance_cleanup
from catalog.services.tables import job_operations
from catalog.storage.local_store import LocalStore
from tests.factories import (
    files,
    make_administrator,
    make_lance_table,
    make_namespace,
    make_root,
)
from tests.security import lance_attacks as attacks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
SOURCE, CLONE = ("b", "t"), ("a", "t")
ADA = Principal("ada", Privilege.ALL)
KINDS = ("clean_up", "remove_orphans")


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def overwrite(number: int, table: tuple[str, ...] = SOURCE, branch: str = "") -> None:
    lance_data.insert(
        actor=SYSTEM, table=table, data=ids(number).to_reader(), overwrite=True, branch=branch
    )


def find(table: tuple[str, ...]) -> Table:
    return Table.objects.named(table).get()


def make_clone(version: int | tuple[str, int] = 2, table: tuple[str, ...] = CLONE) -> Table:
    source = Path(find(SOURCE).location)
    location = source.parent / f"clone-{'-'.join(table)}"
    lance.dataset(str(source)).shallow_clone(str(location), version)
    register = registration_operations.RegisterTable(table=table, location=str(location))
    commit([register], actor=ADA)
    return find(table)


@pytest.fixture
def source(db: None) -> Table:
    """A table of four versions, each with a file that no other version has."""
    make_root()
    make_administrator("ada")
    make_namespace("a")
    make_namespace("b")
    row = make_lance_table(SOURCE, ids(1))
    for number in (2, 3, 4):
        overwrite(number)
    lance_versions.settle_pending()
    return row


def run(kind: str, table: tuple[str, ...] = SOURCE) -> Job:
    """Run a job that removes all that nothing needs."""
    TableVersion.objects.filter(table=find(table)).update(created_at="2026-01-01T00:00Z")
    policy = {"keep_for": 0, "keep_versions": 1, "orphan_age": 0}
    start = job_operations.StartMaintenance(
        table=table, kind_of_job=kind, parameters={"policy": policy}
    )
    job: Job = commit([start], actor=ADA).results[0]
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def versions(table: tuple[str, ...] = SOURCE) -> list[int]:
    rows = TableVersion.objects.visible().filter(table=find(table), branch="")
    return sorted(rows.values_list("version", flat=True))


def read(table: tuple[str, ...] = CLONE) -> list[int]:
    lance_datasets.clear_caches()
    ids: list[int] = lance_datasets.read(actor=SYSTEM, table=table).to_table()["id"].to_pylist()
    return ids


def newest(location: str) -> Path:
    return min(Path(f"{location}/_versions").glob("*.manifest*"))


def test_a_clean_up_spares_the_version_of_a_clone(source):
    make_clone()
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [2, 4]
    assert read() == [2]


# --- clones whose manifests cannot be read ------------------------------------------------------


def _fail_to_read(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    original = LocalStore.read

    def fail(self: LocalStore, name: str, limit: int) -> Any:
        if name == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return original(self, name, limit)

    monkeypatch.setattr(LocalStore, "read", fail)


def _remove_directory(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """As if the volume of the clone were not mounted on this machine."""
    location = path.parents[1]
    location.rename(f"{location}.away")


def _link_directory(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    location = path.parents[1]
    location.rename(f"{location}.away")
    location.symlink_to(f"{location}.away")


def _spoil(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    path.write_bytes(b"no manifest")


def _link(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    path.rename(f"{path}.away")
    path.symlink_to(f"{path}.away")


FAULTS = [_fail_to_read, _remove_directory, _link_directory, _spoil, _link]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_removed_while_a_clone_cannot_be_read(source, monkeypatch, fault, kind):
    clone = make_clone()
    if kind == "remove_orphans":
        client_cleanup(source)  # the file that the clone needs is an orphan of the source
    before = files(source.location)
    fault(monkeypatch, newest(clone.location))
    job = run(kind)
    assert files(source.location) == before
    assert versions() == [1, 2, 3, 4]
    if fault is _fail_to_read:
        assert (job.status, "cannot be read" in job.error) == (JobStatus.QUEUED, True)
    else:
        assert job.status == JobStatus.SUCCEEDED
        assert job.error.startswith("nothing removed: ")
        assert "clone" not in job.error  # its name may be hidden


def client_cleanup(source: Table) -> None:
    """A client removes the manifests of the old versions from the source, and leaves their files."""
    for path in Path(f"{source.location}/_versions").glob("*.manifest"):
        if path != newest(source.location):
            path.unlink()
    for path in Path(source.location).rglob("*"):
        os.utime(path, (0, 0))


def test_orphans_that_a_clone_needs_are_spared(source):
    make_clone()
    client_cleanup(source)
    job = run("remove_orphans")
    assert (job.status, job.result["files"] > 0) == (JobStatus.SUCCEEDED, True)
    assert job.error == "1 files retained: 1 other table refers to them"
    assert read() == [2]


def test_a_version_of_a_clone_that_was_removed_needs_nothing(source):
    clone = make_clone()
    manifest = newest(clone.location)
    overwrite(9, CLONE)
    lance_versions.settle_pending()
    manifest.unlink()
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [4]
    assert read() == [9]


# --- manifests on their way ---------------------------------------------------------------------


def test_a_version_of_a_clone_that_was_committed_a_moment_ago_counts(source, monkeypatch):
    """Its manifest still has the name under which it was staged."""
    clone = make_clone()
    manifest = newest(clone.location)
    staged = manifest.with_name(f"{manifest.name}-staged")
    manifest.rename(staged)
    TableVersion.objects.filter(table=clone).update(
        staged_path=str(staged).lstrip("/"), manifest_path=str(manifest).lstrip("/")
    )
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [2, 4]
    assert read() == [2]


# --- branches -----------------------------------------------------------------------------------


def test_a_branch_with_a_clone_keeps_its_files(source):
    lance_branches.create_branch(actor=SYSTEM, table=SOURCE, name="dev")
    overwrite(5, branch="dev")
    overwrite(6, branch="dev")
    lance_versions.settle_pending()
    number = TableVersion.objects.filter(table=source, branch="dev").order_by("version")[1].version
    make_clone(("dev", number))
    assert read() == [5]
    before = files(source.location)
    with pytest.raises(InvalidTableState, match="1 other table refers to its files"):
        lance_branches.delete_branch(actor=SYSTEM, table=SOURCE, name="dev")
    assert files(source.location) == before
    assert source.branches.count() == 1
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert read() == [5]


def test_a_branch_is_deleted_if_the_clones_need_only_main(source):
    lance_branches.create_branch(actor=SYSTEM, table=SOURCE, name="dev")
    overwrite(5, branch="dev")
    lance_versions.settle_pending()
    make_clone(2)
    lance_branches.delete_branch(actor=SYSTEM, table=SOURCE, name="dev")
    assert not Path(f"{source.location}/tree/dev").exists()
    assert read() == [2]


def test_a_clone_of_a_branch_that_is_deleted_meanwhile_keeps_its_files(source, monkeypatch):
    lance_branches.create_branch(actor=SYSTEM, table=SOURCE, name="dev")
    overwrite(5, branch="dev")
    lance_versions.settle_pending()
    commit_later = lance_branches.commit

    def clone_first(operations: Any, **options: Any) -> Any:
        make_clone(("dev", 5))
        return commit_later(operations, **options)

    monkeypatch.setattr(lance_branches, "commit", clone_first)
    lance_branches.delete_branch(actor=SYSTEM, table=SOURCE, name="dev")
    assert source.branches.count() == 0
    assert read() == [5]


def test_a_branch_whose_clones_are_not_known_after_its_deletion_keeps_its_files(
    source, monkeypatch
):
    """Commits that may refer to its files take too long. Deleting it again removes the files."""
    lance_branches.create_branch(actor=SYSTEM, table=SOURCE, name="dev")
    overwrite(5, branch="dev")
    lance_versions.settle_pending()

    def wait(_: int) -> Any:
        raise OperationalError("canceling statement due to lock timeout")

    with monkeypatch.context() as patched:
        patched.setattr(lance_branches.locks, "exclude_commits", wait)
        lance_branches.delete_branch(actor=SYSTEM, table=SOURCE, name="dev")
    assert source.branches.count() == 0
    assert len(list(Path(f"{source.location}/tree/dev/data").iterdir())) == 1
    lance_branches.delete_branch(actor=SYSTEM, table=SOURCE, name="dev")
    assert not Path(f"{source.location}/tree/dev").exists()


# --- clones, and versions of clones, that come and go meanwhile -----------------------------------


def test_a_clone_of_a_version_that_is_being_removed_is_refused(source, monkeypatch):
    remove = lance_cleanup._Cleaner._remove_files
    refusals = []

    def remove_later(cleaner: Any, removal: Any) -> Any:
        try:
            make_clone(2)
        except CommitConflict as refused:
            refusals.append(refused.message)
        return remove(cleaner, removal)

    monkeypatch.setattr(lance_cleanup._Cleaner, "_remove_files", remove_later)
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert len(refusals) == 1
    assert "is removing files of another table" in refusals[0]
    assert not Table.objects.named(CLONE).exists()
    assert versions() == [4]


def test_a_clone_is_written_during_a_clean_up_of_its_source(source, monkeypatch):
    """Its versions lead only where its older ones led."""
    make_clone(2)
    remove = lance_cleanup._Cleaner._remove_files

    def remove_later(cleaner: Any, removal: Any) -> Any:
        lance_data.insert(actor=SYSTEM, table=CLONE, data=ids(8).to_reader())
        return remove(cleaner, removal)

    monkeypatch.setattr(lance_cleanup._Cleaner, "_remove_files", remove_later)
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [2, 4]
    assert read() == [2, 8]


def test_versions_that_a_clone_retires_for_the_moment_count(source):
    """The clean-up of the clone is not finished, and may restore them."""
    clone = make_clone(2)
    overwrite(9, CLONE)
    lance_versions.settle_pending()
    TableVersion.objects.filter(table=clone, version=2).update(deleted_at="2026-01-01T00:00Z")
    start = job_operations.StartMaintenance(table=CLONE, kind_of_job="clean_up")
    job = commit([start], actor=ADA).results[0]
    Job.objects.filter(pk=job.pk).update(result={"retired": {"": [2]}})
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [2, 4]


@pytest.mark.parametrize("step", ["retired", "restored"])
def test_versions_that_a_clone_retires_while_they_are_counted_count(source, monkeypatch, step):
    """The clean-up of the clone is not finished, and may restore them, or restores them just now."""
    clone = make_clone(2)
    overwrite(9, CLONE)
    lance_versions.settle_pending()
    start = job_operations.StartMaintenance(table=CLONE, kind_of_job="clean_up")
    job = Job.objects.filter(pk=commit([start], actor=ADA).results[0].pk)
    old = TableVersion.objects.filter(table=clone, version=2)

    def retire() -> None:
        job.update(result={"retired": {"": [2]}})
        old.update(deleted_at="2026-01-01T00:00Z")

    def restore() -> None:
        old.update(deleted_at=None)
        job.update(result={}, status=JobStatus.SUCCEEDED)

    if step == "restored":
        retire()
    needed = needed_files.NeededFiles(source)
    require = needed_files.NeededFiles._require

    def require_later(self: Any, *arguments: Any) -> None:
        monkeypatch.setattr(needed_files.NeededFiles, "_require", require)
        restore() if step == "restored" else retire()
        require(self, *arguments)

    monkeypatch.setattr(needed_files.NeededFiles, "_require", require_later)
    needed.update()
    assert needed.unneeded("", [1, 2, 3, 4]) == [1, 3, 4]


def test_a_link_on_the_path_of_the_source_hides_nothing(source):
    make_clone(2)
    location = Path(source.location)
    location.rename(f"{location}.moved")
    location.symlink_to(f"{location}.moved")
    before = files(source.location)
    needed = needed_files.NeededFiles(source)
    needed.update()
    (file,) = (path for path in needed.files if "/data/" in path)
    assert file.startswith(f"{location}/")
    assert needed.unneeded("", [1, 2, 3, 4]) == []
    run("clean_up")
    assert files(source.location) == before


# --- many versions ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"versions": 2}, "more than 2 versions"),
        ({"bytes": 1000}, "more than 1,000 bytes of manifests"),
        ({"files": 1}, "more than 1 needed files"),
    ],
)
def test_nothing_is_removed_if_clones_have_too_many_versions(
    source, monkeypatch, kind, limit, reason
):
    make_clone(2)
    make_clone(3, ("a", "u"))
    overwrite(9, CLONE)
    client_cleanup(source)
    few = replace(needed_files.OF_JOBS, **limit)
    monkeypatch.setattr(
        needed_files.NeededFiles.__init__,
        "__kwdefaults__",
        {"below": None, "limits": few, "report": lambda: None},
    )
    before = files(source.location)
    job = run(kind)
    assert job.status == JobStatus.SUCCEEDED
    assert job.error == f"nothing removed: the tables that refer to the files have {reason}"
    assert files(source.location) == before
    assert versions() == [1, 2, 3, 4]


def test_the_size_of_a_manifest_is_that_of_its_file(source, monkeypatch):
    """The ledger has the size that it had when it was committed."""
    clone = make_clone(2)
    path = newest(clone.location)
    path.write_bytes(attacks.padded(path.read_bytes(), 100_000))
    needed = needed_files.NeededFiles(source, limits=replace(needed_files.OF_JOBS, bytes=50_000))
    with pytest.raises(InvalidTableState, match="bytes of manifests"):
        needed.update()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_reads_many_versions_renews_its_lease_and_can_be_stopped(
    source, monkeypatch, kind
):
    make_clone(2)
    renewals = []

    def renew(job: Job) -> None:
        renewals.append(job.pk)
        if len(renewals) == 2:
            raise jobs.JobCanceled("canceled on request")

    for number in range(3):
        overwrite(number, CLONE)
    monkeypatch.setattr(needed_files, "_REPORT_EVERY", 2)
    monkeypatch.setattr(jobs, "renew_or_stop", renew)
    before = files(source.location)
    job = run(kind)
    assert (job.status, renewals) == (JobStatus.CANCELED, [job.pk, job.pk])
    assert files(source.location) == before
    assert versions() == [1, 2, 3, 4]


def test_versions_of_clones_are_read_once(source, monkeypatch):
    make_clone(2)
    read_manifest = needed_files.manifests.read
    paths = []

    def count(**options: Any) -> Any:
        if options["table"] == CLONE:
            paths.append(options["manifest_path"])
        return read_manifest(**options)

    monkeypatch.setattr(needed_files.manifests, "read", count)
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert len(paths) == 1
