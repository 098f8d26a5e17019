"""Search documents of namespaces, tables and views, and how they are kept up to date.

    commits of annotations   rebuild the document of their row, in their own transaction
    ``update`` (periodic)    follows the audit trail: objects that were created, renamed, dropped or
                             written to are due; then reads the columns of due tables
    ``reindex``              rebuilds all documents

Values that a table inherits from namespaces are not in its document; a search resolves them. So
labelling a namespace is one small change, however many tables are below it.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone
from prometheus_client import Gauge

from catalog.errors import CatalogError
from catalog.models import (
    Facts,
    LabelAssignment,
    Namespace,
    SearchCursor,
    SearchDocument,
    Table,
    TableState,
)
from catalog.services.engine import locks
from catalog.services.lance.contents import Unreadable
from catalog.services.search import table_columns
from catalog.services.search import words as search_words
from catalog.services.search.document_vectors import correctable_words, vector_of
from catalog.services.search.table_columns import Columns

log = logging.getLogger(__name__)
DUE = Gauge(
    "monodon_search_due",
    "Search documents that are due for an update.",
    multiprocess_mode="mostrecent",
)

SECONDS = 20.0
"""Seconds after which a pass takes no more due documents."""
_MAX_EVENTS = 10_000  # audit events read in one transaction
_BATCH = 100  # documents updated in one transaction
_MIN_PAUSE, _MAX_PAUSE = 30.0, 6 * 3600.0  # seconds
_LOCK_NAME = "search documents"
# Actions that do not change a document, or update the document in their own transaction.
_WITHOUT_EFFECT = (
    "description.set",
    "owner.set",
    "label.assign",
    "label.remove",
    "classification.set",
    "links.set",
    "policy.set",
)


# --- in a commit -------------------------------------------------------------------------------


def enter(row: Table | Namespace) -> None:
    """Update the document of a locked table or namespace, in the current transaction."""
    column = "table_id" if isinstance(row, Table) else "namespace_id"
    with connection.cursor() as cursor:
        # A new document is due at once, because its columns have not been read yet.
        cursor.execute(
            f"INSERT INTO catalog_searchdocument ({column}, columns, schema_version, attempts, error,"  # noqa: S608 -- one of two
            f" due_at) VALUES (%s, '[]', '', 0, '', now()) ON CONFLICT ({column}) DO NOTHING",
            [row.pk],
        )
        cursor.execute(f"SELECT id FROM catalog_searchdocument WHERE {column} = %s", [row.pk])  # noqa: S608
        ((pk,),) = cursor.fetchall()
    make([pk])


def make(pks: Collection[int], columns: Mapping[int, Columns] | None = None) -> set[str]:
    """Rebuild documents, with ``columns`` by primary key, or else with their stored columns.

    Requires a transaction. Returns the words of the names and columns.
    """
    rows = locks.lock_documents(pks)
    for row in rows:
        if columns and (read := columns.get(row.pk)) is not None:
            row.columns = [[column.path, column.type, column.comment] for column in read.columns]
            row.schema_version = read.version
    facts, labels = _annotations_of(rows)
    vectors, words = [], set()
    for row in rows:
        key = (row.table_id, row.namespace_id)
        vectors.append(str(vector_of(row, facts[key], labels[key])))
        words |= set(correctable_words(row))
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE catalog_searchdocument d
            SET vector = v.vector::tsvector, columns = v.columns::jsonb,
                schema_version = v.schema_version
            FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[])
                AS v (id, vector, columns, schema_version)
            WHERE d.id = v.id
            """,
            [
                [row.pk for row in rows],
                vectors,
                [_json(row.columns) for row in rows],
                [row.schema_version for row in rows],
            ],
        )
    return words


_Key = tuple[int | None, int | None]


def _annotations_of(
    rows: Iterable[SearchDocument],
) -> tuple[dict[_Key, list[Facts]], dict[_Key, list[LabelAssignment]]]:
    """Annotations and labels of the objects and their columns, by table or namespace."""
    of_these = Q(table__in=[row.table_id for row in rows if row.table_id]) | Q(
        namespace__in=[row.namespace_id for row in rows if row.namespace_id]
    )
    annotations: dict[_Key, list[Facts]] = defaultdict(list)
    for annotation in Facts.objects.filter(of_these).order_by("column"):
        annotations[annotation.table_id, annotation.namespace_id].append(annotation)
    labels: dict[_Key, list[LabelAssignment]] = defaultdict(list)
    assignments = LabelAssignment.objects.filter(of_these).select_related("definition")
    for assignment in assignments.order_by("column", "pk"):
        labels[assignment.table_id, assignment.namespace_id].append(assignment)
    return annotations, labels


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


