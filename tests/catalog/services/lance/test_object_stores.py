"""Tables in object stores, as far as they differ from tables in local directories.

Suites that behave the same in both run twice, by the fixture ``everywhere``.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from django.db import connection

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    CatalogError,
    ForeignFile,
    InvalidManifestPath,
    InvalidTableState,
    ServiceUnavailable,
    VersionNotFound,
)
from catalog.models import FileReference, Job, JobStatus, Table, TableVersion
from catalog.privileges import Privilege
from catalog.services.engine import database_clock, table_cache
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import (
    manifests,
    reconcile,
    registration_operations,
    version_operations,
    versions,
)
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.maintenance import job_runner
from catalog.services.storage import profiles
from catalog.services.tables import job_operations, table_operations
from catalog.storage import lance_options, locations, object_store, stores
from tests import clocks
from tests.factories import (
    files,
    make_administrator,
    make_lance_table,
    make_namespace,
    make_root,
    make_table,
    manifest,
    open_lance,
    unchanged,
)
from tests.stores.fixtures import MakeProfile, Storage
from tests.stores.s3 import S3Store

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
T = ("w", "t")
ROWS = pa.table({"id": [1, 2]})
ADA = Principal("ada", Privilege.ALL)
DAY = 86_400


@pytest.fixture
def lake(s3: S3Store, s3_profile: Any) -> Iterator[Storage]:
    """An object store for all new tables."""
    manifests._seen_at.clear()
    place = Storage("s3", s3_profile.roots[0], s3_profile, s3)
    place.bind(make_root())
    yield place
    lance_datasets.clear_caches()


@pytest.fixture
def table(lake: Storage) -> Table:
    """Version 1, with two rows."""
    return make_lance_table(T, ROWS)


def insert(*values: int) -> int:
    data = pa.table({"id": list(values)})
    return lance_data.insert(actor=SYSTEM, table=T, data=data.to_reader()).version


def read(version: int | None = None) -> list[int]:
    dataset = lance_datasets.read(actor=SYSTEM, table=T, version=version)
    return sorted(dataset.to_table()["id"].to_pylist())


def stage(lake: Storage, table: Table, version: int, content: bytes = b"", branch: str = "") -> str:
    """A staged manifest; returns its path as clients send it: the key in the bucket."""
    directory = f"tree/{branch}/_versions" if branch else "_versions"
    path = f"{table.location}/{directory}/{2**64 - 1 - version}.manifest-8a3c"
    lake.write(path, content or manifest(version, branch))
    return locations.store_path(table.location, path.removeprefix(f"{table.location}/"))


def create(version: int, path: str, branch: str = "") -> version_operations.CreateVersion:
    return version_operations.CreateVersion(
        table=T, version=version, manifest_path=path, branch=branch
    )


def describe(version: int) -> versions.Version:
    return versions.describe_version(actor=SYSTEM, table=T, version=version)


# --- manifests -----------------------------------------------------------------------------------


def test_a_version_is_settled_by_its_own_commit(lake, table):
    insert(3)
    rows = TableVersion.objects.order_by("version")
    assert list(rows.values_list("version", "staged_path")) == [(1, None), (2, None)]
    names = [name for name in lake.files(table.location) if name.startswith("_versions/")]
    assert names == [f"_versions/{2**64 - 1 - version}.manifest" for version in (2, 1)]
    key = table.location.removeprefix("s3://").partition("/")[2]
    assert [row.manifest_path for row in rows] == [f"{key}/{name}" for name in reversed(names)]


@pytest.mark.parametrize(
    "spell",
    [
        lambda table, path: path,
        lambda table, path: f"/{path}",
        lambda table, path: f"{table.location.rpartition('/root/')[0]}/{path}",
        lambda table, path: path.rpartition("/_versions/")[1].lstrip("/") + path.rpartition("/")[2],
    ],
    ids=["key", "slash", "uri", "relative"],
)
def test_spellings_of_a_staged_manifest(lake, table, spell):
    path = stage(lake, table, 2)
    commit([create(2, spell(table, path))], actor=SYSTEM)
    final = f"_versions/{2**64 - 3}.manifest"
    assert describe(2).manifest_path == locations.store_path(table.location, final)
    assert lake.read(f"{table.location}/{final}") == manifest(2)
    assert path.rpartition("/")[2] not in str(lake.files(table.location))


@pytest.mark.parametrize(
    "path",
    [
        "{bucket}/root/other/_versions/1.manifest-x",
        "s3://elsewhere/{key}/_versions/2.manifest-x",
        "{key}2/_versions/2.manifest-x",
        "{key}/../t2/_versions/2.manifest-x",
        "{key}/_versions/%2e%2e/2.manifest-x",
        "{key}//_versions/2.manifest-x",
        "s3a://{bucket}/{key}/_versions/2.manifest-x",
        "S3://{bucket}/{key}/_versions/2.manifest-x",
        "s3://{bucket}@evil/{key}/_versions/2.manifest-x",
        "/etc/passwd",
        "file:///etc/passwd",
    ],
)
def test_manifests_elsewhere_are_refused_and_not_read(lake, table, path, monkeypatch):
    bucket, _, key = table.location.removeprefix("s3://").partition("/")
    monkeypatch.setattr(object_store.ObjectStore, "read_end", _unexpected)
    with unchanged(), pytest.raises(InvalidManifestPath):
        commit([create(2, path.format(bucket=bucket, key=key))], actor=SYSTEM)


def _unexpected(*arguments: Any) -> Any:
    raise AssertionError("a file was read")


def test_a_move_that_stops_in_between_is_finished_later(lake, table, monkeypatch):
    path = stage(lake, table, 2)
    staged = path.rpartition("/")[2]
    with monkeypatch.context() as patch:
        patch.setattr(object_store.object_removal, "delete", _unavailable)
        commit([create(2, path)], actor=SYSTEM)
        assert TableVersion.objects.get(version=2).staged_path == path
        assert describe(2).manifest_path == path  # still readable
    assert staged in str(lake.files(table.location))
    assert versions.settle_pending() == 1
    assert staged not in str(lake.files(table.location))
    row = TableVersion.objects.get(version=2)
    assert (row.staged_path, row.manifest_path) == (None, describe(2).manifest_path)
    assert lake.read(f"{table.location}/_versions/{2**64 - 3}.manifest") == manifest(2)


def _unavailable(*arguments: Any) -> Any:
    raise stores.StorageUnavailable("lake", "HTTP 503 SlowDown")


def test_an_occupied_final_name_keeps_its_file(lake, table):
    path = stage(lake, table, 2)
    final = f"{table.location}/_versions/{2**64 - 3}.manifest"
    lake.write(final, b"of somebody else")
    commit([create(2, path)], actor=SYSTEM)
    assert describe(2).manifest_path == path
    assert lake.read(final) == b"of somebody else"


def test_nothing_is_settled_by_an_empty_bucket(lake, table, s3, monkeypatch):
    """As after a change of the endpoint: the row must still name both paths when it is undone."""
    path = stage(lake, table, 2)
    with monkeypatch.context() as patch:
        patch.setattr(object_store.ObjectStore, "move_manifest", _unavailable)
        commit([create(2, path)], actor=SYSTEM)
    before = TableVersion.objects.get(version=2)
    contents = files(table.location)
    bucket = lake.root.removeprefix("s3://").partition("/")[0]
    for key in s3.keys(bucket):
        s3.client().delete_object(Bucket=bucket, Key=key)
    assert versions.settle_pending() == 0
    row = TableVersion.objects.get(version=2)
    assert (row.staged_path, row.manifest_path) == (path, before.manifest_path)
    for name, content in contents.items():
        lake.write(f"{table.location}/{name}", content)
    assert versions.settle_pending() == 1
    assert TableVersion.objects.get(version=2).staged_path is None


@pytest.mark.parametrize("cause", ["down", "denied"])
def test_a_failing_store_is_no_refusal(lake, table, monkeypatch, cause):
    error = {
        "down": stores.StorageUnavailable("lake", "HTTP 503 SlowDown"),
        "denied": stores.AccessDenied("lake", "HTTP 403 AccessDenied"),
    }[cause]

    def fail(*arguments: Any) -> Any:
        raise error

    path = stage(lake, table, 2)
    monkeypatch.setattr(object_store.ObjectStore, "read_end", fail)
    with unchanged(), pytest.raises(ServiceUnavailable, match="storage profile 'lake'"):
        commit([create(2, path)], actor=SYSTEM)
    monkeypatch.undo()
    commit([create(2, path)], actor=SYSTEM)


# --- no lock during requests ---------------------------------------------------------------------


@pytest.fixture
def locked_reads(monkeypatch) -> list[bool]:
    """For each read of a manifest or reference whether the connection was in a transaction."""
    reads: list[bool] = []
    for name in ("read", "read_end", "list_files", "move_manifest"):
        real = getattr(object_store.ObjectStore, name)

        def note(*arguments: Any, real: Any = real) -> Any:
            reads.append(connection.in_atomic_block)
            return real(*arguments)

        monkeypatch.setattr(object_store.ObjectStore, name, note)
    return reads


@pytest.mark.django_db(transaction=True)
def test_no_lock_is_held_during_requests(lake, locked_reads):
    table = make_lance_table(T, ROWS)
    insert(3)
    lance_tags.create_tag(actor=SYSTEM, table=T, tag="v1", version=1)
    paths = [stage(lake, table, 5, branch="dev"), stage(lake, table, 3), stage(lake, table, 4)]
    locked_reads.clear()
    commit([create(5, paths[0], "dev")], actor=SYSTEM)
    table_cache.tables.clear()
    commit([create(3, paths[1]), create(4, paths[2])], actor=SYSTEM)
    delete = version_operations.DeleteVersions(table=T, ranges=((2, 3),))
    assert commit([delete], actor=SYSTEM).results == [1]
    refused = version_operations.DeleteVersions(table=T, ranges=((1, 2),))
    with pytest.raises(InvalidTableState, match="tag 'v1'"):
        commit([refused], actor=SYSTEM)
    assert len(locked_reads) >= 8
    assert not any(locked_reads)


# --- what is gone --------------------------------------------------------------------------------


def test_a_missing_manifest_is_noticed_within_a_minute(lake, table, monkeypatch):
    for value in (3, 4):
        insert(value)
    path = f"{table.location}/_versions/{2**64 - 2}.manifest"
    assert describe(1).version == 1
    assert stores.store_of(path).remove(path)
    assert describe(1).version == 1  # it was seen just now
    now = time.monotonic()
    clocks.replace(monkeypatch, manifests, monotonic=lambda: now + 61)
    with pytest.raises(VersionNotFound):
        reconcile.describe_version(actor=SYSTEM, table=T, version=1)
    assert sorted(TableVersion.objects.visible().values_list("version", flat=True)) == [2, 3]


def test_nothing_is_retired_while_the_directory_is_missing(lake, table, s3):
    insert(3)
    manifests._seen_at.clear()
    bucket = lake.root.removeprefix("s3://").partition("/")[0]
    for key in s3.keys(bucket):
        s3.client().delete_object(Bucket=bucket, Key=key)
    assert describe(1).version == 1  # as on a volume that is not mounted
    assert reconcile.reconcile_due() == 0
    assert TableVersion.objects.visible().count() == 2


def test_a_describe_asks_the_store_once_a_minute(lake, table, monkeypatch):
    manifests._seen_at.clear()
    calls = []
    real = object_store.ObjectStore.status

    def count(store: Any, path: str) -> Any:
        calls.append(path)
        return real(store, path)

    monkeypatch.setattr(object_store.ObjectStore, "status", count)
    for _ in range(5):
        describe(1)
    assert len(calls) == 1


def test_a_describe_does_not_wait_for_a_store_that_is_down(lake, table, monkeypatch):
    manifests._seen_at.clear()
    monkeypatch.setattr(object_store.ObjectStore, "status", _unavailable)
    assert describe(1).version == 1


# --- files of others -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base",
    [
        "{other}",
        "{other}/",
        "s3://elsewhere/t",
        "s3://{bucket}",
        "s3://{bucket}/root",
        "s3a://{bucket}/root/x",
        "S3://{bucket}/root/x",
        "s3://{bucket}/root/x/../y",
        "s3://{bucket}/root/x%2fy",
        "s3://{bucket}.evil/root/x",
        "s3://{bucket}@evil/root/x",
        "gs://{bucket}/root/x",
        "root/x",
        "../x",
        "/etc",
        "file:///etc",
        "memory://x",
        "s3+ddb://{bucket}/root/x",
    ],
)
def test_base_paths_elsewhere_are_refused(lake, table, base):
    """The catalog itself may read no other table, nor what no table has."""
    other = make_lance_table(("v", "secret"), ROWS)
    bucket = table.location.removeprefix("s3://").partition("/")[0]
    text = base.format(other=other.location, bucket=bucket)
    content = manifest(2, bases=[(text, True)], files=[("x.lance", 0)])
    path = stage(lake, table, 2, content)
    with unchanged(), pytest.raises(ForeignFile):
        commit([create(2, path)], actor=SYSTEM)
    assert lake.read(f"{lake.root.removesuffix('/root')}/{path}") == content


def test_a_base_path_in_another_profile(lake, make_profile: MakeProfile, s3):
    """A shallow clone: the server has the options of both stores."""
    make_administrator("ada")
    pond = make_profile(name="pond", roots=[f"s3://{s3.new_bucket()}/root"], **s3.profile_fields())
    Storage("s3", pond.roots[0], pond, s3).bind(make_namespace("v"))
    source = make_lance_table(("v", "source"), ROWS)
    assert source.location.startswith(pond.roots[0])
    # Lance makes a clone in the bucket of its source only.
    first = f"{pond.roots[0]}/clone"
    open_lance(source.location).shallow_clone(first, 1)
    clone = f"{lake.root}/clone"
    for name, content in files(first).items():
        lake.write(f"{clone}/{name}", content)
    register = registration_operations.RegisterTable(table=("v", "clone"), location=clone)
    row = commit([register], actor=ADA).results[0]
    snapshot = lance_datasets.find_snapshot(actor=ADA, table=("v", "clone"))
    assert lance_datasets.open_dataset(snapshot).to_table() == ROWS
    options = lance_datasets.base_options(snapshot)
    assert options == {source.location: lance_options.storage_options(source.location)}
    assert FileReference.objects.get(table=row).source == source
    lance_data.insert(actor=ADA, table=("v", "clone"), data=ROWS.to_reader())
    assert lance_datasets.read(actor=ADA, table=("v", "clone")).count_rows() == 4


# --- credentials ---------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_credentials_that_expire_are_renewed(moto_s3, make_profile: MakeProfile, monkeypatch):
    """Those of a role: readers and writers that stay open get new ones from the server."""
    bucket = moto_s3.new_bucket()
    fields = moto_s3.profile_fields() | {"identity": "role", "role": moto_s3.role}
    profile = make_profile(name="role", roots=[f"s3://{bucket}/root"], **fields)
    Storage("s3", profile.roots[0], profile, moto_s3).bind(make_root())
    real, renewals = lance_options.storage_options, []

    def nearly_expired(location: str) -> dict[str, str] | None:
        options = real(location)
        assert options is not None
        assert lance_options.EXPIRES_AT in options
        renewals.append(location)
        return options | {lance_options.EXPIRES_AT: str(int(time.time() * 1000) + 1000)}

    monkeypatch.setattr(lance_options, "storage_options", nearly_expired)
    table = make_lance_table(T, ROWS)
    for value in (3, 4):
        insert(value)
    dataset = lance_datasets.read(actor=SYSTEM, table=T)
    before = len(renewals)
    time.sleep(1.1)
    assert sorted(dataset.to_table()["id"].to_pylist()) == [1, 2, 3, 4]
    assert insert(5) == 4  # by the dataset that the last writer left open
    assert set(renewals[before:]) == {table.location}
    lance_datasets.clear_caches()


def test_a_changed_key_opens_tables_again(lake, table, s3):
    dataset = lance_datasets.read(actor=SYSTEM, table=T)
    assert lance_datasets.read(actor=SYSTEM, table=T) is dataset
    lake.profile.version += 1
    lake.profile.save()
    profiles.discard_cache()
    assert lance_datasets.read(actor=SYSTEM, table=T) is not dataset
    lake.profile.version += 1
    lake.profile.secret = profiles.sealed("wrong")
    lake.profile.save()
    profiles.discard_cache()
    with unchanged(), pytest.raises(ServiceUnavailable):
        insert(3)


# --- orphans -------------------------------------------------------------------------------------


def remove_orphans() -> dict[str, Any]:
    operation = job_operations.StartMaintenance(
        table=T, kind_of_job="remove_orphans", parameters={"policy": {"orphan_age": 3 * DAY}}
    )
    job = commit([operation], actor=ADA).results[0]
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    result: dict[str, Any] = job.result
    return result


def test_orphans_are_as_old_as_the_store_says(lake, table, monkeypatch):
    make_administrator("ada")
    insert(3)
    before = lake.files(table.location)
    dead = ["_versions/00000000000000000001.manifest-x", "data/dead.lance"]
    for name in dead:
        lake.write(f"{table.location}/{name}", b"x" * 100)
    assert remove_orphans()["plan"]["orphans"] == 0  # they were written just now
    assert lake.files(table.location) == sorted([*before, *dead])
    cutoff = database_clock.cutoff
    monkeypatch.setattr(database_clock, "cutoff", lambda age: cutoff(age) + timedelta(days=10))
    result = remove_orphans()
    assert result["plan"] == {"orphans": 2, "bytes": 200, "paths": dead}
    assert lake.files(table.location) == before
    assert read() == [1, 2, 3]


# --- purge ---------------------------------------------------------------------------------------


@pytest.fixture
def purge(lake: Storage, monkeypatch) -> Job:
    """A dropped table with a neighbour whose name begins alike."""
    make_table(*T, location=f"{lake.root}/t")
    make_table("w", "t2", location=f"{lake.root}/t2")
    lance_data.insert(actor=SYSTEM, table=T, data=ROWS.to_reader())
    lake.write(f"{lake.root}/t2/data/1.lance", b"rows")
    lake.write(f"{lake.root}/t-x", b"of nobody")
    commit([table_operations.DropTable(table=T)], actor=SYSTEM)
    return Job.objects.get()


def test_a_purge_removes_the_table_and_nothing_beside_it(lake, purge):
    job_runner.run_job(purge.pk)
    purge.refresh_from_db()
    assert (purge.status, purge.error) == (JobStatus.SUCCEEDED, "")
    assert lake.files() == ["t-x", "t2/data/1.lance"]
    make_table(*T, location=f"{lake.root}/t")  # the location is free again


def test_the_location_stays_reserved_until_the_purge_has_ended(lake, purge, monkeypatch):
    real = object_store.ObjectStore.remove_tree
    refusals = []

    def meanwhile(store: Any, directory: str) -> Iterator[int]:
        for location in (f"{lake.root}/t", f"{lake.root}/t/inside"):
            with pytest.raises(CatalogError) as refused:
                make_table("w", "again", location=location)
            refusals.append(type(refused.value).__name__)
        yield from real(store, directory)

    monkeypatch.setattr(object_store.ObjectStore, "remove_tree", meanwhile)
    job_runner.run_job(purge.pk)
    assert refusals == ["LocationTaken"] * 2
    purge.refresh_from_db()
    assert purge.status == JobStatus.SUCCEEDED


def test_a_worker_that_lost_the_purge_removes_no_more(lake, purge, monkeypatch):
    pages = []

    def lose(store: Any, directory: str) -> Iterator[int]:
        for number in range(1, 4):
            if number == 2:  # another worker has it now
                Job.objects.filter(pk=purge.pk).update(attempts=2)
            pages.append(number)
            yield number

    monkeypatch.setattr(object_store.ObjectStore, "remove_tree", lose)
    before = files(f"{lake.root}/t")
    job_runner.run_job(purge.pk)
    assert pages == [1, 2]
    assert files(f"{lake.root}/t") == before
    purge.refresh_from_db()
    assert purge.status == JobStatus.RUNNING  # it is the other's to end
