"""Commits to Iceberg tables in an object store that fails, and that answers slowly or not at all."""

import contextlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from django.db import connection
from django.db.models.functions import Now

from catalog.access import SYSTEM
from catalog.errors import CommitConflict, InvalidMetadata, ServiceUnavailable
from catalog.models import Job, JobStatus, StagedFile, Table, TableVersion
from catalog.services.engine import commit_queue
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files, scans
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.maintenance import job_runner
from catalog.services.storage.table_files import TableFiles
from catalog.storage import object_clients
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files, make_iceberg_table, make_root, unchanged
from tests.rivals import commit_without_turns
from tests.stores.faults import FaultProxy, Faults, Request
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Proxied, S3Store

T = ("ns", "t")
WRITERS, COMMITS = 16, 20


@pytest.fixture
def few_retries(monkeypatch) -> None:
    """A request that fails again and again is given up within a second."""
    monkeypatch.setattr(object_clients, "RETRIES", 1)


@pytest.fixture
def root(db, proxied_s3: Proxied, make_profile: MakeProfile) -> str:
    """The root of a profile whose requests go through the proxy; new tables are placed there."""
    location = f"s3://{proxied_s3.new_bucket()}/root"
    profile = make_profile(name="lake", roots=[location], **proxied_s3.profile_fields())
    namespace = make_root()
    namespace.storage_profile = profile
    namespace.save(update_fields=["storage_profile"])
    return location


def commit_to(**properties: str) -> LoadedTable:
    updates = [{"action": "set-properties", "updates": properties}]
    change = TableChange(table=T, requirements=[], updates=updates)
    return iceberg_commits.commit_table(actor=SYSTEM, change=change)


def load() -> LoadedTable:
    return iceberg_tables.load_table(actor=SYSTEM, table=T)


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def sweep_all() -> int:
    StagedFile.objects.update(created_at=Now() - timedelta(minutes=16))
    return metadata_files.sweep()


def agrees(root: str) -> None:
    """The objects are exactly the files in the ledger, and nothing is left to sweep."""
    assert not StagedFile.objects.exists()
    ledger = TableVersion.objects.values_list("manifest_path", flat=True)
    assert {f"{root}/{name}" for name in files(root)} == set(ledger)


# --- one fault ---------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_commit_is_one_put(root: str, s3_proxy: FaultProxy):
    make_iceberg_table(*T)
    with s3_proxy.recording() as requests:
        committed = commit_to(a="1")
    assert [(request.method, f"s3://{request.bucket}/{request.key}") for request in requests] == [
        ("PUT", committed.metadata_location)
    ]


@pytest.mark.django_db
def test_an_append_reads_its_list_and_its_manifest(root: str, s3_proxy: FaultProxy):
    make_iceberg_table(*T)
    table = open_table(*T)
    with s3_proxy.recording() as requests:
        table.append(rows(1))
    own = [request for request in requests if "obstore" in agent(request)]
    by_method = Counter(request.method for request in own)
    assert by_method == {"PUT": 1, "GET": 2}


def agent(request: Request) -> str:
    """ "obstore" for requests of the server; PyIceberg's are of pyarrow."""
    name = request.headers.get("user-agent", "")
    return "pyarrow" if "aws-sdk" in name else "obstore"


@pytest.mark.django_db
@pytest.mark.parametrize("fault", ["slow_down", "reset", "lost_answer"])
def test_a_fault_that_passes_is_not_noticed(root: str, s3_proxy: FaultProxy, fault: str):
    make_iceberg_table(*T)
    s3_proxy.inject(fault, is_put)
    commit_to(a="1")
    assert s3_proxy.counts[fault] == 1
    assert load().document["properties"] == {"a": "1"}
    agrees(root)


@pytest.mark.django_db
@pytest.mark.usefixtures("few_retries")
@pytest.mark.parametrize("fault", ["slow_down", "reset", "lost_answer"])
def test_a_write_that_fails_changes_nothing(
    root: str, s3: S3Store, s3_proxy: FaultProxy, fault: str
):
    before = make_iceberg_table(*T)
    s3_proxy.inject(fault, lambda request: True, times=1000)
    with pytest.raises(ServiceUnavailable) as refused:
        commit_to(a="1")
    assert "storage profile 'lake' is unavailable" in refused.value.message
    assert "root/" not in refused.value.message
    assert load().document == before.document
    assert TableVersion.objects.count() == 1
    note = StagedFile.objects.get()
    assert note.is_condemned
    bucket, _, key = note.path.removeprefix("s3://").partition("/")
    assert (key in s3.keys(bucket)) is (fault == "lost_answer")
    # While the store fails, the note stays.
    assert sweep_all() == 0
    assert StagedFile.objects.get().path == note.path
    s3_proxy._injections.clear()
    assert sweep_all() == 1
    agrees(root)


@pytest.mark.django_db
def test_a_late_write_is_swept(root: str, s3: S3Store, monkeypatch):
    """A put that was given up may still arrive at the store, also after a first removal."""
    created = make_iceberg_table(*T)
    file = metadata_files.draft(TableFiles(created), created.document, 1)

    def fail() -> None:
        with metadata_files.staged([file]):
            raise CommitConflict("refused")

    with pytest.raises(CommitConflict):
        fail()
    bucket, _, key = file.path.removeprefix("s3://").partition("/")
    s3.client().delete_object(Bucket=bucket, Key=key)
    s3.client().put_object(Bucket=bucket, Key=key, Body=file.content)
    assert sweep_all() == 1
    agrees(root)


