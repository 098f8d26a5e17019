"""Each lock: its rows, their order, its strength, and the related rows that it reads."""

import re
import threading
import uuid

import pytest
from django.db import connection, transaction
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.engine_profiles import EngineKind
from catalog.identifiers import digest
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    EngineProfile,
    Job,
    JobKind,
    LabelDefinition,
    Namespace,
    Principal,
    SearchDocument,
    StorageProfile,
    Table,
    Transaction,
    TrashItem,
    Webhook,
)
from catalog.services.access import api_keys
from catalog.services.engine import locks
from tests.factories import make_namespace, make_root, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
NO_KEY = re.compile(r"FOR NO KEY UPDATE OF (\w+|\"\w+\")\s*$")
ORDERED = re.compile(
    r"ORDER BY (\"\w+\"\.\"id\" ASC|\d ASC|t\.id)(\s+LIMIT 1)?\s+FOR NO KEY UPDATE"
)


@pytest.fixture(autouse=True)
def _root(db):
    make_root()


def locked(call, *, ordered=True):
    """The result of a lock and its locking statements. Each must be ordered and FOR NO KEY UPDATE."""
    with transaction.atomic(), CaptureQueriesContext(connection) as captured:
        result = call()
    statements = [q["sql"] for q in captured if " FOR " in q["sql"]]
    assert statements
    for sql in statements:
        assert NO_KEY.search(sql), sql
        assert not ordered or ORDERED.search(sql), sql
    return result, statements


def read_together(row, *names):
    """Assert that these related rows were read with the lock."""
    with CaptureQueriesContext(connection) as captured:
        for name in names:
            value = row
            for attribute in name.split("."):
                value = getattr(value, attribute)
    assert not captured.captured_queries


def test_namespaces_are_locked_by_path():
    a, b = make_namespace("a"), make_namespace("b")
    rows, statements = locked(lambda: locks.lock_namespaces([("b",), ("a",), ("gone",)]))
    assert rows == {digest(("a",)): a, digest(("b",)): b}
    assert len(statements) == 2  # repeated for rows that were added before their parent was locked
    assert locks.lock_namespaces([]) == {}
    rows, statements = locked(lambda: locks.lock_namespaces([("gone",)]))
    assert rows == {}
    assert len(statements) == 1


def test_namespaces_are_locked_with_their_descendants():
    make_namespace("a", "b", "c")
    make_namespace("d", "e")
    make_namespace("f")
    rows, statements = locked(lambda: locks.lock_subtrees([("a",)], [("d",), ("gone",)]))
    assert [row.path for row in rows] == [["a"], ["a", "b"], ["a", "b", "c"], ["d"]]
    assert len(statements) == 1
    Namespace.objects.filter(name="b").update(dropped_at="2026-01-01T00:00:00Z")
    rows, _ = locked(lambda: locks.lock_subtrees([("a",)]))
    assert [row.name for row in rows] == ["a"]


def test_tables_are_locked_by_name():
    first, second = make_table("ws", "one"), make_table("ws", "two")
    rows, _ = locked(lambda: locks.lock_tables([("ws", "two"), ("ws", "one"), ("ws", "gone")]))
    assert rows == {first.digest: first, second.digest: second}
    assert all(row.database_now is not None for row in rows.values())
    assert locks.lock_tables([]) == {}


def test_tables_of_namespaces_are_locked():
    rows = [make_table("ws", name) for name in ("one", "two", "dropped")]
    make_table("other", "three")
    Table.objects.filter(name="dropped").update(state="dropped", dropped_at="2026-01-01T00:00:00Z")
    ws = Namespace.objects.get(name="ws")
    assert locked(lambda: locks.lock_tables_in([ws]))[0] == rows[:2]


def test_a_table_is_locked_by_key():
    row = make_table("ws", "one")
    assert locked(lambda: locks.lock_table_row(row.pk), ordered=False)[0] == row
    with pytest.raises(Table.DoesNotExist):
        locks.lock_table_row(0)


def test_trash_items_are_locked_after_their_namespaces_and_tables():
    ws, other = make_namespace("ws"), make_namespace("other")
    row = make_table("ws", "one")
    make_table("ws", "live")
    job, change = (
        Job.objects.create(kind=JobKind.PURGE_TABLE, table=row),
        Transaction.objects.first(),
    )
    of_table = TrashItem.objects.create(table=row, job=job, transaction=change)
    of_namespace = TrashItem.objects.create(namespace=ws)
    items, statements = locked(
        lambda: locks.lock_trash(Q(pk__in=[of_namespace.pk, of_table.pk]), also=[other.pk])
    )
    assert items == [of_table, of_namespace]
    assert [re.search(r'FROM "(\w+)"', sql)[1] for sql in statements] == [
        "catalog_namespace",
        "catalog_table",
        "catalog_trashitem",
    ]
    assert f"({other.pk}" in statements[0] or f", {other.pk}" in statements[0]
    read_together(items[0], "job.kind", "transaction.actor", "table.namespace.path")
    read_together(items[1], "namespace.path")
    assert locked(lambda: locks.lock_trash(Q(pk=of_namespace.pk)))[0] == [of_namespace]


def test_an_approval_request_is_locked():
    row = ApprovalRequest.objects.create(
        namespace=make_namespace("ws"),
        action="drop",
        target="ws",
        requester="etl",
        operation={},
        expected={},
        expires_at="2030-01-01T00:00:00Z",
    )
    request, _ = locked(lambda: locks.lock_approval(row.pk))
    assert request == row
    read_together(request, "namespace.path")
    assert locks.lock_approval(0) is None


