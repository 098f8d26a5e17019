"""The documents by which namespaces, tables and views are found, and what keeps them true.

    a commit that changes facts     makes the document of its row anew, in its own transaction
    the pass (``update``)             follows the audit trail: what was made, renamed, dropped or
                                    written to is due; then reads the columns of what is due
    ``reindex``                     makes all of them anew

What a table inherits from namespaces is not in its document: a search resolves it, so that a label
of a namespace is one small change, however much lies below.
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
    "Search documents that are to be made anew.",
    multiprocess_mode="mostrecent",
)

SECONDS = 20.0
"""How long a pass goes on taking what is due."""
_MAX_EVENTS = 10_000  # of the audit trail, followed in one transaction
_BATCH = 100  # documents made in one transaction
_MIN_PAUSE, _MAX_PAUSE = 30.0, 6 * 3600.0  # seconds
_LOCK_NAME = "search documents"
# What changes nothing that is searched for, or has changed its document itself.
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
    """Make the document of a locked table or namespace anew, in the transaction under way."""
    column = "table_id" if isinstance(row, Table) else "namespace_id"
    with connection.cursor() as cursor:
        # A new one is due at once: its columns were not read yet.
        cursor.execute(
            f"INSERT INTO catalog_searchdocument ({column}, columns, schema_version, attempts, error,"  # noqa: S608 -- one of two
            f" due_at) VALUES (%s, '[]', '', 0, '', now()) ON CONFLICT ({column}) DO NOTHING",
            [row.pk],
        )
        cursor.execute(f"SELECT id FROM catalog_searchdocument WHERE {column} = %s", [row.pk])  # noqa: S608
        ((pk,),) = cursor.fetchall()
    make([pk])


def make(pks: Collection[int], columns: Mapping[int, Columns] | None = None) -> set[str]:
    """Make documents anew, with the columns given by primary key, else with those they have.

    Needs a transaction. Returns the words of their names and columns.
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
    """What is said of these and of their columns, each by its table or namespace."""
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


# --- the pass ----------------------------------------------------------------------------------


def update(*, seconds: float = SECONDS) -> int:
    """Follow the audit trail and make what is due; returns how many documents were made.

    Takes nothing more after so many seconds. What cannot be read is logged and tried again, with
    growing pauses; what is known of it stays searchable. Another pass at the same time does nothing.
    """
    with locks.alone(_LOCK_NAME) as is_alone:
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
    """Mark what the audit trail's next events are about as due, and remove what was dropped.

    Returns how many events it has seen. One transaction, so no event is lost or seen for nothing.
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
    """Everything is due; what happens from now on, the trail tells."""
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
    """Their events tell no key: those without a document get one."""
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
    """Make a batch of the documents that are due, the longest due first; returns how many.

    Before a table is read, its next attempt is set: one that a pass dies of does not keep the
    others from being read.
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
    """Enter words among those that a misspelled one may mean; returns how many are new."""
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
    """Make all documents anew, and forget the words that are in none; returns how many there are.

    Searches go on meanwhile. Waits for a pass that is under way. ``told`` hears how many are done.
    """
    while True:
        with locks.alone(_LOCK_NAME) as is_alone:
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
    """Only here: counting who has a word would make every commit wait for others at the same words."""
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
