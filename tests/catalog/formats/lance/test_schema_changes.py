"""Differences between the schemas of two versions of a Lance table."""

import lance
import pyarrow as pa
import pytest

from catalog.formats.lance import columns
from catalog.formats.lance.columns import Column
from catalog.formats.lance.schema_changes import ChangeKind, changes


def listed(dataset: lance.LanceDataset) -> list[Column]:
    return list(columns.columns(dataset.schema, dataset.lance_schema.fields()))


def summary(old: list[Column], new: list[Column]) -> list[tuple[str, str, str]]:
    return [
        (
            change.kind.value,
            "" if change.before is None else change.before.path,
            "" if change.after is None else change.after.path,
        )
        for change in changes(old, new)
    ]


@pytest.fixture
def dataset(tmp_path) -> lance.LanceDataset:
    rows = pa.table({"a": [1], "b": ["x"], "c": [{"d": 1.0}]})
    return lance.write_dataset(rows, tmp_path / "t.lance")


def test_a_renamed_column_is_the_same_column(dataset):
    old = listed(dataset)
    dataset.alter_columns({"path": "a", "name": "number"})
    dataset.drop_columns(["b"])
    dataset.add_columns({"e": "number + 1"})
    assert summary(old, listed(dataset)) == [
        ("renamed", "a", "number"),
        ("added", "", "e"),
        ("dropped", "b", ""),
    ]
    assert summary(listed(dataset), listed(dataset)) == []


def test_types_and_nullability_are_compared():
    def column(type_: str, *, is_nullable: bool) -> Column:
        return Column(0, "a", "a", 0, type_, is_nullable, {})

    differences = changes([column("int32", is_nullable=False)], [column("int64", is_nullable=True)])
    assert [change.kind for change in differences] == [ChangeKind.TYPE, ChangeKind.NULLABILITY]
