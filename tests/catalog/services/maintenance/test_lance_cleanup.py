"""Clean-up of old versions: ledger and storage agree afterwards."""

import random
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest
from django.db import connections
from django.utils import timezone

from catalog import models
from catalog.access import SYSTEM, Principal
from catalog.errors import (
    CatalogError,
    CommitConflict,
    InvalidTableState,
    ServiceUnavailable,
    VersionNotFound,
)
from catalog.models import (
    AuditEvent,
    Job,
    JobKind,
    JobStatus,
    MaterializedView,
    Table,
    TableVersion,
)
from catalog.privileges import Privilege
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data as lance_data
from catalog.services.lance import data_operations
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import version_operations
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.materialized_views import materialized_views
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.maintenance import job_runner, lance_cleanup, lance_retention
from catalog.services.maintenance.removals import lance_files
from catalog.services.tables import cleanup_operations, job_operations
from catalog.storage import locations, stores
from tests.api.client import encoded_schema
from tests.factories import (
    files,
    make_administrator,
    make_lance_table,
    make_root,
    open_lance,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "everywhere")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)
DAY = 86_400


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def make_versions(number: int = 6) -> Table:
    """A table in which each version has one file that no other version has, oldest first."""
    row = make_lance_table(TABLE, ids(1))
    for version in range(2, number + 1):
        overwrite(version)
    lance_versions.settle_pending()
    age(days=30)
    return row


def overwrite(number: int) -> None:
    lance_data.insert(actor=SYSTEM, table=TABLE, data=ids(number).to_reader(), overwrite=True)


def age(days: float, **chosen: Any) -> None:
    """Set back the times at which versions were recorded."""
    for row in TableVersion.objects.filter(**chosen):
        row.created_at -= timedelta(days=days)
        row.save(update_fields=["created_at"])


def start(*, dry: bool = False, **values: Any) -> Job:
    policy = {"keep_for": 7 * DAY, "keep_versions": 2} | values
    operation = job_operations.StartMaintenance(
        table=TABLE,
        kind_of_job="clean_up",
        is_dry_run=dry,
        parameters={"policy": policy},
    )
    job: Job = commit([operation], actor=ADA).results[0]
    return job


def run(*, dry: bool = False, **values: Any) -> Job:
    job = start(dry=dry, **values)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def clean_up() -> None:
    """Run the work of the job without its error handling."""
    job = jobs.take(start().pk)
    assert job is not None
    lance_cleanup.clean_up(job, lambda *_: None)


def in_ledger(branch: str = "") -> list[int]:
    rows = TableVersion.objects.visible().on(branch).order_by("version")
    return list(rows.values_list("version", flat=True))


def in_storage(branch: str = "") -> list[int]:
    row = Table.objects.get(name="t", state="live")
    return sorted(lance_files.versions_in_storage(row, branch))


def manifest_of(version: int) -> str:
    """The path of a version's manifest in storage."""
    row = TableVersion.objects.select_related("table").get(version=version)
    location = row.table.location
    return f"{location}/{locations.path_in_table(location, row.manifest_path)}"


def rows(version: int | None = None, branch: str = "") -> list[int]:
    dataset = lance_datasets.read(actor=SYSTEM, table=TABLE, version=version, branch=branch)
    return dataset.to_table()["id"].to_pylist()


def test_old_versions_are_removed_with_their_files():
    row = make_versions()
    before = files(row.location)
    job = run()
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert in_ledger() == in_storage() == [5, 6]
    removed = {name: len(content) for name, content in before.items()}
    for name in files(row.location):
        removed.pop(name, None)
    assert sum(name.startswith("data/") for name in removed) == 4
    assert sum(name.startswith("_versions/") for name in removed) == 4
    assert job.result["files"] == len(removed) == 12  # including transaction files
    assert job.result["bytes"] == sum(removed.values())
    assert job.result["before"]["versions"] == 6
    assert job.result["before"]["old_versions"] == 4
    assert job.result["after"]["versions"] == 2
    assert job.result["after"]["old_versions"] == 0
    assert (rows(5), rows()) == ([5], [6])
    with pytest.raises(VersionNotFound):
        rows(4)


def test_removed_versions_are_in_the_audit_trail():
    make_versions()
    job = run()
    retired, removed = AuditEvent.objects.order_by("-pk")[:2][::-1]
    assert retired.action == "maintenance.retire_versions"
    assert retired.after == {"ranges": [[1, 5]], "retired": 4, "job": job.pk}
    assert removed.action == "maintenance.clean_up"
    assert removed.after == {
        "job": job.pk,
        "versions": 4,
        "files": 12,
        "bytes": job.result["bytes"],
    }
    assert retired.actor == removed.actor == "ada"


