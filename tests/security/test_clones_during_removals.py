"""Clones that are committed while a job, or the deletion of a branch, is about to remove files of their source.

Such a commit is refused if the removal has looked for clones already.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pytest
from django.db import connections

from catalog.access import SYSTEM
from catalog.errors import CommitConflict
from catalog.models import JobStatus, Table
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance.ledger import registration_operations, version_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.maintenance import lance_cleanup, lance_orphans
from tests.security.test_needed_by_clones import (
    ADA,
    CLONE,
    SOURCE,
    client_cleanup,
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

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


def attempt(before: Callable[[], Any], target: Any, name: str, monkeypatch: Any) -> list[str]:
    """Do something right before a function removes files; returns the messages of its refusals, later."""
    remove = getattr(target, name)
    refusals: list[str] = []

    def remove_later(*arguments: Any) -> Any:
        try:
            before()
        except CommitConflict as refused:
            refusals.append(refused.message)
        return remove(*arguments)

    monkeypatch.setattr(target, name, remove_later)
    return refusals


def register(location: str) -> None:
    commit([registration_operations.RegisterTable(table=CLONE, location=location)], actor=ADA)


def closing_connections(function: Callable[[str], None]) -> Callable[[str], None]:
    def run(argument: str) -> None:
        try:
            function(argument)
        finally:
            connections.close_all()

    return run


def clone_in_storage(version: int | tuple[str, int]) -> str:
    location = f"{find(SOURCE).location}-clone"
    lance.dataset(find(SOURCE).location).shallow_clone(location, version)
    return location


def require_refused(refusals: list[str]) -> None:
    assert len(refusals) == 1
    assert "is removing files of another table" in refusals[0]
    assert not Table.objects.named(CLONE).exists()


def test_a_clone_of_a_deleted_version_is_refused_while_its_files_are_removed(source, monkeypatch):
    """The clean-up retires no version: a client has deleted all that are old."""
    deletion = version_operations.DeleteVersions(table=SOURCE, ranges=((1, 4),))
    commit([deletion], actor=ADA)
    refusals = attempt(lambda: make_clone(2), lance_cleanup._Cleaner, "_remove_files", monkeypatch)
    assert run("clean_up").status == JobStatus.SUCCEEDED
    require_refused(refusals)
    assert len(list(Path(f"{source.location}/data").iterdir())) == 1
    make_clone(4, ("a", "later"))
    assert read(("a", "later")) == [4]


def test_a_clone_is_refused_while_orphans_that_it_needs_are_removed(source, monkeypatch):
    location = clone_in_storage(2)
    client_cleanup(source)
    refusals = attempt(
        lambda: register(location), lance_orphans._Remover, "remove_files", monkeypatch
    )
    assert run("remove_orphans").status == JobStatus.SUCCEEDED
    require_refused(refusals)


def test_a_clone_that_was_committed_while_orphans_were_listed_keeps_them(source, monkeypatch):
    location = clone_in_storage(2)
    client_cleanup(source)
    refusals = attempt(lambda: register(location), lance_orphans, "_unreferenced_in", monkeypatch)
    job = run("remove_orphans")
    assert (job.status, refusals) == (JobStatus.SUCCEEDED, [])
    assert job.error == "1 files retained: 1 other table refers to them"
    assert read() == [2]


def test_a_clone_can_be_committed_again_after_orphans_were_removed(source):
    client_cleanup(source)
    assert run("remove_orphans").status == JobStatus.SUCCEEDED
    make_clone(4)
    assert read() == [4]


@pytest.mark.django_db(transaction=True)
def test_a_clone_of_a_branch_is_refused_while_its_files_are_removed(source, monkeypatch):
    lance_branches.create_branch(actor=SYSTEM, table=SOURCE, name="dev")
    overwrite(5, branch="dev")
    lance_versions.settle_pending()
    location = clone_in_storage(("dev", 5))

    def register_in_other_session() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(closing_connections(register), location).result()

    refusals = attempt(register_in_other_session, lance_branches, "_remove_files", monkeypatch)
    lance_branches.delete_branch(actor=SYSTEM, table=SOURCE, name="dev")
    require_refused(refusals)
    assert not Path(f"{source.location}/tree/dev").exists()
    make_clone(4)
    assert read() == [4]


# --- clones that exist already ------------------------------------------------------------------


def _write_from_source(version: int) -> None:
    """A client overwrites the clone with the rows of another version of the source, by its base path."""
    clone = find(CLONE)
    other = f"{clone.location}-other"
    lance.dataset(find(SOURCE).location).shallow_clone(other, version)
    fragments = [fragment.metadata for fragment in lance.dataset(other).get_fragments()]
    dataset = lance.dataset(clone.location)
    overwritten = lance.LanceOperation.Overwrite(dataset.schema, fragments)
    number = lance.LanceDataset.commit(
        clone.location, overwritten, read_version=dataset.version
    ).version
    path = str(newest(clone.location)).lstrip("/")
    create = version_operations.CreateVersion(table=CLONE, version=number, manifest_path=path)
    commit([create], actor=ADA)


def test_a_clone_may_take_over_other_files_of_its_source(source):
    make_clone(2)
    _write_from_source(3)
    assert read() == [3]
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert versions() == [2, 3, 4]


def test_a_clone_takes_over_no_files_that_are_being_removed(source, monkeypatch):
    make_clone(2)
    refusals = attempt(
        lambda: _write_from_source(3), lance_cleanup._Cleaner, "_remove_files", monkeypatch
    )
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert len(refusals) == 1
    assert "is removing files of another table" in refusals[0]
    assert versions() == [2, 4]
    assert versions(CLONE) == [2]


def test_a_client_writes_its_clone_during_a_clean_up_of_the_source(source, monkeypatch):
    """Its version needs the files of the source that the version before it needs, and new ones of its own."""
    clone = make_clone(2)

    def append() -> None:
        dataset = lance.write_dataset(ids(8), clone.location, mode="append")
        path = str(newest(clone.location)).lstrip("/")
        create = version_operations.CreateVersion(
            table=CLONE, version=dataset.version, manifest_path=path
        )
        commit([create], actor=ADA)

    refusals = attempt(append, lance_cleanup._Cleaner, "_remove_files", monkeypatch)
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert refusals == []
    assert versions() == [2, 4]
    assert read() == [2, 8]
    lance_data.insert(actor=SYSTEM, table=CLONE, data=ids(9).to_reader())
    assert read() == [2, 8, 9]


def test_a_clone_of_another_branch_that_was_committed_before_the_first_removal_keeps_its_files(
    source, monkeypatch
):
    """The removal from the first branch learns of the clone, whose files the second removal must spare."""
    lance_branches.create_branch(actor=SYSTEM, table=SOURCE, name="dev")
    for number in (5, 6, 7):
        overwrite(number, branch="dev")
    lance_versions.settle_pending()
    remove = lance_cleanup._Cleaner._remove
    branches: list[str] = []

    def remove_later(self: Any, removal: Any) -> None:
        if not branches:
            make_clone(2)
        branches.append(removal.branch)
        remove(self, removal)

    monkeypatch.setattr(lance_cleanup._Cleaner, "_remove", remove_later)
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert branches == ["dev", ""]
    assert read() == [2]
