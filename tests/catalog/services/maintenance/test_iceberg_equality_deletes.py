"""Equality deletes, as Flink writes them: they lower the score, and compaction removes them."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from catalog import maintenance_actions, planning
from catalog.access import SYSTEM
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.models import Job, Table
from catalog.planning import Statistics
from catalog.policies import effective
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.maintenance import iceberg_actions, iceberg_statistics
from tests.catalog.formats.iceberg.written import EQUALITY, Written
from tests.factories import make_namespace

pytestmark = pytest.mark.django_db

SCHEMA = {
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "part", "required": True, "type": "long"},
    ]
}
BY_PART = {"fields": [{"source-id": 2, "transform": "identity", "name": "part", "field-id": 1000}]}
POLICY = effective([])


def rows(*ids: int, part: int = 0) -> list[dict[str, Any]]:
    return [{"id": id_, "part": part} for id_ in ids]


def register(made: Written, directory: Path) -> Table:
    make_namespace("ws")
    file = directory / "metadata" / "00001-a.metadata.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    document = metadata_documents.parse(orjson.dumps(made.document))
    file.write_bytes(orjson.dumps(document))
    iceberg_commits.register_table(
        actor=SYSTEM, table=("ws", "t"), metadata_location=f"file://{file}"
    )
    return Table.objects.named(("ws", "t")).get()


def measure(table: Table) -> Statistics:
    measured = iceberg_statistics.measure(table, POLICY)
    assert measured is not None
    return measured


def upserted(directory: Path, *specs: dict[str, Any]) -> Written:
    """Four files of ten rows, and three upserts of a key each."""
    made = Written(directory, SCHEMA, *specs)
    for number in range(4):
        made.commit([made.file(rows(*range(10 * number, 10 * number + 10), part=number))])
    for key in (1, 11, 21):
        partition = key // 10
        made.commit(
            [made.file(rows(key, part=partition))],
            [made.file(rows(key, part=partition), content=EQUALITY, equality_ids=[1])],
            operation="overwrite",
        )
    return made


def test_equality_deletes_are_measured(warehouse):
    measured = measure(register(upserted(warehouse / "t"), warehouse / "t"))
    assert (measured.equality_delete_files, measured.equality_deletes) == (3, 3)
    assert (measured.delete_files, measured.deleted_rows) == (0, 0)
    assert planning.score(measured, POLICY) < 100


def test_many_equality_deletes_are_compacted(warehouse, monkeypatch):
    made = upserted(warehouse / "t")
    many = [made.file(rows(key), content=EQUALITY, equality_ids=[1]) for key in range(10)]
    made.commit(many, operation="delete")
    table = register(made, warehouse / "t")
    measured = measure(table)
    assert measured.equality_delete_files == 13
    # All files of the table are older than the deletes.
    assert (measured.files, measured.rewrite_files) == (7, 7)
    (job,) = maintenance_actions.plan(measured, POLICY)
    assert job.kind == "compact"
    assert "13 equality delete files have 13 keys" in job.reason
    assert iceberg_actions._options(measured, POLICY)["delete-file-threshold"] == "1"


def test_equality_deletes_apply_to_older_files_of_their_partition(warehouse):
    made = upserted(warehouse / "t", BY_PART)
    keys = rows(*range(10, 20), part=1)
    made.commit([made.file(keys, content=EQUALITY, equality_ids=[1])], operation="delete")
    made.commit([made.file(rows(10, part=1))])
    measured = measure(register(made, warehouse / "t"))
    # With the older files of a partition its small ones are rewritten; partition 3 has no deletes.
    assert (measured.equality_delete_files, measured.equality_deletes) == (4, 13)
    assert (measured.files, measured.rewrite_files) == (8, 7)


def test_few_equality_deletes_are_not_compacted(warehouse):
    made = Written(warehouse / "t", SCHEMA)
    made.commit([made.file(rows(*range(1000)))])
    made.commit([made.file(rows(1), content=EQUALITY, equality_ids=[1])], operation="delete")
    measured = measure(register(made, warehouse / "t"))
    assert (measured.equality_delete_files, measured.rewrite_files) == (1, 0)
    assert maintenance_actions.plan(measured, POLICY) == []
    assert "delete-file-threshold" not in iceberg_actions._options(measured, POLICY)
    assert Job.objects.count() == 0