def test_a_dry_run_reports_the_plan_of_the_job():
    row = make_versions()
    before, lying = in_ledger(), files(row.location)
    planned = run(dry=True).result
    assert (in_ledger(), files(row.location)) == (before, lying)
    executed = run().result
    assert planned["plan"] == executed["plan"]
    assert planned["plan"] == [
        {"branch": "", "versions": [[1, 5]], "missing": [], "files": 12, "bytes": executed["bytes"]}
    ]
    assert planned["after"] == {key: executed["after"][key] for key in planned["after"]}


def test_a_table_without_old_versions_is_unchanged():
    make_versions()
    run()
    audits = AuditEvent.objects.filter(action__startswith="maintenance.clean").count()
    job = run()
    assert (job.status, job.result["plan"]) == (JobStatus.SUCCEEDED, [])
    assert AuditEvent.objects.filter(action__startswith="maintenance.clean").count() == audits


def test_the_retention_of_a_version_begins_when_it_is_replaced():
    make_versions(4)
    overwrite(5)  # now; a moment ago, readers got version 4
    overwrite(6)
    overwrite(7)
    run(keep_versions=1)
    assert in_ledger() == in_storage() == [4, 5, 6, 7]
    assert rows(4) == [4]


def test_the_newest_versions_are_kept_whatever_their_age():
    make_versions()
    run(keep_versions=4)
    assert in_ledger() == in_storage() == [3, 4, 5, 6]


def test_tagged_versions_are_kept():
    make_versions()
    lance_tags.create_tag(actor=SYSTEM, table=TABLE, tag="v2", version=2)
    run()
    assert in_ledger() == in_storage() == [2, 5, 6]
    assert rows(2) == [2]


def test_the_origin_of_a_branch_is_kept_with_its_rows():
    make_versions()
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=2)
    run()
    assert in_ledger() == in_storage() == [2, 5, 6]
    assert rows(branch="dev") == [2]


def test_branches_are_cleaned_up():
    make_versions()
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=2)
    for number in range(10, 14):
        more = ids(number).to_reader()
        lance_data.insert(actor=SYSTEM, table=TABLE, data=more, overwrite=True, branch="dev")
    assert in_ledger("dev") == [2, 3, 4, 5, 6]
    age(days=30)
    job = run()
    assert job.error == ""
    assert [branch["branch"] for branch in job.result["plan"]] == ["dev", ""]
    assert in_ledger("dev") == in_storage("dev") == [5, 6]
    assert (rows(branch="dev"), rows()) == ([13], [6])
    assert in_ledger() == in_storage() == [2, 5, 6]


def test_the_source_version_of_a_view_is_kept():
    make_versions(2)
    materialized_views.create_view(
        actor=ADA,
        table=("ws", "v"),
        kind="query",
        source_query="SELECT id FROM ws.t",
        output_schema=encoded_schema(ids().schema),
        with_no_data=False,
    )
    job_runner.run_job(Job.objects.get().pk)
    assert MaterializedView.objects.get().source_version == 2
    for version in range(3, 7):
        overwrite(version)
    age(days=30)
    run()
    of_table = TableVersion.objects.visible().filter(table__name="t").order_by("version")
    assert list(of_table.values_list("version", flat=True)) == [2, 5, 6]


def test_the_version_that_a_queued_job_reads_is_kept():
    row = make_versions()
    Job.objects.create(kind=JobKind.BACKFILL_COLUMN, table=row, parameters={"read_version": 3})
    job = start()
    Job.objects.exclude(pk=job.pk).update(lease_until=timezone.now() + timedelta(hours=1))
    job_runner.run_job(job.pk)
    assert in_ledger() == in_storage() == [3, 5, 6]


class Killed(BaseException):
    pass


def test_a_job_killed_before_the_removal_of_files_is_completed_by_the_next(monkeypatch):
    make_versions()

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(lance.LanceDataset, "cleanup_old_versions", die)
        with pytest.raises(Killed):
            clean_up()
    assert in_ledger() == [5, 6]
    assert in_storage() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(VersionNotFound):
        rows(3)
    Job.objects.update(status=JobStatus.CANCELED)
    job = run()
    assert in_ledger() == in_storage() == [5, 6]
    assert job.result["files"] == 12


def test_a_job_killed_after_the_removal_of_files_leaves_no_work(monkeypatch):
    make_versions()

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(cleanup_operations, "RecordCleanUp", die)
        with pytest.raises(Killed):
            clean_up()
    assert in_ledger() == in_storage() == [5, 6]
    Job.objects.update(status=JobStatus.CANCELED)
    assert run().result["plan"] == []


def test_a_version_that_is_tagged_during_the_job_is_restored(monkeypatch):
    row = make_versions()
    original = lance.LanceDataset.cleanup_old_versions

    def tag_first(self: Any, **arguments: Any) -> Any:
        open_lance(row.location).tags.create("late", 3)
        return original(self, **arguments)

    monkeypatch.setattr(lance.LanceDataset, "cleanup_old_versions", tag_first)
    run()
    assert in_ledger() == in_storage() == [3, 5, 6]
    assert rows(3) == [3]
    assert AuditEvent.objects.order_by("-pk")[0].after["kept"] == [3]


