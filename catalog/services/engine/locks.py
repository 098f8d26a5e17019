"""Row locks. Every transaction takes its locks through this module, and so in one order.

First namespaces, then tables, each by primary key; a transaction before its jobs. A parent is older
than its children, so parents come first. Unsorted locks gave 27 deadlocks in 2 s with 32 clients,
sorted ones none. The locks are NO KEY, because rows that merely refer to a locked row must not wait.
"""

import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.db.models import Q

from catalog.identifiers import Identifier, digest
from catalog.models import (
    ApiKey,
    ApprovalRequest,
    EngineProfile,
    Job,
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
from catalog.postgresql.base import DatabaseWrapper
from catalog.postgresql.cursors import hot_cursor
from catalog.services.engine.prepared import selects


def lock_namespaces(paths: Collection[Identifier]) -> dict[uuid.UUID, Namespace]:
    """Lock the live namespaces among these paths; the result is keyed by digest.

    Each row holds ``has_object_storage``, and the transaction's time in ``database_now``.
    """
    locked = _lock_namespaces(paths)
    absent = [path for path in paths if digest(path) not in locked]
    # A transaction that waited for a parent read its children before the wait. With the parent locked
    # no child can be added, and one added meanwhile is younger than all locked rows.
    return locked | _lock_namespaces(absent) if locked else locked


def _lock_namespaces(paths: Collection[Identifier]) -> dict[uuid.UUID, Namespace]:
    if not paths:
        return {}
    digests = {digest(path) for path in paths}
    return {row.digest: row for row in selects.select_namespaces_for_update(digests)}


def lock_subtrees(
    roots: Collection[Identifier], paths: Collection[Identifier] = ()
) -> list[Namespace]:
    """Lock the live namespaces at and below ``roots``, and those at ``paths``, by primary key.

    Each row holds ``has_object_storage``, and the transaction's time in ``database_now``.
    """
    digests = _digests_below(roots, paths)
    while True:
        rows = selects.select_namespaces_for_update(digests)
        # A namespace created before its parent was locked is younger than all locked rows, so
        # locking it now keeps the order. A locked namespace gets no further children.
        current_digests = _digests_below(roots, paths)
        if current_digests <= digests:
            return rows
        digests = current_digests


_BELOW = """
    WITH RECURSIVE below AS (
        SELECT id, digest FROM catalog_namespace
        WHERE digest = ANY(string_to_array(%s, ',')::uuid[]) AND dropped_at IS NULL
        UNION
        SELECT child.id, child.digest
        FROM catalog_namespace child JOIN below ON child.parent_id = below.id
        WHERE child.dropped_at IS NULL
    )
    SELECT digest FROM below
    UNION
    SELECT digest FROM catalog_namespace
    WHERE digest = ANY(string_to_array(%s, ',')::uuid[]) AND dropped_at IS NULL
"""


def _digests_below(roots: Collection[Identifier], paths: Collection[Identifier]) -> set[uuid.UUID]:
    cursor = hot_cursor()
    cursor.execute(
        _BELOW, [",".join(str(digest(path)) for path in group) for group in (roots, paths)]
    )
    return {key for (key,) in cursor.fetchall()}


def lock_tables(identifiers: Collection[Identifier]) -> dict[uuid.UUID, Table]:
    """Lock the tables among these identifiers that are not dropped; keyed by digest.

    Each row holds the transaction's time in ``database_now``.
    """
    if not identifiers:
        return {}
    digests = {digest(identifier) for identifier in identifiers}
    return {row.digest: row for row in selects.select_tables_for_update(digests)}


def lock_tables_in(namespaces: Collection[Namespace]) -> list[Table]:
    """Lock every table of these namespaces that is not dropped. Lock the namespaces first."""
    return selects.select_tables_in_for_update([row.pk for row in namespaces])


def lock_table_row(pk: int) -> Table:
    """Lock one table by its primary key, dropped or not. Raises Table.DoesNotExist."""
    return Table.objects.select_for_update(of=("self",), no_key=True).get(pk=pk)


def lock_trash(which: Q, also: Iterable[int] = ()) -> list[TrashItem]:
    """Lock items of the trash: first their namespaces, then their tables, then the items.

    The items are ordered by primary key, with their namespaces and tables as read under the lock.
    ``also`` names further dropped namespaces. Lock the live namespace that will hold them first.
    """
    selected = TrashItem.objects.filter(which)
    dropped = selected.filter(namespace__isnull=False).values_list("namespace_id", flat=True)
    namespaces = {
        row.pk: row
        for row in Namespace.objects.filter(pk__in={*dropped, *also})
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True)
    }
    of_tables = selected.filter(table__isnull=False).values_list("table_id", flat=True)
    tables = {
        row.pk: row
        for row in Table.objects.filter(pk__in=set(of_tables))
        .select_related("namespace")
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True)
    }
    rows = TrashItem.objects.filter(which).select_related("job", "transaction").order_by("pk")
    items = list(rows.select_for_update(of=("self",), no_key=True))
    for item in items:
        if item.namespace_id is not None:
            item.namespace = namespaces[item.namespace_id]
        if item.table_id is not None:
            item.table = tables[item.table_id]
    return items