# --- periodic update ---------------------------------------------------------------------------


def update(*, seconds: float = SECONDS) -> int:
    """Follow the audit trail and update due documents; returns the number of updated documents.

    Takes no more documents after ``seconds``. A table that cannot be read is logged and retried with
    growing pauses; its previous document stays searchable. Does nothing if another pass is running.
    """
    with locks.advisory_lock(_LOCK_NAME) as is_alone:
        if not is_alone:
            return 0
        until = time.monotonic() + seconds
        while follow() == _MAX_EVENTS and time.monotonic() < until:
            pass
        made = 0
        while time.monotonic() < until:
            batch = make_due(until=until)
            if batch == 0:
                break
            made += batch
        DUE.set(SearchDocument.objects.filter(due_at__isnull=False).count())
        return made


def follow() -> int:
    """Mark the objects of the next audit events as due, and remove the documents of dropped ones.

    Returns the number of events. One transaction, so no event is lost or counted without effect.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        position = SearchCursor.objects.filter(pk=1).values_list("xid", "event").first()
        if position is None:
            _begin()
            return 0
        cursor.execute(
            """
            SELECT id, xid::text::bigint, action, table_uuid, outcome FROM catalog_auditevent
            WHERE (xid, id) > (%s::text::xid8, %s) AND xid < pg_snapshot_xmin(pg_current_snapshot())
            ORDER BY xid, id LIMIT %s
            """,
            [str(position[0]), position[1], _MAX_EVENTS],
        )
        events = cursor.fetchall()
        if not events:
            return 0
        relevant = [
            event for event in events if event[4] == "done" and event[2] not in _WITHOUT_EFFECT
        ]
        _mark_tables({uuid for _, _, _, uuid, _ in relevant if uuid is not None})
        if any(action.startswith("namespace.") for _, _, action, _, _ in relevant):
            _mark_namespaces()
        last, xid, *_ = events[-1]
        SearchCursor.objects.filter(pk=1).update(xid=xid, event=last)
        return len(events)


def _begin() -> None:
    """Mark everything as due and set the cursor to the end of the audit trail."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO catalog_searchcursor (id, xid, event)
            SELECT 1, pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1, 9223372036854775807
            ON CONFLICT (id) DO UPDATE SET xid = excluded.xid, event = excluded.event
            """
        )
        cursor.execute(_MARK.format(condition=""))
        cursor.execute("UPDATE catalog_searchdocument SET due_at = now(), attempts = 0")
    _remove_dropped()
    _mark_namespaces()


_MARK = """
    INSERT INTO catalog_searchdocument (table_id, columns, schema_version, attempts, error, due_at)
    SELECT id, '[]', '', 0, '', now() FROM catalog_table WHERE state <> 'dropped' {condition}
    ON CONFLICT (table_id) DO UPDATE SET due_at = excluded.due_at, attempts = 0