@pytest.mark.parametrize("killed", [True, False])
def test_a_version_tagged_during_a_failed_attempt_is_restored(monkeypatch, killed):
    row = make_versions()

    def tag_and_fail(*_: Any, **__: Any) -> None:
        open_lance(row.location).tags.create("late", 3)
        raise (
            Killed if killed else ValueError("Dataset at path t/_versions/6.manifest was not found")
        )

    with monkeypatch.context() as patched:
        patched.setattr(lance_files, "LanceDataset", tag_and_fail)
        patched.setattr(
            lance_cleanup, "explain", lambda *_: ([1, 2, 3, 4], [("f", "data", 0)] * 12)
        )
        with pytest.raises(Killed if killed else ServiceUnavailable):
            clean_up()
    assert in_ledger() == ([5, 6] if killed else [3, 5, 6])
    job = Job.objects.get()
    assert job.result == {"retired": {"": [1, 2, 3, 4]}}
    lance_cleanup.clean_up(job, lambda *_: None)  # the retry
    assert in_ledger() == in_storage() == [3, 5, 6]
    assert rows(3) == [3]


def test_a_worker_that_has_lost_the_job_removes_no_files(monkeypatch):
    """It stalled after it had removed versions from the ledger; another worker has restored one."""
    make_versions()
    original = lance_cleanup.commit

    def stall(operations: Any, **options: Any) -> Any:
        result = original(operations, **options)
        if isinstance(operations[0], cleanup_operations.RetireVersions):
            Job.objects.update(attempts=9)
        return result

    monkeypatch.setattr(lance_cleanup, "commit", stall)
    with pytest.raises(jobs.JobLost):
        clean_up()
    assert in_storage() == [1, 2, 3, 4, 5, 6]


def test_versions_removed_without_the_catalog_leave_the_ledger():
    row = make_versions()
    open_lance(row.location).cleanup_old_versions(retain_versions=2)
    assert in_ledger() == [1, 2, 3, 4, 5, 6]
    job = run(keep_versions=10)
    assert in_ledger() == in_storage() == [5, 6]
    assert job.result["plan"][0]["missing"] == [[1, 5]]
    assert AuditEvent.objects.order_by("-pk")[0].after["missing"] == [[1, 5]]


def test_a_table_without_its_newest_manifest_is_not_cleaned_up():
    make_versions()
    path = manifest_of(6)
    assert stores.store_of(path).remove(path)
    job = run()
    assert job.result["plan"] == []
    assert in_ledger() == [1, 2, 3, 4, 5, 6]
    assert "not in storage" in job.events.get().message


def test_a_table_with_a_manifest_outside_is_not_cleaned_up():
    make_versions()
    other = version_operations.CreateVersion(
        table=TABLE, version=7, manifest_path="elsewhere/7.manifest"
    )
    commit([other], actor=SYSTEM)
    job = run()
    assert job.error == "nothing removed: the manifest of version 7 is not at its expected path"
    assert in_ledger() == [1, 2, 3, 4, 5, 6, 7]
    assert in_storage() == [1, 2, 3, 4, 5, 6]


def test_a_staged_manifest_is_moved_first(everywhere):
    make_versions()
    version = TableVersion.objects.get(version=5)
    final = manifest_of(5)
    everywhere.write(f"{final}-staged", everywhere.read(final))
    assert stores.store_of(final).remove(final)
    TableVersion.objects.filter(pk=version.pk).update(staged_path=f"{version.manifest_path}-staged")
    assert in_storage() == [1, 2, 3, 4, 6]
    run()
    assert in_ledger() == in_storage() == [5, 6]
    assert rows(5) == [5]


def test_nothing_is_removed_while_a_manifest_cannot_be_moved(monkeypatch):
    make_versions()
    monkeypatch.setattr("catalog.services.lance.ledger.versions.settle", lambda _: False)
    with pytest.raises(ServiceUnavailable):
        clean_up()
    assert in_ledger() == in_storage() == [1, 2, 3, 4, 5, 6]


def test_files_of_versions_deleted_by_clients_are_removed():
    make_versions()
    commit([version_operations.DeleteVersions(table=TABLE, ranges=((2, 4),))], actor=SYSTEM)
    run(keep_versions=100)
    assert in_ledger() == in_storage() == [1, 4, 5, 6]


def test_a_restore_that_began_earlier_is_refused():
    make_versions()

    with pytest.raises(CommitConflict):
        lance_commits.write(
            actor=SYSTEM,
            table=TABLE,
            version=2,
            operation=data_operations.RestoreTable,
            work=lambda dataset: dataset.restore(),
            may_commit=lambda: run() and None,
        )
    assert in_ledger() == in_storage() == [5, 6]
    assert rows() == [6]