def test_transactions_are_locked():
    make_table("ws", "one")
    rows = list(Transaction.objects.order_by("pk"))
    assert len(rows) > 1
    pks = [row.pk for row in reversed(rows)]
    assert locked(lambda: locks.lock_transactions(pks))[0] == rows
    assert locked(lambda: locks.lock_transaction(pks[0]), ordered=False)[0] == rows[-1]
    with pytest.raises(Transaction.DoesNotExist):
        locks.lock_transaction(uuid.uuid4())


def test_the_transaction_of_a_job_is_locked():
    row = make_table("ws", "one")
    change = Transaction.objects.first()
    job = Job.objects.create(kind="compact", table=row, transaction=change)
    owner, _ = locked(lambda: locks.lock_transaction_of_job(job.pk), ordered=False)
    assert owner == change
    Job.objects.update(transaction=None)
    assert locks.lock_transaction_of_job(job.pk) is None
    assert locks.lock_transaction_of_job(0) is None


def test_a_label_is_locked():
    row = LabelDefinition.objects.create(key="tier", applies_to=["table"])
    assert locked(lambda: locks.lock_label("tier"))[0] == row
    assert locks.lock_label("gone") is None


def test_a_webhook_is_locked_by_key_or_name():
    row = Webhook.objects.create(
        name="hook", url="http://localhost/", secret=b"", xid="0", namespace=make_namespace("a")
    )
    for which in ({"pk": row.pk}, {"name": "hook"}):
        webhook, _ = locked(lambda which=which: locks.lock_webhook(**which))
        assert webhook == row
        read_together(webhook, "namespace.path")
    assert locks.lock_webhook(name="gone") is None


def test_search_documents_are_locked():
    table = make_table("ws", "one")
    SearchDocument.objects.create(table=table)
    SearchDocument.objects.create(namespace=table.namespace)
    rows = list(SearchDocument.objects.order_by("pk"))
    assert len(rows) > 1
    pks = [row.pk for row in reversed(rows)]
    documents, _ = locked(lambda: locks.lock_documents(pks))
    assert documents == rows
    of_table = next(row for row in documents if row.table_id is not None)
    read_together(of_table, "table.namespace.path")
    read_together(next(row for row in documents if row.namespace_id is not None), "namespace.path")


def test_an_api_key_is_locked():
    row, _ = api_keys.create_api_key(actor=SYSTEM, name="etl")
    key, _ = locked(lambda: locks.lock_api_key(row.pk))
    assert key == row
    read_together(key, "principal.name", "namespace", "replaced_by")
    ApiKey.objects.filter(pk=row.pk).update(namespace=make_namespace("ws"))
    read_together(locks.lock_api_key(row.pk), "namespace.path")
    assert locks.lock_api_key(0) is None


def test_a_principal_is_locked_for_a_change_of_its_memberships():
    row = Principal.objects.create(name="user:alice", kind="user")
    Principal.objects.create(name="user:bob", kind="user")
    assert locked(lambda: locks.lock_memberships(row.pk))[0] == row
    assert locks.lock_memberships(0) is None


def test_profiles_are_locked_by_name():
    storage = StorageProfile.objects.create(name="lake", kind="s3", roots=["s3://lake/a"])
    assert locked(lambda: locks.lock_storage_profile("lake"))[0] == storage
    assert locks.lock_storage_profile("gone") is None
    engine = EngineProfile.objects.create(name="large", kind=EngineKind.LOCAL)
    EngineProfile.objects.create(name="small", kind=EngineKind.LOCAL)
    assert locked(lambda: locks.lock_engine_profile("large"))[0] == engine
    assert locks.lock_engine_profile("gone") is None


def holders():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT classid::bigint << 32 | objid::bigint FROM pg_locks"
            " WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
        )
        return {key for (key,) in cursor.fetchall()}


def test_advisory_locks_serialize_transactions():
    locks.lock_locations()
    assert holders() == {0x4D6F6E6F}
    locks.lock_principals()
    assert holders() == {0x4D6F6E6F, 0x4D6F6E70}


def test_transactions_that_only_need_locations_to_stay_share_their_lock():
    locks.share_locations()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT objid, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert cursor.fetchall() == [(0x4D6F6E6F, "ShareLock")]


def test_names_and_sources_have_locks_of_their_own():
    names = (
        "a",
        "b",
        "\u00e4",
        "",
    )  # the checksum of the first does not fit into PostgreSQL's integer
    for name in (*names, "a"):
        locks.lock_key(name)
    assert len(holders()) == len(names)
    assert {key >> 32 for key in holders()} == {0x4D6F6E71}
    before = holders()
    assert locks.share_sources([7, 2**40 + 8]) is True
    locks.await_commits(9)
    added = {(key >> 32, key & 0xFFFFFFFF) for key in holders() - before}
    assert added == {(kind, pk) for kind in (0x4D6F6E72, 0x4D6F6E73) for pk in (7, 8)} | {
        (0x4D6F6E72, 9)
    }


@pytest.mark.django_db(transaction=True)
def test_work_runs_in_one_session_at_a_time():
    outcomes = []

    def try_elsewhere(work):
        def attempt():
            with locks.advisory_lock(work) as is_acquired:
                outcomes.append(is_acquired)
                outcomes.append(connection.session_locks)
            connection.close()

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    assert connection.session_locks == 0
    with locks.advisory_lock("sweep") as is_acquired:
        assert is_acquired is True
        assert connection.session_locks == 1
        try_elsewhere("sweep")
        try_elsewhere("another")
    assert outcomes == [False, 0, True, 1]
    assert (connection.session_locks, holders()) == (0, set())
    try_elsewhere("sweep")
    assert outcomes[4:] == [True, 1]
