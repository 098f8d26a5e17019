"""Creating an object in one statement: it writes nothing unless its conditions hold under the lock."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.errors import NamespaceAlreadyExists, NamespaceNotFound, TableAlreadyExists
from catalog.identifiers import digest
from catalog.models import (
    AuditEvent,
    IcebergMetadata,
    Namespace,
    StagedFile,
    Table,
    TableState,
    TableVersion,
    Transaction,
)
from catalog.postgresql.outcomes import OutcomeLost
from catalog.services.engine import commit as engine_commit
from catalog.services.engine.commit import commit
from catalog.services.engine.prepared import creation, selects
from catalog.services.engine.prepared.creation import Creation
from catalog.services.engine.statements import NewVersion
from catalog.services.lance.ledger.registration_operations import DeclareTable
from catalog.services.tables.namespace_operations import CreateNamespace
from tests.factories import fingerprint, make_namespace, make_root, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


def read(*path: str) -> Namespace:
    (row,) = selects.select_namespaces_in_storage([digest(path)])
    return row


def new_table(namespace: Namespace) -> Table:
    return Table(
        namespace=namespace,
        name="t",
        digest=digest((*namespace.path, "t")),
        state=TableState.DECLARED,
        location="/warehouse/new",
        properties={},
        owner="someone",
    )


def insert(parent: Namespace, **fields: object) -> object:
    row = Creation(parent, new_table(parent), **fields)  # type: ignore[arg-type]
    return creation.insert(row, [Transaction(actor="someone")])


def test_the_row_is_complete_and_the_parent_locked():
    parent = make_namespace("ns")
    with CaptureQueriesContext(connection) as captured:
        row = commit([DeclareTable(table=("ns", "t"))], actor=SYSTEM).results[0]
    statements = [query["sql"] for query in captured if "FOR NO KEY UPDATE" in query["sql"]]
    assert len(statements) == 1
    assert statements[0].index("FOR NO KEY UPDATE OF n") < statements[0].index("INSERT INTO")
    stored = Table.objects.get()
    assert (row.pk, row.namespace_id, row._state.adding) == (stored.pk, parent.pk, False)
    assert row.created_at == stored.created_at
    assert stored.updated_at is not None
    event = AuditEvent.objects.get(action="table.declare")
    assert (event.target, event.table_uuid) == ("ns.t", stored.uuid)
    transaction = Transaction.objects.get(pk=event.transaction_id)
    assert [entry["operation"] for entry in transaction.operations] == ["DeclareTable"]


@pytest.mark.parametrize(
    "change",
    [
        {"dropped_at": "2026-01-01T00:00:00Z"},
        {"location": "s3://bucket/ns"},
        {"digest": digest(("other",))},
    ],
)
def test_nothing_is_written_if_the_parent_has_changed(change: dict[str, object]):
    make_namespace("ns", "below")
    parent = read("ns", "below")
    assert parent.has_object_storage is False
    Namespace.objects.filter(pk=parent.pk).update(**change)
    before = fingerprint()
    assert insert(parent) is None
    assert fingerprint() == before


def test_nothing_is_written_if_a_namespace_above_has_object_storage():
    make_namespace("ns", "below")
    parent = read("ns", "below")
    Namespace.objects.filter(name="ns").update(location="s3://bucket/ns")
    before = fingerprint()
    assert insert(parent) is None
    assert fingerprint() == before


def test_nothing_is_written_if_the_name_is_taken():
    make_table("ns", "t")
    before = fingerprint()
    assert insert(read("ns")) is None
    assert fingerprint() == before


@pytest.mark.parametrize("is_condemned", [True, None])
def test_nothing_is_written_without_the_record_of_the_file(is_condemned: bool | None):
    make_namespace("ns")
    if is_condemned is not None:
        StagedFile.objects.create(path="/warehouse/new/1.json", is_condemned=is_condemned)
    before = fingerprint()
    assert insert(read("ns"), staged_path="/warehouse/new/1.json") is None
    assert fingerprint() == before


def test_the_record_of_the_file_is_deleted():
    make_namespace("ns")
    StagedFile.objects.create(path="/warehouse/new/1.json")
    StagedFile.objects.create(path="/warehouse/new/2.json")
    parent = read("ns")
    row = new_table(parent)
    metadata = IcebergMetadata(
        table=row, metadata_location="file:///m", sequence=3, answer=b"\x00\xff", etag='"e"'
    )
    moment = creation.insert(
        Creation(parent, row, metadata, [], "/warehouse/new/1.json"), [Transaction(actor="a")]
    )
    assert moment == Table.objects.get().created_at
    assert [file.path for file in StagedFile.objects.all()] == ["/warehouse/new/2.json"]
    stored = IcebergMetadata.objects.get()
    assert (stored.table_id, stored.sequence, stored.etag) == (row.pk, 3, '"e"')
    assert metadata.table_id == row.pk
    assert bytes(stored.answer) == b"\x00\xff"


def test_the_first_version_belongs_to_the_new_table():
    make_namespace("ns")
    parent = read("ns")
    row, transaction = new_table(parent), Transaction(actor="someone")
    version = NewVersion(
        table=row,
        branch="",
        version=1,
        manifest_path="/warehouse/new/1.manifest",
        staged_path=None,
        manifest_size=None,
        e_tag=None,
        metadata=None,
        transaction_id=transaction.pk,
    )
    moment = creation.insert(Creation(parent, row, versions=[version]), [transaction])
    stored = TableVersion.objects.get()
    assert (stored.table, stored.version, stored.created_at) == (row, 1, moment)
    assert (version.table_id, version.created_at) == (row.pk, moment)


def test_refusals_are_those_of_a_commit_with_locks():
    make_table("ns", "t")
    before = fingerprint()
    for error, operation in (
        (TableAlreadyExists, DeclareTable(table=("ns", "t"))),
        (NamespaceNotFound, DeclareTable(table=("missing", "t"))),
        (NamespaceAlreadyExists, CreateNamespace(namespace=("ns",))),
        (NamespaceNotFound, CreateNamespace(namespace=("missing", "ns"))),
    ):
        with pytest.raises(error) as refusal:
            commit([operation], actor=SYSTEM)
        assert refusal.value.operation == 0
    assert fingerprint() == before


def test_the_namespace_is_read_once_for_all_creations_in_it():
    make_namespace("ns")
    commit([DeclareTable(table=("ns", "t1"))], actor=SYSTEM)
    with CaptureQueriesContext(connection) as captured:
        commit([DeclareTable(table=("ns", "t2"))], actor=SYSTEM)
        commit([CreateNamespace(namespace=("ns", "below"))], actor=SYSTEM)
    # Each in a savepoint, because the test has a transaction.
    assert len([query for query in captured if "SAVEPOINT" not in query["sql"]]) == 2
    assert Namespace.objects.get(name="below").parent == Namespace.objects.get(name="ns")


def test_a_namespace_that_was_dropped_after_it_was_read():
    old = make_namespace("ns")
    commit([DeclareTable(table=("ns", "t1"))], actor=SYSTEM)
    Table.objects.all().delete()
    Namespace.objects.filter(pk=old.pk).update(dropped_at="2026-01-01T00:00:00Z")
    before = fingerprint()
    for operation in (DeclareTable(table=("ns", "t")), CreateNamespace(namespace=("ns", "n"))):
        with pytest.raises(NamespaceNotFound):
            commit([operation], actor=SYSTEM)
        assert fingerprint() == before
    new = make_namespace("ns")
    assert commit([DeclareTable(table=("ns", "t"))], actor=SYSTEM).results[0].namespace == new


def test_a_namespace_that_was_moved_to_an_object_store_after_it_was_read():
    make_namespace("ns")
    commit([DeclareTable(table=("ns", "t1"))], actor=SYSTEM)
    moved = Namespace.objects.filter(name="ns")
    moved.update(location="s3://bucket/ns")
    row = commit([DeclareTable(table=("ns", "t2"))], actor=SYSTEM).results[0]
    assert row.location.startswith("s3://bucket/ns/t2-")
    moved.update(location=None)
    row = commit([DeclareTable(table=("ns", "t3"))], actor=SYSTEM).results[0]
    assert row.location.startswith("/")


@pytest.mark.django_db(transaction=True)
def test_a_creation_stands_although_its_answer_is_lost(monkeypatch):
    make_root()
    make_namespace("ns")

    def insert_and_lose(*arguments: object) -> None:
        creation.insert(*arguments)  # type: ignore[arg-type]
        arguments[0].row.pk = None  # type: ignore[attr-defined]
        raise OutcomeLost("lost")

    monkeypatch.setattr(engine_commit, "insert", insert_and_lose)
    row = commit([DeclareTable(table=("ns", "t"))], actor=SYSTEM).results[0]
    assert row.pk == Table.objects.get().pk
