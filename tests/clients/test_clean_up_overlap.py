"""Clean-up and removal of orphans while Spark and PyIceberg write: no file of a live snapshot is removed."""

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.clients.test_iceberg_maintenance import (
    DAY,
    Jobs,
    catalog,
    java,
    jobs,
    live,
    local,
    name,
    session,
)
from tests.repeating import Repeating

__all__ = ["catalog", "java", "jobs", "live", "name", "session"]
pytestmark = [
    pytest.mark.engines,
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]
_ROUNDS = 5
_OF_SPARK = 1_000_000


def test_clean_up_overlaps_writers(
    session: SparkSession, jobs: Jobs, catalog: RestCatalog, name: tuple[str, str]
) -> None:
    """Snapshots expire as soon as they are not the newest; committed files are made days old."""
    address = ".".join(("lake", *name))
    session.sql(
        f"CREATE TABLE {address} (id BIGINT) TBLPROPERTIES"
        " ('commit.retry.num-retries'='50', 'commit.retry.max-wait-ms'='500')"
    )
    table = catalog.load_table(name)

    def append(id_: int) -> None:
        """PyIceberg refuses to repeat a commit whose first snapshot has expired meanwhile."""
        while True:
            with suppress(CommitFailedException, ValidationException):
                table.refresh().append(pa.table({"id": pa.array([id_], pa.int64())}))
                return

    def replace(id_: int) -> None:
        """Insert a row, delete it, which may be refused, and insert it again."""
        session.sql(f"INSERT INTO {address} VALUES ({id_})")
        with suppress(PySparkException):
            session.sql(f"DELETE FROM {address} WHERE id = {id_}")
        session.sql(f"INSERT INTO {address} VALUES ({id_})")

    removed, overlapping = 0, 0
    # PyIceberg ends first: its commits let those of Spark wait.
    with (
        Repeating(replace, first=_OF_SPARK, pause=0.1) as spark,
        Repeating(append, first=0, pause=0.1) as pyiceberg,
    ):
        for _ in range(_ROUNDS):
            time.sleep(1)
            _age(table)
            for kind, options in (("clean_up", {"keep_for": 0}), ("remove_orphans", {})):
                job = jobs.followed(jobs.start(name, kind, **options))
                assert job["status"] == "succeeded", (job, jobs.log(job["id"]))
                removed += job["result"].get("files") or 0
                began, ended = (job[at].timestamp() for at in ("started_at", "finished_at"))
                commits = jobs.ledger_times(table)
                overlapping += sum(began < commit < ended for commit in commits)
    assert removed > 0
    assert overlapping > 0
    table.refresh()
    expected = pyiceberg.ids | spark.ids
    ids = Counter(table.scan().to_arrow()["id"].to_pylist())
    assert ids.keys() == expected
    assert all(ids[id_] == 1 for id_ in pyiceberg.ids)
    for snapshot in table.snapshots():
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    print(f"{len(expected)} rows, {removed} files removed, {overlapping} commits during jobs")


def _age(table: Table) -> None:
    """Make the files of the current snapshots, and only these, older than the age of orphans."""
    files: set[Path] = set()
    for snapshot in table.refresh().snapshots():
        files.add(local(snapshot.manifest_list))
        for manifest in snapshot.manifests(table.io):
            files.add(local(manifest.manifest_path))
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            files |= {local(entry.data_file.file_path) for entry in entries}
    old = time.time() - 4 * DAY
    for file in files:
        os.utime(file, (old, old))
