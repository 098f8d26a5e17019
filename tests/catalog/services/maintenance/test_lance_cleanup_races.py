"""Holders of versions that appear while a clean-up is running: tags, branches, views and clones."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from catalog.access import SYSTEM
from catalog.errors import TableNotFound, VersionNotFound
from catalog.models import AuditEvent, JobStatus, MaterializedView, Table
from catalog.services.engine.commit import commit
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.materialized_views import materialized_views, view_operations
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import ref_files
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.maintenance import lance_cleanup
from catalog.services.tables import cleanup_operations, table_operations
from catalog.storage import stores
from tests.api.client import encoded_schema
from tests.catalog.services.maintenance.test_lance_cleanup import (
    ADA,
    TABLE,
    ids,
    in_ledger,
    in_storage,
    make_versions,
    rows,
    run,
)
from tests.factories import make_administrator, open_lance

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "everywhere")]


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


def before_record(
    monkeypatch: pytest.MonkeyPatch, module: Any, meanwhile: Callable[[], Any]
) -> None:
    """Call ``meanwhile`` between a change of the storage and the commit that records it."""
    record = module.commit

    def commit_later(operations: Any, **arguments: Any) -> Any:
        monkeypatch.setattr(module, "commit", record)
        meanwhile()
        return record(operations, **arguments)

    monkeypatch.setattr(module, "commit", commit_later)


def before_retirement(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
    """Call ``meanwhile`` after a clean-up has chosen its versions, before it retires them."""
    remove = lance_cleanup._Cleaner._remove

    def remove_later(cleaner: Any, removal: Any) -> None:
        monkeypatch.setattr(lance_cleanup._Cleaner, "_remove", remove)
        meanwhile()
        remove(cleaner, removal)

    monkeypatch.setattr(lance_cleanup._Cleaner, "_remove", remove_later)


def tags_in_storage(row: Table) -> dict[str, int]:
    return {name: tag["version"] for name, tag in open_lance(row.location).tags.list().items()}


def remove_untagged(row: Table, name: str) -> None:
    """Run a clean-up that has read the tags before this one was written."""
    path = f"{row.location}/_refs/tags/{name}.json"
    store = stores.store_of(path)
    content, _ = store.read(path, 10_000)
    store.remove(path)
    assert run().status == JobStatus.SUCCEEDED
    store.write_new(path, content)


def test_a_tag_of_a_version_that_a_clean_up_removes_meanwhile_is_refused(monkeypatch):
    row = make_versions()
    before_record(monkeypatch, lance_tags, lambda: remove_untagged(row, "late"))
    with pytest.raises(VersionNotFound):
        lance_tags.create_tag(actor=SYSTEM, table=TABLE, tag="late", version=2)
    assert in_ledger() == in_storage() == [5, 6]
    assert tags_in_storage(row) == {}
    assert not AuditEvent.objects.filter(action="tag.create").exists()


@pytest.mark.parametrize("first", [6, 3])
def test_a_tag_stays_where_it_was_if_its_new_version_is_removed_meanwhile(monkeypatch, first):
    """Unless the clean-up has removed that version as well, which no tag held for that time."""
    row = make_versions()
    lance_tags.create_tag(actor=SYSTEM, table=TABLE, tag="moved", version=first)
    before_record(monkeypatch, lance_tags, lambda: remove_untagged(row, "moved"))
    with pytest.raises(VersionNotFound):
        lance_tags.update_tag(actor=SYSTEM, table=TABLE, tag="moved", version=2)
    assert in_ledger() == in_storage() == [5, 6]
    assert tags_in_storage(row) == ({"moved": 6} if first == 6 else {})
    deleted = AuditEvent.objects.filter(action="tag.delete").values_list("before", flat=True)
    assert list(deleted) == ([] if first == 6 else [{"tag": "moved", "version": 3}])


def test_a_deleted_tag_comes_back_if_its_deletion_is_refused(monkeypatch):
    row = make_versions(2)
    lance_tags.create_tag(actor=SYSTEM, table=TABLE, tag="stays", version=1)
    drop = table_operations.DropTable(table=TABLE, purge=False)
    before_record(monkeypatch, lance_tags, lambda: commit([drop], actor=SYSTEM))
    with pytest.raises(TableNotFound):
        lance_tags.delete_tag(actor=SYSTEM, table=TABLE, tag="stays")
    assert tags_in_storage(row) == {"stays": 1}


def test_a_tag_that_is_deleted_while_a_clean_up_reads_the_tags_is_no_fault(monkeypatch):
    row = make_versions()
    lance_tags.create_tag(actor=SYSTEM, table=TABLE, tag="gone", version=2)
    read = ref_files._read_present

    def read_later(location: str, directory: str, name: str) -> bytes | None:
        path = f"{location}/{directory}/{name}.json"
        stores.store_of(path).remove(path)
        return read(location, directory, name)

    monkeypatch.setattr(ref_files, "_read_present", read_later)
    assert ref_files.find_fault(row.location) == ""
    assert tags_in_storage(row) == {}


def test_the_origin_of_a_branch_without_a_file_is_kept(monkeypatch):
    """Lance writes the file of a branch after its first version, and then the clean-up has read them."""
    row = make_versions()
    path = f"{row.location}/_refs/branches/dev.json"

    def create() -> None:
        lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=2)
        assert stores.store_of(path).remove(path)

    before_retirement(monkeypatch, create)
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert in_ledger() == in_storage() == [2, 5, 6]
    lance_datasets.clear_caches()
    assert rows(2) == rows(2, "dev") == [2]


def test_the_source_version_of_a_new_view_is_kept(monkeypatch):
    make_versions()
    before_retirement(monkeypatch, lambda: make_view(version=2))
    assert run().status == JobStatus.SUCCEEDED
    assert in_storage() == [2, 5, 6]
    assert rows(2) == [2]


def test_a_view_of_a_version_that_a_clean_up_retires_meanwhile_is_refused(monkeypatch):
    make_versions()
    retire = cleanup_operations.RetireVersions(table=TABLE, versions=(2,))
    check = view_operations.CreateMaterializedView.prepare

    def retire_first(operation: Any) -> Any:
        commit([retire], actor=SYSTEM)
        return check(operation)

    monkeypatch.setattr(view_operations.CreateMaterializedView, "prepare", retire_first)
    with pytest.raises(VersionNotFound):
        make_view(version=2)
    assert not MaterializedView.objects.exists()


def test_the_files_of_a_new_clone_are_kept(monkeypatch):
    """Its version stays in storage, although it leaves the ledger."""
    row = make_versions()
    clone = f"{row.location.rpartition('/')[0]}/clone"

    def make_clone() -> None:
        open_lance(row.location).shallow_clone(clone, 2)
        register = registration_operations.RegisterTable(table=("ws", "clone"), location=clone)
        commit([register], actor=ADA)

    before_retirement(monkeypatch, make_clone)
    assert run().status == JobStatus.SUCCEEDED
    assert in_storage() == [2, 5, 6]
    lance_datasets.clear_caches()
    copy = lance_datasets.read(actor=SYSTEM, table=("ws", "clone"))
    assert copy.to_table()["id"].to_pylist() == [2]


def make_view(version: int) -> None:
    materialized_views.create_view(
        actor=SYSTEM,
        table=("ws", "view"),
        kind="query",
        source_query=json.dumps({"source": TABLE, "version": version}),
        output_schema=encoded_schema(ids().schema),
    )
