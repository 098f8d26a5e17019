"""Jobs on Spark keep files that the table names by another spelling of their path, or through a link.

Iceberg compares paths as text.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tasks.jobs.iceberg import _iterate
from tests.clients.test_iceberg_maintenance import DAY, Jobs, java, jobs, live, local, name, session

__all__ = ["java", "jobs", "live", "name", "session"]
pytestmark = [
    pytest.mark.xdist_group("spark maintenance"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]


def through_link_to_directory(path: Path) -> str:
    table = path.parent.parent
    alias = table.with_name(f"alias-{table.name}")
    alias.symlink_to(table)
    return f"file:{alias}/data/{path.name}"


def through_link_to_file(path: Path) -> str:
    link = path.with_name(f"link-{path.name}")
    link.symlink_to(path)
    return f"file:{link}"


SPELLINGS: tuple[Callable[[Path], str], ...] = (
    str,
    lambda path: f"file:{path}",
    lambda path: f"file://{path}",
    through_link_to_directory,
    through_link_to_file,
)


class Respelled:
    """A table whose newest snapshot names the data files of its first by other paths."""

    def __init__(
        self,
        session: SparkSession,
        name: tuple[str, str],
        spellings: tuple[Callable[[Path], str], ...],
    ) -> None:
        self._session = session
        self.table = ".".join(("lake", *name))
        session.sql(f"CREATE TABLE {self.table} (id BIGINT)")
        self.number = len(spellings)
        session.sql(
            f"INSERT INTO {self.table} SELECT /*+ REPARTITION({self.number}) */ id"
            f" FROM range(0, 100, 1, {self.number})"
        )
        jvm: Any = session.sparkContext._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            session._jsparkSession, self.table
        )
        change = table.newOverwrite()
        tasks = list(_iterate(table.newScan().planFiles()))
        for task, spelling in zip(tasks, spellings, strict=True):
            path = spelling(local(task.file().location()))
            builder = jvm.org.apache.iceberg.DataFiles.builder(table.spec())
            if path != task.file().location():
                respelled = builder.copy(task.file()).withPath(path).build()
                change.deleteFile(task.file()).addFile(respelled)
        change.commit()
        self.location = local(table.location())

    def ids(self) -> list[int]:
        return sorted(row.id for row in self._session.sql(f"SELECT id FROM {self.table}").collect())

    def data_files(self) -> list[Path]:
        return sorted(self.location.glob("data/[!.]*.parquet"))


def test_clean_up_keeps_files_with_other_spellings(
    session: SparkSession, jobs: Jobs, name: tuple[str, str]
) -> None:
    respelled = Respelled(session, name, SPELLINGS)
    session.sql(f"INSERT INTO {respelled.table} VALUES (100)")
    session.sql(f"DELETE FROM {respelled.table} WHERE id = 100")  # a whole file
    expected, files = respelled.ids(), respelled.data_files()

    result = jobs.run(name, "clean_up", keep_for=0)

    assert respelled.ids() == expected == list(range(100))
    removed = set(files) - set(respelled.data_files())
    assert len(removed) == 1
    assert removed <= jobs.recorded_files()
    assert result["done"]["deleted_data_files_count"] == 1
    assert result["after"]["versions"] == 1


def test_files_that_are_named_through_a_link_are_no_orphans(
    session: SparkSession, jobs: Jobs, name: tuple[str, str]
) -> None:
    respelled = Respelled(session, name, (through_link_to_directory,))
    jobs.run(name, "clean_up", keep_for=0)
    orphan = respelled.location / "data" / "orphan.parquet"
    orphan.write_bytes(b"no snapshot has this")
    for path in respelled.data_files():
        os.utime(path, (time.time() - 4 * DAY, time.time() - 4 * DAY))

    result = jobs.run(name, "remove_orphans")

    assert respelled.ids() == list(range(100))
    assert [local(file) for file in result["done"]["orphan_files"]] == [orphan]
    assert jobs.recorded_files() == {orphan}
    assert not orphan.exists()