"""


def _mark_tables(uuids: Collection[Any]) -> None:
    if not uuids:
        return
    with connection.cursor() as cursor:
        cursor.execute(_MARK.format(condition="AND uuid = ANY(%s)"), [list(uuids)])
    dropped = Table.objects.filter(uuid__in=uuids, state=TableState.DROPPED)
    SearchDocument.objects.filter(table__in=dropped).delete()


def _mark_namespaces() -> None:
    """Create documents for namespaces without one, because namespace events carry no key."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO catalog_searchdocument
                (namespace_id, columns, schema_version, attempts, error, due_at)
            SELECT id, '[]', '', 0, '', now() FROM catalog_namespace n
            WHERE dropped_at IS NULL AND parent_id IS NOT NULL AND NOT EXISTS (
                SELECT FROM catalog_searchdocument d WHERE d.namespace_id = n.id
            )
            ON CONFLICT (namespace_id) DO NOTHING
            """
        )
    SearchDocument.objects.filter(namespace__dropped_at__isnull=False).delete()


def _remove_dropped() -> None:
    SearchDocument.objects.filter(table__state=TableState.DROPPED).delete()


def make_due(*, until: float) -> int:
    """Update a batch of due documents, the longest due first; returns the number.

    The next attempt is scheduled before a table is read, so a table that crashes the pass does not
    block the others.
    """
    due = SearchDocument.objects.filter(due_at__lte=timezone.now()).order_by("due_at", "pk")
    rows = list(due.select_related("namespace", "table__namespace").defer("vector")[:_BATCH])
    if not rows:
        return 0
    _set_next_attempt([row.pk for row in rows])
    read: dict[int, Columns] = {}
    errors: dict[int, str] = {}
    late: list[int] = []
    for row in rows:
        if row.table is None:
            continue
        if time.monotonic() > until:
            late.append(row.pk)
            continue
        try:
            if table_columns.newest_version(row.table) != row.schema_version:
                read[row.pk] = table_columns.read(row.table)
        except (CatalogError, Unreadable) as error:
            if row.table.state == TableState.LIVE:
                errors[row.pk] = str(error)[:1000]
                log.warning("The columns of '%s' cannot be read: %s", row.table, error)
    updated = [row.pk for row in rows if row.pk not in errors and row.pk not in late]
    with transaction.atomic():
        words = make([row.pk for row in rows], read)
        _finish(updated, late, errors)
    learn(words)
    return len(rows)


def _set_next_attempt(pks: Sequence[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE catalog_searchdocument
            SET due_at = now() + least(%s * 2 ^ attempts, %s) * interval '1 second',
                attempts = least(attempts + 1, 20)
            WHERE id = ANY(%s)
            """,
            [_MIN_PAUSE, _MAX_PAUSE, list(pks)],
        )


def _finish(updated: Sequence[int], late: Sequence[int], errors: Mapping[int, str]) -> None:
    rows = SearchDocument.objects
    rows.filter(pk__in=updated, attempts__gt=0).update(due_at=None, attempts=0, error="")
    rows.filter(pk__in=late).update(due_at=timezone.now(), attempts=0)
    for pk, text in errors.items():
        rows.filter(pk=pk).update(error=text)


def learn(words: Collection[str]) -> int:
    """Add words to the dictionary for spelling correction; returns the number of new words."""
    with connection.cursor() as cursor:
        marks = [f"={word}" for word in words]
        cursor.execute("SELECT word FROM catalog_searchword WHERE key = ANY(%s)", [marks])
        new = sorted(set(words) - {word for (word,) in cursor.fetchall()})
        pairs = sorted({(key, word) for word in new for key in search_words.keys(word)})
        cursor.execute(
            "INSERT INTO catalog_searchword (key, word) SELECT * FROM unnest(%s::text[], %s::text[])"
            " ON CONFLICT DO NOTHING",
            [[key for key, _ in pairs], [word for _, word in pairs]],
        )
    return len(new)


def reindex(*, progress: Callable[[int], None] = lambda made: None) -> int:
    """Rebuild all documents and delete unused words; returns the number of documents.

    Searches continue meanwhile. Waits for a running pass. Calls ``progress`` with the number of
    documents after each batch.
    """
    while True:
        with locks.advisory_lock(_LOCK_NAME) as is_alone:
            if is_alone:
                return _reindex(progress)
        time.sleep(0.5)


def _reindex(progress: Callable[[int], None]) -> int:
    with transaction.atomic():
        _begin()
        SearchDocument.objects.update(schema_version="")
    made = 0
    while (batch := make_due(until=time.monotonic() + 3600)) > 0:
        made += batch
        progress(made)
    _delete_unused_words()
    follow()
    return made


def _delete_unused_words() -> None:
    """Delete words that are in no document.

    Only ``reindex`` does this: with reference counts, commits with common words would wait for each
    other.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            DELETE FROM catalog_searchword WHERE word IN (
                SELECT word FROM catalog_searchword WHERE key = '=' || word
                EXCEPT
                SELECT lexeme FROM catalog_searchdocument, unnest(tsvector_to_array(vector)) lexeme
            )
            """
        )
