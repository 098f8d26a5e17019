"""Links in the directories of an Iceberg table or view: the server creates no file behind them."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from catalog.access import SYSTEM
from catalog.errors import CatalogError, ForeignFile, InvalidLocation
from catalog.models import Job, JobStatus, StagedFile, Table
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits, views
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.maintenance import job_runner
from catalog.services.tables import job_operations
from catalog.storage import local_directories, local_files
from tests.catalog.services.iceberg.writing import open_table, rows
from tests.factories import files, make_iceberg_table, make_namespace, make_root, unchanged
from tests.security.foreign import local, write_table

pytestmark = pytest.mark.django_db

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}


@pytest.fixture
def warehouse(tmp_path, settings) -> Path:
    directory = tmp_path / "warehouse"
    directory.mkdir()
    settings.MONODON_WAREHOUSE = str(directory)
    settings.MONODON_ALLOWED_ROOTS = []
    make_root()
    return directory


@pytest.fixture
def victim(warehouse: Path) -> Iterator[Path]:
    """The location of a table in which no file may appear."""
    location = Path(make_iceberg_table("secret", "t").location)
    before = files(location)
    yield location
    assert files(location) == before
    assert not StagedFile.objects.exists()


def replace_by_link(directory: str | Path, target: Path) -> None:
    directory = Path(directory)
    if directory.exists():
        directory.rename(f"{directory}.away")
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.symlink_to(target)


def set_properties(table: str, **properties: str) -> None:
    updates = [{"action": "set-properties", "updates": properties}]
    change = TableChange(table=("ws", table), requirements=[], updates=updates)
    commits.commit_table(actor=SYSTEM, change=change)


@pytest.mark.parametrize("linked", ["metadata", ""], ids=["metadata", "location"])
def test_a_commit_writes_no_metadata_behind_a_link(victim, linked):
    mine = Path(make_iceberg_table("ws", "mine").location)
    replace_by_link(mine / linked, victim / linked)
    with unchanged(), pytest.raises(ForeignFile, match="may not be written"):
        set_properties("mine", a="b")


def test_a_metadata_path_that_became_a_link_is_not_followed(victim, warehouse):
    path = warehouse / "tables" / "elsewhere"
    properties = {"write.metadata.path": f"file://{path}"}
    make_iceberg_table("ws", "mine", properties=properties)
    set_properties("mine", a="b")
    replace_by_link(path, victim / "metadata")
    with unchanged(), pytest.raises(CatalogError):
        set_properties("mine", a="c")


def test_a_shared_metadata_path_can_be_written(warehouse):
    properties = {"write.metadata.path": f"file://{warehouse}/tables/shared"}
    for name in ("one", "two"):
        make_iceberg_table("ws", name, properties=properties)
        set_properties(name, a="b")
    assert len(files(warehouse / "tables" / "shared")) == 4


def test_a_replaced_view_writes_no_metadata_behind_a_link(victim):
    make_namespace("ws")
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
        "default-namespace": ["ws"],
    }
    view = views.create_view(actor=SYSTEM, view=("ws", "v"), schema=SCHEMA, view_version=version)
    replace_by_link(Path(view.location) / "metadata", victim / "metadata")
    updates = [{"action": "set-properties", "updates": {"a": "b"}}]
    with unchanged(), pytest.raises(ForeignFile, match="may not be written"):
        views.replace_view(actor=SYSTEM, view=("ws", "v"), requirements=[], updates=updates)


@pytest.mark.parametrize("stage", [False, True], ids=["created", "staged"])
def test_a_new_table_at_a_link_is_refused(victim, warehouse, stage):
    make_namespace("ws")
    location = warehouse / "tables" / "mine"
    location.mkdir(parents=True)
    (location / "metadata").symlink_to(victim / "metadata")
    with unchanged(), pytest.raises(CatalogError):
        commits.create_table(
            actor=SYSTEM,
            table=("ws", "mine"),
            schema=SCHEMA,
            location=f"file://{location}",
            stage=stage,
        )


def test_a_link_that_appears_after_the_check_is_not_followed(victim, monkeypatch):
    mine = Path(make_iceberg_table("ws", "mine").location)
    write = local_files.write_new_file

    def replace_first(path: str, content: bytes) -> None:
        replace_by_link(mine / "metadata", victim / "metadata")
        write(path, content)

    monkeypatch.setattr(local_files, "write_new_file", replace_first)
    with unchanged(), pytest.raises(InvalidLocation, match="a link or a file is on its path"):
        set_properties("mine", a="b")


@pytest.mark.parametrize("kind", ["compact", "rewrite_manifests"])
def test_spark_writes_no_files_behind_a_link(victim, kind):
    make_iceberg_table("ws", "mine")
    for number in range(6):
        open_table("ws", "mine").append(rows(number))
    row = Table.objects.named(("ws", "mine")).get()
    (Path(row.location) / "data" / "day=1").symlink_to(victim)
    request = job_operations.StartMaintenance(
        table=("ws", "mine"),
        format="iceberg",
        kind_of_job=kind,
        parameters={"policy": {}},
    )
    job: Job = commit([request], actor=SYSTEM).results[0]
    job_runner.run_job(job.pk, spark=no_spark)
    job.refresh_from_db()
    assert job.status == JobStatus.FAILED
    assert "has a link to a directory at 'data/day=1'" in job.error


def no_spark(*_: object, **__: object) -> dict[str, object]:
    raise AssertionError("Spark was started")


def test_directories_are_not_made_behind_a_link(victim, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(victim)
    for path in (link / "new", link / "new" / "deeper", link):
        with pytest.raises(OSError, match="link"):
            local_directories.make_directory(str(path))
        with pytest.raises(OSError, match="link"):
            local_files.write_new_file(f"{path}/file", b"x")
    local_directories.make_directory(str(tmp_path / "a" / "b"))
    local_directories.make_directory(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("target", ["link", "pipe"])
@pytest.mark.parametrize("beside", ["metadata", "list", "manifest", "data"])
def test_a_job_reads_no_checksum_file_that_is_not_regular(warehouse, beside, target):
    """Hadoop opens ``.name.crc`` beside each local file: it would follow the link, or wait for the pipe for ever."""
    hidden = write_table("secret", "t").data
    mine = write_table("ws", "mine")
    metadata = local(
        iceberg_tables.load_table(actor=SYSTEM, table=("ws", "mine")).metadata_location
    )
    path = metadata if beside == "metadata" else getattr(mine, beside)
    job = replace(SYSTEM, job_kind="compact")
    assert iceberg_tables.load_table(actor=job, table=("ws", "mine"))
    checksum = path.with_name(f".{path.name}.crc")
    checksum.unlink(missing_ok=True)
    if target == "pipe":
        os.mkfifo(checksum)
    else:
        checksum.symlink_to(hidden)
    with pytest.raises(ForeignFile, match=r"does not belong to table 'ws\.mine'"):
        iceberg_tables.load_table(actor=job, table=("ws", "mine"))
    checksum.unlink()
    checksum.write_bytes(b"crc\0")  # as Spark writes it
    assert iceberg_tables.load_table(actor=job, table=("ws", "mine"))


@pytest.mark.parametrize("prefix", ["file:///", "file:/", "file://localhost/", "/"])
def test_the_metadata_file_of_a_registered_table_has_no_special_checksum_file(warehouse, prefix):
    """However its location is spelled."""
    mine = write_table("ws", "mine")
    loaded = iceberg_tables.load_table(actor=SYSTEM, table=("ws", "mine"))
    metadata = local(loaded.metadata_location)
    iceberg_tables.unregister_table(actor=SYSTEM, table=("ws", "mine"))
    commits.register_table(
        actor=SYSTEM, table=("ws", "again"), metadata_location=f"{prefix}{str(metadata)[1:]}"
    )
    job = replace(SYSTEM, job_kind="compact")
    assert iceberg_tables.load_table(actor=job, table=("ws", "again"))
    checksum = metadata.with_name(f".{metadata.name}.crc")
    checksum.unlink(missing_ok=True)
    checksum.symlink_to(mine.data)
    with pytest.raises(ForeignFile, match=r"does not belong to table 'ws\.again'"):
        iceberg_tables.load_table(actor=job, table=("ws", "again"))
