"""Rows made without Django's constructor equal those made with it."""

import pytest
from django.db.models.expressions import DatabaseDefault

from catalog.models import IcebergMetadata, Namespace, Table
from catalog.services.engine.prepared.new_rows import new_row

NAMESPACE = {"uuid": "0", "name": "ns", "path": ["ns"], "properties": {}}
TABLE = {"uuid": "0", "name": "t", "location": "/w/t", "properties": {"a": "b"}}


def attributes(row: Namespace | Table | IcebergMetadata) -> dict[str, object]:
    return {
        name: "by the database" if isinstance(value, DatabaseDefault) else value
        for name, value in vars(row).items()
        if name != "_state"
    }


def test_a_new_row_equals_that_of_the_constructor():
    root = Namespace(pk=7)
    namespace = Namespace(parent=root, **NAMESPACE)
    made = new_row(Namespace, {"parent": root}, **NAMESPACE)
    assert attributes(made) == attributes(namespace)
    assert list(vars(made)) == list(vars(namespace))
    assert (made.parent, made.parent_id, made._state.adding) == (root, 7, True)
    assert made._state.db is None

    table = new_row(Table, {"namespace": made}, **TABLE)
    assert attributes(table) == attributes(Table(namespace=namespace, **TABLE))
    expected = attributes(IcebergMetadata(table=table, sequence=3))
    metadata = new_row(IcebergMetadata, {"table": table}, sequence=3)
    assert attributes(metadata) == expected
    assert table.iceberg_metadata is metadata


def test_defaults_are_made_for_each_row():
    first, second = (new_row(Table, {}, name="t") for _ in range(2))
    assert first.uuid != second.uuid
    assert first.properties is not second.properties


def test_an_unknown_column_is_refused():
    with pytest.raises(TypeError, match="Table has no column nmae"):
        new_row(Table, {}, nmae="t")
