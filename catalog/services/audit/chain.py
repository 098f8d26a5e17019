"""The chain of hashes over the audit trail. ``verification`` checks the trail against it.

A commit writes only its audit rows. A periodic pass (``seal``) follows every few seconds and gives
each row a seal:

    digest   = SHA-256 of the row, of all its columns (``CANONICAL``)
    hash     = SHA-256 of the seal's number, times, event, table, xid, of digest and of previous
    previous = hash of the seal before it; of the first one 32 zero bytes

To alter, remove or insert a row unnoticed, all later seals have to be recomputed, which changes the
newest hash. An operator who stores that hash elsewhere (``audit_verify`` prints it) detects even this.

There is one chain for the whole catalog instead of one per table: a table's last events cannot be cut
off together with their seals, and a retention leaves a single hash behind.

Rows are sealed in the order (xid, id), once their transaction is older than all running ones: no row
can appear behind the pass. Transaction ids belong to a server. After a restore into a server whose
ids are lower, unsealed rows are found by a search, and a seal without an event marks the id from
which the order holds again.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from django.db import connection, transaction

from catalog.models.audit import AuditEvent
from catalog.services.engine import locks

GENESIS = bytes(32)
RETENTION = "audit.retention"
"""The action of the event that a retention leaves."""
BATCH = 5000

UTC_TEXT = "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
CANONICAL = (
    f"jsonb_build_array(e.id, {UTC_TEXT.format('e.at')}, e.actor, e.action, e.target, e.table_uuid,"
    " e.before, e.after, e.context, e.request_id, e.transaction_id, e.xid::text, e.interface, e.key,"
    " e.outcome, e.error)::text"
)
"""The hashed text of a row, as an SQL expression."""
DIGEST = f"sha256(convert_to({CANONICAL}, 'UTF8'))"
_SEAL = (
    f"s.number, {UTC_TEXT.format('s.sealed_at')}, s.event_id, {UTC_TEXT.format('s.at')},"
    " s.table_uuid::text, s.xid::text, s.digest, s.previous, s.hash"
)


@dataclass(frozen=True, slots=True)
class Seal:
    number: int
    sealed_at: str
    event_id: int | None
    at: str | None
    table_uuid: str | None
    xid: str
    digest: bytes
    previous: bytes
    hash: bytes = b""

    def compute(self) -> bytes:
        """Compute the hash of the other columns."""
        values = (self.number, self.sealed_at, self.event_id, self.at, self.table_uuid, self.xid)
        text = "|".join("" if value is None else str(value) for value in values)
        return hashlib.sha256(text.encode() + b"|" + self.digest + self.previous).digest()


# --- sealing -------------------------------------------------------------------------------------


def seal() -> int:
    """Seal the committed events without a seal; returns their number, 0 if another pass is running.

    Events that a running transaction could still precede wait for the next pass.
    """
    with locks.advisory_lock("audit.seal") as is_acquired:
        if not is_acquired:
            return 0
        head = newest_seal()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
            (end,) = cursor.fetchone()
        if head is not None and int(head.xid) >= end:
            return _seal_by_search(head)
        behind: tuple[str, int] | None
        behind = (head.xid, head.event_id or 0) if head is not None else ("0", 0)
        sealed = 0
        while behind is not None:
            count, behind = _seal_batch(behind)
            sealed += count
        return sealed


def lag_seconds() -> float:
    """The age of the oldest event behind the newest seal; 0 without one. One statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT greatest(extract(epoch FROM clock_timestamp() - e.at), 0)"
            " FROM (SELECT xid, event_id FROM catalog_auditseal ORDER BY number DESC LIMIT 1) AS s"
            " RIGHT JOIN catalog_auditevent e ON true"
            " WHERE s.xid IS NULL OR (e.xid, e.id) > (s.xid, s.event_id)"
            " ORDER BY e.xid, e.id LIMIT 1"
        )
        row = cursor.fetchone()
    return float(row[0]) if row else 0.0