def lock_approval(pk: int) -> ApprovalRequest | None:
    """Lock an approval request; lock its namespaces and tables first."""
    rows = ApprovalRequest.objects.filter(pk=pk).select_related("namespace")
    return rows.select_for_update(of=("self",), no_key=True).first()


def lock_transaction(pk: uuid.UUID) -> Transaction:
    """Lock a transaction; before its jobs. Raises Transaction.DoesNotExist."""
    return Transaction.objects.select_for_update(of=("self",), no_key=True).get(pk=pk)


def lock_transactions(pks: Collection[uuid.UUID]) -> list[Transaction]:
    """Lock transactions, before their jobs."""
    rows = Transaction.objects.filter(pk__in=pks).order_by("pk")
    return list(rows.select_for_update(of=("self",), no_key=True))


def lock_transaction_of_job(pk: int) -> Transaction | None:
    """Lock the transaction that created a job, if there is one."""
    owner = Job.objects.filter(pk=pk).values_list("transaction", flat=True).first()
    return lock_transaction(owner) if owner is not None else None


def lock_label(key: str) -> LabelDefinition | None:
    """Lock the definition of a label; lock the labeled tables and namespaces first."""
    rows = LabelDefinition.objects.filter(key=key)
    return rows.select_for_update(of=("self",), no_key=True).first()


def lock_webhook(**which: int | str) -> Webhook | None:
    """Lock a webhook by its primary key or its name; the first lock of its transaction."""
    rows = Webhook.objects.select_related("namespace").filter(**which)
    return rows.select_for_update(of=("self",), no_key=True).first()


def lock_storage_profile(name: str) -> StorageProfile | None:
    """Lock a storage profile; lock namespaces and then the locations first."""
    rows = StorageProfile.objects.filter(name=name)
    return rows.select_for_update(of=("self",), no_key=True).first()


def lock_engine_profile(name: str) -> EngineProfile | None:
    """Lock an engine profile; lock namespaces and tables first."""
    rows = EngineProfile.objects.filter(name=name)
    return rows.select_for_update(of=("self",), no_key=True).first()


def lock_documents(pks: Collection[int]) -> list[SearchDocument]:
    """Lock search documents by primary key; the last locks of a transaction.

    Each row comes with its table or namespace.
    """
    rows = SearchDocument.objects.filter(pk__in=pks).order_by("pk")
    related = rows.select_related("namespace", "table__namespace")
    return list(related.select_for_update(of=("self",), no_key=True))


