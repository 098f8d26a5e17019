"""Equality deletes, as Flink writes them: they lower the score, and compaction removes them."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from pyiceberg.manifest import FileFormat

from catalog import maintenance_actions, read_costs
from catalog.access import SYSTEM
from catalog.formats.iceberg import manifests
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.scans import live_deletes
from catalog.models import Job, Table
from catalog.planning import Statistics
from catalog.policies import effective
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.maintenance import iceberg_actions, iceberg_statistics
from tests.catalog.formats.iceberg.written import EQUALITY, POSITION, Written
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


def first_delete_file(table: Table) -> str:
    """The delete file with the lowest sequence number."""
    reader = iceberg_statistics.reader_of(table)
    current = iceberg_statistics.current_metadata(table)
    assert current is not None
    assert current.snapshot is not None
    listed = manifests.read_list(reader, current.snapshot["manifest-list"])
    entries = [entry for each in manifests.read_each(reader, listed) for entry in each]
    deletes = [entry for entry in entries if entry.file.content == EQUALITY]
    return str(min(deletes, key=lambda entry: entry.sequence_number).file.file_path)


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
    assert read_costs.score(measured, POLICY) < 100


@pytest.mark.parametrize(("comparisons", "rewritten"), [(5_000_000, 6), (0, 0)])
def test_data_files_of_left_out_delete_files_are_not_rewritten(
    warehouse, monkeypatch, comparisons, rewritten
):
    """The key of the first upsert is in one file before it. Without comparisons it may be in each."""
    monkeypatch.setattr(live_deletes, "_MAX_COMPARISONS", comparisons)
    made = upserted(warehouse / "t")
    table = register(made, warehouse / "t")
    path = first_delete_file(table)
    monkeypatch.setattr(iceberg_statistics, "_MIN_INPUT_FILES", 2)
    assert measure(table).rewrite_files == 7
    measured = iceberg_statistics.measure(table, POLICY, frozenset({path}))
    assert measured is not None
    assert (measured.files, measured.small_files, measured.rewrite_files) == (7, 7, rewritten)


def test_too_many_comparisons_count_all_deletes_as_applied(warehouse, monkeypatch):
    made = upserted(warehouse / "t")
    made.commit([made.file(rows(2, 3), content=POSITION, metrics=False)], operation="delete")
    table = register(made, warehouse / "t")
    monkeypatch.setattr(live_deletes, "_MAX_COMPARISONS", 0)
    measured = measure(table)
    assert (measured.equality_delete_files, measured.equality_deletes) == (3, 3)
    assert measured.deleted_rows == 2


def test_deletes_of_one_file_each_are_compared_with_that_file_only(warehouse, monkeypatch):
    made = Written(warehouse / "t", SCHEMA)
    made.commit([made.file(rows(*range(10))), made.file(rows(*range(10, 20)))])
    paths = [f"file://{made.directory}/data/{name}.parquet" for name in ("00001", "00002", "gone")]
    made.commit([positions(made, path, 3) for path in paths], operation="delete")
    table = register(made, warehouse / "t")
    monkeypatch.setattr(live_deletes, "_MAX_COMPARISONS", 2)  # one for each data file
    measured = measure(table)
    assert (measured.delete_files, measured.deleted_rows) == (3, 6)


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


def test_files_are_counted_by_size_and_partition(warehouse):
    measured = measure(register(upserted(warehouse / "t", BY_PART), warehouse / "t"))
    assert measured.file_sizes == (7, 0, 0, 0, 0, 0, 0)
    assert measured.partitions == 4
    assert {(each.name, each.files) for each in measured.largest_partitions} == {
        *(("part=0", 2), ("part=1", 2), ("part=2", 2), ("part=3", 1))
    }
    sizes = [each.bytes for each in measured.largest_partitions]
    assert sizes == sorted(sizes, reverse=True)
    assert Statistics.from_json(orjson.loads(orjson.dumps(measured.as_json()))) == measured


def test_a_table_without_partitions_has_no_largest_ones(warehouse):
    measured = measure(register(upserted(warehouse / "t"), warehouse / "t"))
    assert (measured.partitions, measured.largest_partitions) == (0, ())
    assert sum(measured.file_sizes) == 7


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


# --- rows, and delete files that apply to nothing ---------------------------------------------------


def test_rows_under_equality_deletes_are_a_range(warehouse):
    """Upserts as Flink writes them: eight rows of which five are live."""
    made = Written(warehouse / "t", SCHEMA)
    for keys in ((1, 2, 3), (2, 4), (1, 3, 5)):
        deletes = made.file(rows(*keys), content=EQUALITY, equality_ids=[1])
        made.commit([made.file(rows(*keys))], [deletes], operation="overwrite")
    measured = measure(register(made, warehouse / "t"))
    # The first keys are not newer than any file; the other two files apply.
    assert (measured.equality_delete_files, measured.dangling_equality_deletes) == (3, 1)
    assert measured.equality_deletes == 5
    assert (measured.min_rows, measured.rows) == (3, 8)
    assert read_costs.score(measured, POLICY) < 90
    (job, _) = maintenance_actions.plan(measured, POLICY)
    assert job.kind == "compact"
    assert "2 equality delete files have 5 keys" in job.reason
    assert "1 delete files apply to no data file" in job.reason


def test_rows_without_equality_deletes_are_exact(warehouse):
    made = Written(warehouse / "t", SCHEMA)
    made.commit([made.file(rows(1, 2, 3))])
    measured = measure(register(made, warehouse / "t"))
    assert (measured.rows, measured.min_rows) == (3, None)
    assert Statistics.from_json(measured.as_json()) == measured


def test_keys_outside_the_bounds_of_older_files_delete_nothing(warehouse):
    made = Written(warehouse / "t", SCHEMA)
    made.commit([made.file(rows(1, 2, 3))])
    made.commit([made.file(rows(7, 8), content=EQUALITY, equality_ids=[1])], operation="delete")
    measured = measure(register(made, warehouse / "t"))
    assert (measured.rows, measured.min_rows) == (3, None)
    assert (measured.dangling_equality_deletes, measured.equality_deletes) == (1, 0)


def positions(made: Written, path: str, count: int, **more: Any) -> Any:
    """A position delete file, or deletion vector, of a data file."""
    bounds = {2_147_483_546: path.encode()}
    return made.file(
        rows(*range(count)),
        content=POSITION,
        metrics=False,
        referenced_data_file=path,
        lower_bounds=bounds,
        upper_bounds=bounds,
        **more,
    )


def test_dangling_position_deletes_do_not_count_as_deleted_rows(warehouse):
    made = Written(warehouse / "t", SCHEMA)
    made.commit([made.file(rows(*range(10)))])
    data = f"file://{made.directory}/data/00001.parquet"
    made.commit([positions(made, data, 4)], [positions(made, f"{data}.gone", 3)])
    measured = measure(register(made, warehouse / "t"))
    assert (measured.rows, measured.deleted_rows, measured.min_rows) == (6, 4, None)
    assert (measured.delete_files, measured.rewritten_delete_files) == (2, 1)
    assert measured.dangling_position_deletes == measured.dangling_deletes == 1
    planned = maintenance_actions.plan(measured, POLICY)
    assert [(job.kind, job.files_gone) for job in planned] == [
        ("compact", 0),
        ("rewrite_position_deletes", 1),
    ]
    assert planned[1].reason == "1 delete files apply to no data file"


def test_deletes_older_than_the_rewritten_data_are_dangling(warehouse):
    """A compaction replaces the data files, and leaves delete files behind."""
    made = upserted(warehouse / "t")
    data = [manifest.manifest_path for manifest in made.manifests if manifest.content == 0]
    made.commit([made.file(rows(*range(40)))], operation="replace", removed=data)
    measured = measure(register(made, warehouse / "t"))
    assert (measured.rows, measured.min_rows, measured.files) == (40, None, 1)
    assert (measured.equality_delete_files, measured.dangling_equality_deletes) == (3, 3)
    assert read_costs.score(measured, POLICY) < 100
    (job,) = maintenance_actions.plan(measured, POLICY)
    assert (job.kind, job.files_gone) == ("rewrite_position_deletes", 3)


def test_deletion_vectors_are_counted_and_replace_older_position_deletes(warehouse):
    made = Written(warehouse / "t", SCHEMA, version=3)
    made.commit([made.file(rows(*range(10)))])
    data = f"file://{made.directory}/data/00001.parquet"
    made.commit([positions(made, data, 2)], operation="delete")
    vector = positions(
        made, data, 3, file_format=FileFormat.PUFFIN, content_offset=4, content_size_in_bytes=40
    )
    made.commit([vector], operation="delete")
    measured = measure(register(made, warehouse / "t"))
    assert (measured.rows, measured.deleted_rows) == (7, 3)
    assert (measured.deletion_vectors, measured.delete_files) == (1, 1)
    assert (measured.dangling_vectors, measured.dangling_position_deletes) == (0, 1)