def _seal_batch(behind: tuple[str, int]) -> tuple[int, tuple[str, int] | None]:
    """Seal the next events in the order; returns their number, and the start of the next batch."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text,"  # noqa: S608 -- no input in the text
            f" {UTC_TEXT.format('clock_timestamp()')},"
            " EXISTS (SELECT FROM catalog_auditseal WHERE event_id IS NULL)"
        )
        oldest, moment, was_restored = cursor.fetchone()
        cursor.execute(
            _batch("(xid, id) > (%s::text::xid8, %s) AND xid < %s::text::xid8", "xid, id"),
            [*behind, oldest, BATCH],
        )
        rows = cursor.fetchall()
        # Transactions of the previous server may have ids in the same range.
        unsealed = _without_seal(cursor, rows) if was_restored else rows
        _write(cursor, newest_seal(), moment, unsealed)
    return len(unsealed), (rows[-1][3], rows[-1][0]) if len(rows) == BATCH else None


def _seal_by_search(head: Seal | None) -> int:
    """Seal the events without a seal after a restore, then mark where the order holds again."""
    sealed, after = 0, 0
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(now)::text, pg_snapshot_xmax(now)::text,"  # noqa: S608 -- no input in the text
            f" {UTC_TEXT.format('clock_timestamp()')} FROM pg_current_snapshot() AS now"
        )
        oldest, end, moment = cursor.fetchone()
        while True:
            cursor.execute(
                _batch("id > %s AND (xid < %s::text::xid8 OR xid >= %s::text::xid8)", "id"),
                [after, oldest, end, BATCH],
            )
            rows = cursor.fetchall()
            if not rows:
                break
            unsealed = _without_seal(cursor, rows)
            head = _write(cursor, head, moment, unsealed)
            after, sealed = rows[-1][0], sealed + len(unsealed)
        _write(cursor, head, moment, [(None, None, None, oldest, bytes(32))])
    return sealed


def _batch(condition: str, order: str) -> str:
    """The statement for a batch of events: selects their ids by an index, then reads the rows."""
    ordered = ", ".join(f"e.{name}" for name in order.split(", "))
    return f"""
        SELECT e.id, {UTC_TEXT.format("e.at")}, e.table_uuid::text, e.xid::text, {DIGEST}
        FROM (
            SELECT * FROM catalog_auditevent WHERE {condition} ORDER BY {order} LIMIT %s
        ) AS e
        ORDER BY {ordered}
    """  # noqa: S608 -- no input in the text


def _without_seal(cursor: Any, rows: Sequence[Any]) -> list[Any]:
    cursor.execute(
        "SELECT event_id FROM catalog_auditseal WHERE event_id = ANY(%s)",
        [[row[0] for row in rows]],
    )
    sealed = {event_id for (event_id,) in cursor.fetchall()}
    return [row for row in rows if row[0] not in sealed]


def _write(cursor: Any, head: Seal | None, moment: str, rows: Sequence[Any]) -> Seal | None:
    if not rows:
        return head
    with cursor.copy(
        "COPY catalog_auditseal"
        " (number, sealed_at, event_id, at, table_uuid, xid, digest, previous, hash) FROM STDIN"
    ) as copy:
        for event_id, at, table_uuid, xid, digest in rows:
            number, previous = (1, GENESIS) if head is None else (head.number + 1, head.hash)
            bare = Seal(number, moment, event_id, at, table_uuid, xid, bytes(digest), previous)
            head = replace(bare, hash=bare.compute())
            copy.write_row(astuple(head))
    return head


def newest_seal() -> Seal | None:
    return next(read_seals("TRUE ORDER BY s.number DESC LIMIT 1", []), None)


def read_seals(condition: str, values: Sequence[Any]) -> Iterator[Seal]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {_SEAL} FROM catalog_auditseal s WHERE {condition}", values)  # noqa: S608 -- no input in the text
        for row in cursor.fetchall():
            yield Seal(*row[:6], *(bytes(value) for value in row[6:]))


# --- retention ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retention:
    """The result of the newest retention: the start of the retained period, and the last removed seal."""

    kept_from: str
    number: int
    hash: bytes


def newest_retention() -> Retention | None:
    row = (
        AuditEvent.objects.filter(action=RETENTION)
        .order_by("-pk")
        .values_list("after", flat=True)
        .first()
    )
    if not row:
        return None
    anchor = row.get("anchor") or {}
    return Retention(
        row["kept_from"], anchor.get("number", 0), bytes.fromhex(anchor.get("hash", ""))
    )
