"""Clean-up and removal of orphans by Spark executors: the same files remain as with the worker."""

import shutil
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catalog import maintenance_actions, policies
from catalog.access import SYSTEM, Principal
from catalog.models import AuditEvent, Job, JobStatus, Table, TableVersion
from catalog.privileges import Privilege
from catalog.services.engine import database_clock, jobs
from catalog.services.engine.commit import commit
from catalog.services.lance import data as lance_data
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import versions as lance_versions
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.maintenance import (
    job_runner,
    lance_cleanup,
    lance_orphans,
)
from catalog.services.maintenance.removals import lance_files, spark_removal
from catalog.services.tables import job_operations
from catalog.storage import stores
from tasks import spark
from tasks.jobs import lance_remove
from tasks.spark import pool
from tests.factories import files, make_administrator, make_lance_table, make_root, open_lance
from tests.shares import nightly
from tests.stores.fixtures import Storage

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse", "everywhere")]
TABLE = ("ws", "t")
ADA = Principal("ada", Privilege.ALL)
DAY = 86_400
POLICY = {"keep_for": 7 * DAY, "keep_versions": 2, "orphan_age": 3 * DAY}


class Killed(BaseException):
    """The end of the worker's process."""


@pytest.fixture(autouse=True)
def _ada_is_a_principal(db: None) -> None:
    make_administrator("ada")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_remove, "_PART", 2)