def test_a_restored_version_keeps_its_files():
    make_versions()
    lance_commits.write(
        actor=SYSTEM,
        table=TABLE,
        version=2,
        operation=data_operations.RestoreTable,
        work=lambda dataset: dataset.restore(),
    )
    age(days=30)
    run()
    assert in_ledger() == in_storage() == [6, 7]
    assert rows() == [2]


def test_the_newest_version_is_never_retired():
    make_versions()
    retire = cleanup_operations.RetireVersions(table=TABLE, versions=(5, 6))
    with unchanged(), pytest.raises(CommitConflict):
        commit([retire], actor=SYSTEM)


def test_old_versions_are_counted_by_the_policy():
    row = make_versions()
    counts = lance_retention.count_versions(row, {"keep_for": 7 * DAY, "keep_versions": 1})
    assert (counts.versions, counts.old_versions) == (6, 5)
    counts = lance_retention.count_versions(row, {"keep_for": 60 * DAY, "keep_versions": 1})
    assert (counts.versions, counts.old_versions) == (6, 0)
    assert counts.manifest_bytes > 0


def do(kind: str, chance: random.Random, number: int) -> None:
    data = ids(number).to_reader()
    versions = list(TableVersion.objects.visible().on("").values_list("version", flat=True))
    version = chance.choice(versions)
    match kind:
        case "append" | "overwrite":
            lance_data.insert(actor=SYSTEM, table=TABLE, data=data, overwrite=kind == "overwrite")
        case "restore":
            lance_commits.write(
                actor=SYSTEM,
                table=TABLE,
                version=version,
                operation=data_operations.RestoreTable,
                work=lambda dataset: dataset.restore(),
            )
        case "tag":
            lance_tags.create_tag(actor=SYSTEM, table=TABLE, tag=f"t{number}", version=version)
        case "branch":
            lance_branches.create_branch(
                actor=SYSTEM, table=TABLE, name=f"b{number}", from_version=version
            )
        case "read":
            rows(max(versions))


@pytest.mark.django_db(transaction=True)
def test_every_version_in_the_ledger_has_its_files():
    """More aggressive than any policy: all versions but the newest are removed, during concurrent
    writes."""
    make_root()
    row = make_versions(3)
    stop, broken = threading.Event(), []
    completed: Counter[str] = Counter()

    def others(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            number = chance.randrange(10**6)
            kind = chance.choice(["append", "overwrite", "restore", "tag", "branch", "read"])
            try:
                do(kind, chance, number)
                completed[kind] += 1
            except CatalogError:  # the version it began with is removed: refused without effect
                completed["refused"] += 1
            except Exception as error:  # noqa: BLE001
                if "ot found" not in str(error):
                    broken.append(error)
        connections.close_all()

    threads = [threading.Thread(target=others, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    removed = 0
    try:
        until = time.monotonic() + 8
        while time.monotonic() < until:
            job = run(keep_for=0, keep_versions=1)
            assert job.status in {JobStatus.SUCCEEDED, JobStatus.QUEUED}, job.error
            removed += (job.result or {}).get("files", 0)
            Job.objects.filter(status=JobStatus.QUEUED).update(status=JobStatus.CANCELED)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not broken
    assert removed > 10
    assert min(completed[kind] for kind in ("append", "overwrite", "restore", "tag", "branch")) > 0
    lance_versions.settle_pending()
    lance_datasets.clear_caches()
    for branch, version in TableVersion.objects.visible().values_list("branch", "version"):
        rows(version, branch)
    for tag in open_lance(row.location).tags.list().values():
        rows(tag["version"], "" if tag["branch"] in {None, "main"} else tag["branch"])


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_job_that_loses_its_rights_records_what_it_did(monkeypatch, is_removed):
    """The files are gone, or a version that was tagged meanwhile has them still: the ledger says so."""
    make_versions(4)
    remove = lance_cleanup._Cleaner._remove_files

    def lose(cleaner: Any, removal: Any) -> Any:
        removed = remove(cleaner, removal) if is_removed else None
        models.Principal.objects.filter(name="ada").update(is_active=False)
        if removed is None:
            lance_datasets.read(actor=SYSTEM, table=TABLE).tags.create("late", 1)
            raise InvalidTableState("stopped")
        return removed

    monkeypatch.setattr(lance_cleanup._Cleaner, "_remove_files", lose)
    job = run()
    if is_removed:
        assert AuditEvent.objects.filter(action=cleanup_operations.RecordCleanUp.action).exists()
        assert in_ledger() == in_storage() == [3, 4]
    else:
        assert (job.status, in_ledger()) == (JobStatus.FAILED, [1, 3, 4])