def lock_locations() -> None:
    """Serialize the transactions that check whether a location chosen by a client is free."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [0x4D6F6E6F])


def share_locations() -> None:
    """Exclude the transactions that call ``lock_locations`` until this one ends, and not others that call this.

    A transaction that may call ``lock_locations`` later calls that instead: two such would wait for each other. Whoever
    calls ``lock_locations`` waits for the transactions that share the lock already, and later ones wait for it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [0x4D6F6E6F])


def lock_api_key(pk: int) -> ApiKey | None:
    """Lock an API key; the only row lock of its transaction."""
    rows = ApiKey.objects.select_related("principal", "namespace", "replaced_by").filter(pk=pk)
    return rows.select_for_update(of=("self",), no_key=True).first()


def lock_memberships(pk: int) -> Principal | None:
    """Lock a principal for a change of its memberships; the only row lock of its transaction."""
    rows = Principal.objects.filter(pk=pk)
    return rows.select_for_update(of=("self",), no_key=True).first()


def lock_principals() -> None:
    """Serialize the transactions that change who may administer the catalog."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [0x4D6F6E70])


def lock_key(name: str) -> None:
    """Serialize the transactions that lock the same name, until they end."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(%s::int, %s::int)",
            [0x4D6F6E71, zlib.crc32(name.encode()) & 0x7FFFFFFF],
        )


_SOURCES, _REMOVALS, _SOURCE_KEYS = 0x4D6F6E72, 0x4D6F6E73, 0x7FFFFFFF


def share_sources(pks: Iterable[int]) -> bool:
    """Let ``await_commits`` and ``exclude_commits`` of these tables wait until the transaction ends.

    Returns False while ``exclude_commits`` holds one of them.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT bool_and(pg_try_advisory_xact_lock_shared(%s::int, key)) FROM ("
            " SELECT key, pg_advisory_xact_lock_shared(%s::int, key)"
            " FROM unnest(%s::int[]) AS key OFFSET 0"
            ") shared",
            [_REMOVALS, _SOURCES, sorted(pk & _SOURCE_KEYS for pk in pks)],
        )
        (is_shared,) = cursor.fetchone()
    return bool(is_shared)


def await_commits(pk: int) -> None:
    """Wait for the transactions in progress that share a table as a source. Call it without locks."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(%s::int, %s::int)", [_SOURCES, pk & _SOURCE_KEYS]
        )


@contextmanager
def exclude_commits(pk: int) -> Iterator[None]:
    """Wait as ``await_commits``, and let ``share_sources`` of the table fail in the block. Call it without locks.

    For a removal of files that is no job. Raises OperationalError after the time limit of locks.
    """
    key = [_REMOVALS, pk & _SOURCE_KEYS]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s::int, %s::int)", key)
    with _session_lock(key):
        yield


@contextmanager
def advisory_lock(work: str) -> Iterator[bool]:
    """Try to hold the lock of this work among all machines; False: another session holds it.

    Does not wait. The lock belongs to the session, so it is released when the process dies.
    """
    key = [0x4D6F6E6F, zlib.crc32(work.encode()) & 0x7FFFFFFF]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s::int, %s::int)", key)
        (is_acquired,) = cursor.fetchone()
    if not is_acquired:
        yield False
        return
    with _session_lock(key):
        yield True


def needs_session() -> bool:
    """True in a block of ``exclude_commits`` or with an acquired ``advisory_lock``."""
    return cast(DatabaseWrapper, connections[DEFAULT_DB_ALIAS]).session_locks > 0


@contextmanager
def _session_lock(key: list[int]) -> Iterator[None]:
    """Release a lock of the session at the end of the block, and keep the session until then.

    A lock that has ended with its session is not released: another session may hold it.
    """
    session = cast(DatabaseWrapper, connections[DEFAULT_DB_ALIAS])
    holder = session.connection
    session.session_locks += 1
    try:
        yield
    finally:
        session.session_locks -= 1
        if session.connection is holder and not session.is_lost():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s::int, %s::int)", key)