class Rows:
    """Executors that are in this process."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def map(self, function: Callable[[Any], Any]) -> "Rows":
        return Rows([function(value) for value in self.values])

    def collect(self) -> list[Any]:
        return self.values


class Context:
    defaultParallelism = 1  # noqa: N815 -- as PySpark names it
    conf: Mapping[str, str] = {}

    def getConf(self) -> Mapping[str, str]:  # noqa: N802
        return self.conf

    def parallelize(self, values: list[Any], _: int) -> Rows:
        return Rows(values)


class Session:
    sparkContext = Context()  # noqa: N815


class LocalSpark:
    """Runs the script in this process, and ends the worker after a number of parts."""

    def __init__(self, parts: int | None = None) -> None:
        self.parts = parts
        self.requests: list[Mapping[str, Any]] = []
        self.paths: list[str] = []

    def __call__(
        self,
        job: Job,
        script: str,
        request: Mapping[str, Any],
        report: jobs.Report,
        *,
        needs_iceberg: bool = False,
        on_part: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        assert (script, needs_iceberg) == (spark_removal.SCRIPT, False)
        assert on_part is not None
        self.requests.append(request)

        def emit(event: str, **facts: Any) -> None:
            if event == "progress":
                report(facts["done"], facts["total"])
            if event != "part":
                return
            if self.parts == 0:
                raise Killed
            self.parts = None if self.parts is None else self.parts - 1
            self.paths += [path for path, _, _ in facts["data"]["files"]]
            on_part(facts["data"])

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(lance_remove, "emit", emit)
            return lance_remove.run(dict(request), Session())  # type: ignore[arg-type]


def start(kind: str, *, dry: bool = False, **values: Any) -> Job:
    operation = job_operations.StartMaintenance(
        table=TABLE, kind_of_job=kind, is_dry_run=dry, parameters={"policy": POLICY | values}
    )
    job: Job = commit([operation], actor=ADA).results[0]
    return job


def run(kind: str, runner: Any = None, **values: Any) -> Job:
    job = start(kind, **values)
    job_runner.run_job(job.pk, runner)
    job.refresh_from_db()
    return job


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def make_versions(number: int = 8) -> Table:
    """A table with overwritten, shared, deleted and tagged rows, and a branch. All versions are old."""
    row = make_lance_table(TABLE, ids(1, 2, 3))
    for version in range(2, number + 1):
        overwrites = version % 3 == 0
        rows = ids(version, version + 10).to_reader()
        lance_data.insert(actor=SYSTEM, table=TABLE, data=rows, overwrite=overwrites)
        if version == 5:
            lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id = 5")
    lance_versions.settle_pending()
    lance_tags.create_tag(actor=SYSTEM, table=TABLE, tag="kept", version=2)
    lance_branches.create_branch(actor=SYSTEM, table=TABLE, name="dev", from_version=4)
    lance_versions.settle_pending()
    for version_row in TableVersion.objects.all():
        version_row.created_at -= timedelta(days=30)
        version_row.save(update_fields=["created_at"])
    return row


def rows(version: int | None = None, branch: str = "") -> list[int]:
    dataset = lance_datasets.read(actor=SYSTEM, table=TABLE, version=version, branch=branch)
    return sorted(dataset.to_table()["id"].to_pylist())


def write_foreign_files(storage: Storage, row: Table) -> list[str]:
    """Files of others beside the table, one of them below a directory with a longer name."""
    paths = [f"{row.location}-other/data/a.lance", f"{row.location.rpartition('/')[0]}/b.lance"]
    for path in paths:
        storage.write(path, b"foreign")
    return paths


def removable(row: Table) -> set[str]:
    """The files that only the planned versions have, as Lance itself names them."""
    planned = run("clean_up", dry=True).result["plan"]
    names: set[str] = set()
    for removal in planned:
        versions = [v for first, end in removal["versions"] for v in range(first, end)]
        explanation = lance_files.open_branch(row, removal["branch"]).explain_cleanup_old_versions(
            versions=versions, error_if_tagged_old_versions=False, include_files=True
        )
        root = row.location.partition("://")[2].partition("/")[2] or row.location[1:]
        names.update(file.path.removeprefix(f"{root}/") for file in explanation.candidate_files)
    return names


@pytest.mark.parametrize("engine", ["worker", "spark"])
def test_both_engines_leave_the_same_files(engine, storage):
    row = make_versions()
    foreign = write_foreign_files(storage, row)
    visible = {version: rows(version) for version in (2, 8, 9)}
    of_branch = rows(branch="dev")
    before, expected = files(row.location), removable(row)
    assert len(expected) > 10
    executors = LocalSpark()
    job = run("clean_up", executors, engine=engine)
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert set(before) - set(files(row.location)) == expected
    assert job.engine == engine
    assert job.engine_reason == f"the policy sets 'engine' to '{engine}'"
    assert set(executors.paths) == (expected if engine == "spark" else set())
    size = sum(len(before[name]) for name in expected)
    assert (job.result["files"], job.result["bytes"]) == (len(expected), size)
    assert job.result["planned"] == {"files": len(expected), "bytes": size}
    assert job.result["promise"]["kept"]
    recorded = AuditEvent.objects.filter(action="maintenance.clean_up").order_by("pk").last()
    assert recorded is not None
    assert {name: recorded.after[name] for name in ("job", "files", "bytes")} == {
        "job": job.pk,
        "files": len(expected),
        "bytes": size,
    }
    assert {version: rows(version) for version in visible} == visible
    assert rows(branch="dev") == of_branch
    assert run("clean_up", executors, engine=engine).result["plan"] == []
    assert [storage.read(path) for path in foreign] == [b"foreign"] * len(foreign)


def test_a_clean_up_that_is_killed_is_repeated():
    row = make_versions()
    before, expected = files(row.location), removable(row)
    job = start("clean_up", engine="spark")
    taken = jobs.take(job.pk)
    assert taken is not None
    with pytest.raises(Killed):
        lance_cleanup.clean_up(taken, lambda *_: None, spark=LocalSpark(parts=2))
    assert set(files(row.location)) < set(before)
    in_storage = lance_files.versions_in_storage(row, "")
    assert in_storage == set(range(1, 10))  # manifests are removed last
    Job.objects.update(status=JobStatus.CANCELED)
    assert run("clean_up", LocalSpark(), engine="spark").status == JobStatus.SUCCEEDED
    assert set(before) - set(files(row.location)) == expected
    assert rows(2) == [1, 2, 2, 3, 12]


def test_a_version_that_is_tagged_while_spark_starts_is_restored():
    row = make_versions()
    executors = LocalSpark()

    def tag_first(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        if not executors.requests:
            tag_version(row, "late", 3)
        return executors(*arguments, **keywords)

    content = rows(3)
    assert run("clean_up", tag_first, engine="spark").status == JobStatus.SUCCEEDED
    assert rows(3) == content
    assert TableVersion.objects.visible().on("").filter(version=3).exists()


def tag_version(row: Table, tag: str, version: int) -> None:
    """Tag a version in storage, as a client does that does not use the catalog."""
    open_lance(row.location).tags.create(tag, version)


@pytest.fixture
def orphaned(monkeypatch: pytest.MonkeyPatch) -> tuple[Table, set[str]]:
    """A table with its orphans. Every file is old, by a clock that is ten days ahead."""
    row = make_lance_table(TABLE, ids(*range(50)))
    lance_data.delete(actor=SYSTEM, table=TABLE, predicate="id < 5")
    lance_versions.settle_pending()
    content = next(iter(files(row.location).values()))
    names = {f"data/{number:04}.lance" for number in range(6)} | {
        "_deletions/9-1-77.arrow",
        "_transactions/1-8d1b3c52-8a3e-4c4e-9f0e-1b1f0a1f2a3b.txn",
    }
    for name in names:
        write(row, name, content)
    cutoff = database_clock.cutoff
    monkeypatch.setattr(database_clock, "cutoff", lambda age: cutoff(age) + timedelta(days=10))
    return row, names


def write(row: Table, name: str, content: bytes) -> None:
    stores.store_of(row.location).write_new(f"{row.location}/{name}", content)


@pytest.mark.parametrize("engine", ["worker", "spark"])
def test_both_engines_remove_the_same_orphans(orphaned, engine, storage):
    row, orphans = orphaned
    foreign = write_foreign_files(storage, row)
    before = files(row.location)
    size = sum(len(before[name]) for name in orphans)
    job = run("remove_orphans", LocalSpark(), engine=engine)
    assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
    assert job.engine == engine
    assert set(before) - set(files(row.location)) == orphans
    assert (job.result["files"], job.result["bytes"]) == (len(orphans), size)
    assert (job.progress, job.total) == (len(orphans), len(orphans))
    assert recorded_paths() == sorted(f"{row.location}/{name}" for name in orphans)
    event = AuditEvent.objects.get(action="maintenance.remove_orphans")
    assert event.after == {"job": job.pk, "files": len(orphans), "bytes": size}
    assert len(rows()) == 45
    assert [storage.read(path) for path in foreign] == [b"foreign"] * len(foreign)


def recorded_paths() -> list[str]:
    events = AuditEvent.objects.filter(action="table.remove_files")
    return sorted(path for event in events for path in event.after["paths"])


def test_a_removal_of_orphans_that_is_killed_is_repeated(orphaned):
    row, orphans = orphaned
    before = files(row.location)
    with pytest.raises(Killed):
        run("remove_orphans", LocalSpark(parts=2), engine="spark")
    recorded = recorded_paths()
    assert len(recorded) == 4
    assert not {path.removeprefix(f"{row.location}/") for path in recorded} & set(
        files(row.location)
    )
    assert AuditEvent.objects.filter(action="maintenance.remove_orphans").count() == 1
    Job.objects.update(status=JobStatus.CANCELED)
    run("remove_orphans", LocalSpark(), engine="spark")
    assert set(before) - set(files(row.location)) == orphans


def test_files_are_sent_in_pages(orphaned, monkeypatch):
    row, orphans = orphaned
    monkeypatch.setattr(spark_removal, "_FILES_AT_ONCE", 3)
    executors = LocalSpark()
    job = run("remove_orphans", executors, engine="spark")
    assert [len(request["files"]) for request in executors.requests] == [3, 3, 2]
    assert (job.progress, job.total) == (8, 8)
    assert not orphans & set(files(row.location))


def test_the_number_of_files_decides(orphaned):
    job = run("remove_orphans", LocalSpark(), spark_above_files=8)
    assert (job.engine, job.engine_reason) == (
        "worker",
        "8 files must be removed, not more than 'spark_above_files' (8)",
    )


def test_more_objects_than_the_limit_are_removed_by_spark(orphaned, storage):
    job = run("remove_orphans", LocalSpark(), spark_above_files=7)
    expected = {
        "s3": ("spark", "8 files must be removed, more than 'spark_above_files' (7)"),
        "local": ("worker", "the files are in a file system, where Spark removes none faster"),
    }
    assert (job.engine, job.engine_reason) == expected[storage.kind]


def test_temporary_credentials_keep_the_work_in_the_worker(orphaned, monkeypatch):
    row, orphans = orphaned
    monkeypatch.setattr(lance_datasets, "expires", lambda _: True)
    job = run("remove_orphans", None, engine="worker", dry=True)
    assert job.result["before"]["orphans"] == len(orphans)
    taken = jobs.take(start("remove_orphans", engine="spark").pk)
    assert taken is not None
    chosen = spark_removal.choose(
        taken, row, {"engine": "spark"}, files=8, report=lambda *_: None, spark=LocalSpark()
    )
    assert chosen is None
    assert taken.engine == "worker"
    assert taken.engine_reason.startswith("executors cannot open the table, although")


def test_a_file_that_cannot_be_removed_fails_the_job_and_the_others_are_removed(
    orphaned, monkeypatch
):
    row, orphans = orphaned
    before = files(row.location)

    def refuse(module_function: Callable[..., str]) -> Callable[..., str]:
        def remove(at: Any, path: str, *more: Any) -> str:
            if path.endswith("0003.lance"):
                raise PermissionError("not permitted")
            return module_function(at, path, *more)

        return remove

    for name in ("remove_file", "remove_object"):
        monkeypatch.setattr(lance_remove, name, refuse(getattr(lance_remove, name)))
    taken = jobs.take(start("remove_orphans", engine="spark").pk)
    assert taken is not None
    with pytest.raises(RuntimeError, match="not permitted"):
        lance_orphans.remove_orphans(taken, lambda *_: None, spark=LocalSpark())
    left = {"data/0003.lance"}
    assert set(before) - set(files(row.location)) == orphans - left
    assert recorded_paths() == sorted(f"{row.location}/{name}" for name in orphans - left)


def test_policies_declare_the_limit():
    assert policies.rules_by_name()["spark_above_files"].default == 100_000
    for key in ("clean_up", "remove_orphans"):
        assert maintenance_actions.require(key).implementations["lance"].takes_spark


# --- the executor's function, on local files


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "table"
    (place / "data").mkdir(parents=True)
    (place / "data" / "a.lance").write_bytes(b"1")
    return place


@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_executors_keep_files_behind_links(directory, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "b.lance").write_bytes(b"2")
    (directory / "linked").symlink_to(foreign)
    (directory / "data" / "c.lance").symlink_to(foreign / "b.lance")
    paths = ["linked/b.lance", "data/c.lance", "../foreign/b.lance", "data", "data/a.lance"]
    outcomes = lance_remove.remove(str(directory), paths, None, None)
    assert outcomes == ["kept", "kept", "kept", "kept", "removed"]
    assert (foreign / "b.lance").read_bytes() == b"2"


@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_executors_keep_files_that_were_written_again(directory):
    path = directory / "data" / "a.lance"
    written = path.stat().st_mtime
    assert lance_remove.remove(str(directory), ["data/a.lance"], written, None) == ["kept"]
    assert lance_remove.remove(str(directory), ["data/a.lance"], written + 1, None) == ["removed"]


@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_a_repeated_attempt_counts_the_files_of_the_lost_one(directory):
    arguments = (str(directory), ["data/a.lance"], None, None)
    assert lance_remove.remove(*arguments) == ["removed"]
    assert lance_remove.remove(*arguments) == ["missing"]
    assert lance_remove.remove(*arguments, attempt=1) == ["removed"]


@pytest.mark.parametrize("storage", ["local"], indirect=True)
def test_an_executor_without_the_warehouse_fails(tmp_path):
    with pytest.raises(OSError, match="does not exist on this executor"):
        lance_remove.remove(str(tmp_path / "elsewhere"), ["data/a.lance"], None, None)


# --- Spark itself


def killed_after_a_part(*arguments: Any, on_part: Any, **options: Any) -> dict[str, Any]:
    """Run Spark, and end the driver when the first part arrives."""

    def add(part: Mapping[str, Any]) -> None:
        on_part(part)
        raise Killed

    return spark.run(*arguments, on_part=add, **options)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
# With local files, executors need no credentials; the tests above remove them in this process.
@pytest.mark.parametrize("storage", [nightly("local"), "s3"], indirect=True)
@pytest.mark.xdist_group("lance removal on spark")  # the runs use one driver
@pytest.mark.timeout(900)
def test_spark_removes_versions_and_orphans(settings, storage: Storage):
    make_root()
    settings.SPARK_MASTER = "local[2,4]"
    settings.MONODON_SPARK_CONF = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    }
    row = make_versions()
    before, expected = files(row.location), removable(row)
    content = rows()
    try:
        with pytest.raises(Killed):
            run("clean_up", killed_after_a_part, engine="spark")
        assert rows() == content
        Job.objects.update(status=JobStatus.CANCELED)
        job = run("clean_up", spark.run, engine="spark")
        assert (job.status, job.error) == (JobStatus.SUCCEEDED, "")
        assert set(before) - set(files(row.location)) == expected
        assert rows() == content
        taken = jobs.take(start("remove_orphans", engine="spark").pk)
        assert taken is not None
        names = [f"data/{number:04}.lance" for number in range(1200)]
        for name in names:
            storage.write(f"{row.location}/{name}", b"orphan")
        removal = spark_removal.SparkRemoval(taken, row, lambda *_: None, spark.run, len(names))
        removal.remove_files([(name, "data", 6) for name in names], time.time() + DAY)
        assert (removal.files, removal.bytes) == (1200, 7200)
        assert not set(names) & set(files(row.location))
        assert len(recorded_paths()) == 1200
        assert rows() == content
    finally:
        pool.end_all()
