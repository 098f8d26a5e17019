"""The prepared statements: what they read and lock, and the conditions under which they write."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.identifiers import digest
from catalog.models import (
    IcebergMetadata,
    Namespace,
    StagedFile,
    StorageProfile,
    Table,
    TableState,
    TableVersion,
    Transaction,
)
from catalog.services.engine import statements
from catalog.services.engine.prepared import selects
from catalog.services.engine.statements import NewTransaction, NewVersion, Swap
from tests.factories import make_iceberg_table, make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
GONE = uuid.uuid4()


def locks(captured: CaptureQueriesContext) -> list[bool]:
    return ["FOR NO KEY UPDATE" in query["sql"] for query in captured]


# --- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("is_locking", [False, True])
def test_tables_are_read_by_their_names(count, is_locking):
    rows = [make_table("ns", name, properties={"name": name}) for name in "abcd"]
    Table.objects.filter(name="d").update(state=TableState.DROPPED)
    names = [row.digest for row in reversed(rows)][:count]
    select = selects.select_tables_for_update if is_locking else selects.select_tables
    with CaptureQueriesContext(connection) as captured:
        read = select(names)
    assert read == [row for row in rows[:3] if row.digest in names]
    assert [row.properties for row in read] == [{"name": row.name} for row in read]
    assert all(isinstance(row.database_now, datetime) for row in read)  # type: ignore[attr-defined]
    assert locks(captured) == [is_locking]
    assert select([GONE]) == []


def test_the_tables_of_namespaces_are_locked():
    rows = [make_table(*name) for name in (("a", "t"), ("b", "u"), ("a", "v"), ("c", "w"))]
    Table.objects.filter(name="v").update(state=TableState.DROPPED)
    keys = {row.namespace.name: row.namespace_id for row in rows}
    with CaptureQueriesContext(connection) as captured:
        assert selects.select_tables_in_for_update([keys["b"], keys["a"]]) == rows[:2]
    assert locks(captured) == [True]
    assert selects.select_tables_in_for_update([]) == []


@pytest.fixture
def spaces() -> list[Namespace]:
    """A local namespace, one with a storage profile, one below it, and a dropped one."""
    make_root()
    spaces = [make_namespace(*path) for path in (("a",), ("b",), ("b", "c"), ("d",))]
    lake = StorageProfile.objects.create(name="lake", kind="s3", roots=["s3://lake"], secret=b"s")
    Namespace.objects.filter(name="b").update(storage_profile=lake)
    Namespace.objects.filter(name="d").update(dropped_at=datetime(2026, 1, 1, tzinfo=UTC))
    return spaces


@pytest.mark.parametrize("is_locking", [False, True])
def test_live_namespaces_are_read_with_whether_they_have_object_storage(spaces, is_locking):
    select = (
        selects.select_namespaces_for_update if is_locking else selects.select_namespaces_in_storage
    )
    with CaptureQueriesContext(connection) as captured:
        read = select([row.digest for row in reversed(spaces)])
    assert read == spaces[:3]
    assert [row.has_object_storage for row in read] == [False, True, True]  # type: ignore[attr-defined]
    assert all(isinstance(row.database_now, datetime) for row in read)  # type: ignore[attr-defined]
    assert locks(captured) == [is_locking]


def test_live_namespaces_are_read_with_their_profiles_but_no_secrets(spaces):
    with CaptureQueriesContext(connection) as captured:
        read = selects.select_namespaces([row.digest for row in spaces])
        profiles = {row.name: row.storage_profile for row in read}
    assert len(captured) == 1
    assert set(profiles) == {"a", "b", "c"}
    assert (profiles["a"], profiles["c"]) == (None, None)
    assert (profiles["b"].name, profiles["b"].roots) == ("lake", ["s3://lake"])
    assert profiles["b"].get_deferred_fields() == {"secret"}
    assert bytes(profiles["b"].secret) == b"s"  # read when it is used


def test_a_namespace_is_read_by_its_key_dropped_or_not(spaces):
    for row in spaces:
        assert selects.select_namespace(row.pk) == row
    with pytest.raises(Namespace.DoesNotExist):
        selects.select_namespace(0)


# --- writing -----------------------------------------------------------------------------------


def version(table: Table, number: int, transaction: NewTransaction) -> NewVersion:
    row = NewVersion(
        table=table,
        branch="",
        version=number,
        manifest_path=f"{number}.manifest",
        staged_path=None,
        manifest_size=None,
        e_tag=None,
        metadata=None,
        transaction_id=transaction.id,
    )
    row.table_id = table.pk
    return row


@pytest.fixture
def tables(db: None) -> list[Table]:
    rows = [make_table("ns", name) for name in "ab"]
    Table.objects.update(state=TableState.LIVE)
    return rows


def insert(tables: list[Table], swap: Swap | None = None) -> datetime | None:
    """Insert a version of each table, if they are unchanged."""
    transaction = NewTransaction(actor="etl")
    versions = [version(table, 5, transaction) for table in tables]
    return statements.insert_if_unchanged(tables, versions, [transaction], swap=swap)


def test_versions_are_inserted_if_all_tables_are_unchanged(tables):
    with CaptureQueriesContext(connection) as captured:
        moment = insert(tables)
    assert len(captured) == 1
    rows = TableVersion.objects.filter(version=5).order_by("table")
    assert [row.table_id for row in rows] == [table.pk for table in tables]
    assert {row.created_at for row in rows} == {moment}
    assert Transaction.objects.filter(actor="etl").count() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"state": TableState.DROPPED},
        {"state": TableState.DECLARED},
        {"digest": digest(("ns", "renamed"))},
    ],
)
def test_nothing_is_inserted_if_one_table_has_changed(tables, change):
    Table.objects.filter(pk=tables[1].pk).update(**change)
    with unchanged():
        assert insert(tables) is None
        assert insert(tables[1:]) is None
    assert insert(tables[:1]) is not None


def prepare_swap(**changed: Any) -> Swap:
    """The next metadata file of a new table, which is staged."""
    loaded = make_iceberg_table("ns", "t")
    StagedFile.objects.create(path="/new")
    StagedFile.objects.create(path="/other")
    values = {
        "table_id": loaded.pk,
        "base": loaded.metadata_location,
        "path": "/new",
        "location": "file:///new",
        "sequence": 7,
        "answer": b"answer",
        "etag": '"etag"',
    }
    return Swap(**values | changed)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_staged_file_becomes_current(is_alone):
    swap = prepare_swap()
    row = Table.objects.get(pk=swap.table_id)
    assert statements.swap_metadata(swap) if is_alone else insert([row], swap) is not None
    current = IcebergMetadata.objects.get(table=row)
    assert (current.metadata_location, current.sequence) == ("file:///new", 7)
    assert (bytes(current.answer), current.etag) == (b"answer", '"etag"')
    assert StagedFile.objects.get().path == "/other"


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("case", ["another base", "given up", "not staged", "another table"])
def test_a_file_does_not_become_current_in_these_cases(is_alone, case):
    changed = {
        "another base": {"base": "file:///older"},
        "not staged": {"path": "/unknown"},
        "another table": {"table_id": 0},
    }
    swap = prepare_swap(**changed.get(case, {}))
    if case == "given up":
        StagedFile.objects.filter(path="/new").update(is_condemned=True)
    row = Table.objects.get(name="t")
    with unchanged():
        assert not (statements.swap_metadata(swap) if is_alone else insert([row], swap))


def test_a_swap_requires_all_tables_of_its_commit(tables):
    swap = prepare_swap()
    rows = [Table.objects.get(pk=swap.table_id), tables[0]]
    Table.objects.filter(pk=tables[0].pk).update(state=TableState.DROPPED)
    with unchanged():
        assert insert(rows, swap) is None


def test_a_row_is_inserted_with_the_key_of_a_row_that_it_refers_to(db):
    make_root()
    parent = Namespace(parent=Namespace.objects.get(parent=None), name="p", path=["p"])
    parent.digest, child = digest(("p",)), Namespace(name="c", path=["p", "c"], parent=parent)
    child.digest = digest(("p", "c"))
    assert child.parent_id is None
    for row in (parent, child):
        assert row._state.adding
        statements.insert_row(row)
        assert not row._state.adding
    stored = Namespace.objects.get(name="c")
    assert (stored.pk, stored.parent_id, child.parent_id) == (child.pk, parent.pk, parent.pk)
    assert stored.updated_at == child.updated_at
