"""Clean-up of a Lance table in an object store spares what its clones need, also while their store fails."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.errors import InvalidTableState
from catalog.models import JobStatus, Table
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import registration_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.refs import branches as lance_branches
from catalog.storage.object_store import ObjectStore
from catalog.storage.stores import StorageUnavailable
from tests.factories import (
    files,
    make_administrator,
    make_lance_table,
    make_namespace,
    make_root,
    open_lance,
)
from tests.security.test_needed_by_clones import ADA, CLONE, SOURCE, ids, overwrite, run, versions
from tests.stores.fixtures import Storage
from tests.stores.s3 import S3Store

pytestmark = pytest.mark.django_db


@pytest.fixture
def source(s3: S3Store, s3_profile: Any) -> Iterator[Table]:
    lake = Storage("s3", s3_profile.roots[0], s3_profile, s3)
    make_root()
    make_administrator("ada")
    lake.bind(make_namespace("b"))
    lake.bind(make_namespace("a"))
    row = make_lance_table(SOURCE, ids(1))
    for number in (2, 3, 4):
        overwrite(number)
    lance_versions.settle_pending()
    yield row
    lance_datasets.clear_caches()


def make_clone(source: Table, version: Any) -> str:
    location = f"{source.location.rpartition('/')[0]}/clone"
    open_lance(source.location).shallow_clone(location, version)
    commit([registration_operations.RegisterTable(table=CLONE, location=location)], actor=ADA)
    return location


def read() -> list[int]:
    lance_datasets.clear_caches()
    table: pa.Table = lance_datasets.read(actor=SYSTEM, table=CLONE).to_table()
    numbers: list[int] = table["id"].to_pylist()
    return numbers


def test_a_clone_in_a_store_that_fails(source, monkeypatch):
    location = make_clone(source, 2)
    before = files(source.location)
    original = ObjectStore.read

    def fail(self: ObjectStore, path: str, limit: int) -> Any:
        if path.startswith(f"{location}/"):
            raise StorageUnavailable("lake", "it does not answer")
        return original(self, path, limit)

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "read", fail)
        assert run("clean_up").status == JobStatus.QUEUED
    assert files(source.location) == before
    assert versions() == [1, 2, 3, 4]


def test_a_clone_whose_objects_are_missing(source, s3, s3_profile):
    """Its store may be another one than it was."""
    location = make_clone(source, 2)
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    for name in files(location):
        s3.client().delete_object(Bucket=bucket, Key=f"{prefix}/{name}")
    before = files(source.location)
    job = run("clean_up")
    assert job.error == "nothing removed: a table that refers to the files cannot be read"
    assert files(source.location) == before


def test_versions_and_branches_that_a_clone_needs(source):
    lance_branches.create_branch(actor=SYSTEM, table=SOURCE, name="dev")
    lance_data.insert(actor=SYSTEM, table=SOURCE, data=ids(5).to_reader(), branch="dev")
    lance_versions.settle_pending()
    make_clone(source, ("dev", 5))
    with pytest.raises(InvalidTableState, match="1 other table refers to its files"):
        lance_branches.delete_branch(actor=SYSTEM, table=SOURCE, name="dev")
    overwrite(6)
    lance_versions.settle_pending()
    assert run("clean_up").status == JobStatus.SUCCEEDED
    assert read() == [4, 5]