@pytest.mark.django_db
def test_denied_access_names_the_profile(root: str, make_profile: MakeProfile, s3: S3Store):
    fields = s3.profile_fields() | {"secret": "wrong"}
    bucket = s3.new_bucket()
    make_profile(name="closed", roots=[f"s3://{bucket}/root"], **fields)
    with unchanged(), pytest.raises(ServiceUnavailable) as refused:
        iceberg_commits.register_table(
            actor=SYSTEM, table=("t",), metadata_location=f"s3://{bucket}/root/t/1.metadata.json"
        )
    assert "storage profile 'closed' has no access" in refused.value.message
    assert "metadata.json" not in refused.value.message


@pytest.mark.django_db
@pytest.mark.usefixtures("few_retries")
def test_planning_without_the_store_is_unavailable(root: str, s3_proxy: FaultProxy):
    make_iceberg_table(*T)
    open_table(*T).append(rows(1))
    s3_proxy.inject("slow_down", lambda request: request.is_read, times=1000)
    with unchanged(), pytest.raises(ServiceUnavailable, match="'lake' is unavailable"):
        scans.plan_scan(actor=SYSTEM, table=T, request={})


@pytest.mark.django_db
def test_planning_with_a_missing_manifest_is_refused(root: str, s3: S3Store):
    make_iceberg_table(*T)
    table = open_table(*T)
    table.append(rows(1))
    table.append(rows(2))
    snapshot = open_table(*T).current_snapshot()
    assert snapshot is not None
    missing = snapshot.manifests(table.io)[-1].manifest_path
    bucket, _, key = missing.removeprefix("s3://").partition("/")
    s3.client().delete_object(Bucket=bucket, Key=key)
    with unchanged(), pytest.raises(InvalidMetadata, match="cannot be read: No such"):
        scans.plan_scan(actor=SYSTEM, table=T, request={})


@pytest.mark.django_db
@pytest.mark.usefixtures("few_retries")
def test_a_purge_continues_after_the_store_failed(
    root: str, s3_proxy: FaultProxy, monkeypatch, settings
):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_TRASH_SECONDS = 0
    make_iceberg_table(*T)
    for number in range(3):
        open_table(*T).append(rows(number))
    iceberg_tables.drop_table(actor=SYSTEM, table=T, purge=True)
    job = Job.objects.get()
    s3_proxy.inject("slow_down", lambda request: not request.is_read, times=1000)
    before = files(root)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED
    assert files(root) == before
    s3_proxy._injections.clear()
    Job.objects.update(lease_until=Now() - timedelta(seconds=1))
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert files(root) == {}


# --- many writers ------------------------------------------------------------------------------


@pytest.fixture
def no_waiting_limits(monkeypatch) -> None:
    # All threads of a race wait in this one process, on a machine that may be slow.
    for name in ("_WAIT_SECONDS", "_IMPATIENT_SECONDS", "_PASS_BY_SECONDS"):
        monkeypatch.setattr(commit_queue, name, 120.0)


def run_writers(writers: int, commits: int) -> list[list[int]]:
    """The versions that each writer committed. A refused or failed commit is repeated."""
    barrier = Barrier(writers)

    def write(writer: int) -> list[int]:
        versions = []
        deadline = time.monotonic() + 240
        with contextlib.closing(connection):
            connection.ensure_connection()
            barrier.wait(timeout=60)
            for number in range(commits):
                while True:
                    try:
                        versions.append(commit_to(**{f"w{writer}.{number}": "x"}).sequence)
                        break
                    except (CommitConflict, ServiceUnavailable):
                        assert time.monotonic() < deadline
        return versions

    with ThreadPoolExecutor(writers) as pool:
        return list(pool.map(write, range(writers)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_waiting_limits")
@pytest.mark.parametrize("process", ["one", "several"])
@pytest.mark.parametrize("faults", [0.0, 0.05])
def test_many_writers_lose_nothing(
    root: str, s3_proxy: FaultProxy, monkeypatch, process: str, faults: float
):
    if process == "several":
        commit_without_turns(monkeypatch)
    make_iceberg_table(*T)
    commits = COMMITS if process == "one" else 5
    s3_proxy.faults = Faults(slow_down=faults / 3, reset=faults / 3, lost_answer=faults / 3, seed=7)
    versions = run_writers(WRITERS, commits)
    if faults:
        assert min(s3_proxy.counts[kind] for kind in ("slow_down", "reset", "lost_answer")) > 0
    s3_proxy.faults = Faults()
    total = WRITERS * commits
    assert sorted(version for row in versions for version in row) == list(range(1, total + 1))
    assert load().document["properties"] == {
        f"w{writer}.{number}": "x" for writer in range(WRITERS) for number in range(commits)
    }
    assert list(TableVersion.objects.order_by("version").values_list("version", flat=True)) == (
        list(range(total + 1))
    )
    noted = set(StagedFile.objects.values_list("path", flat=True))
    ledger = set(TableVersion.objects.values_list("manifest_path", flat=True))
    objects = {f"{root}/{name}" for name in files(root)}
    assert ledger <= objects
    assert objects - ledger <= noted  # no orphan is unaccounted for
    sweep_all()
    agrees(root)
    assert Table.objects.named(T).get().iceberg_metadata.sequence == total
