"""The chain of hashes over the audit trail: sealing what is committed, and verifying it.

A commit writes its audit rows and nothing more. A pass (``seal``) comes behind it, every few
seconds, and gives each row a seal:

    digest   = SHA-256 of the row, of all its columns (``CANONICAL``)
    hash     = SHA-256 of the seal's number, times, event, table, xid, of digest and of previous
    previous = hash of the seal before it; of the first one 32 zero bytes

So whoever alters, removes or inserts a row has to make all seals after it anew, and then the newest
hash is another one. Who keeps that hash elsewhere (``audit_verify`` prints it) sees even this.

One chain for the whole catalog rather than one for each table: so a table's last events cannot be
cut off with their seals, and what a retention leaves behind is one hash.

Rows are sealed in the order (xid, id), those whose transaction is older than all that are under
way: none can appear behind the pass. Transaction ids belong to a server: where the database was
restored into another, whose ids are lower, what is unsealed is sealed by search, and a seal without
an event tells from which id on the order holds again.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from catalog.models.audit import AuditEvent
from catalog.services.engine import locks

GENESIS = bytes(32)
BATCH = 5000
MAX_FINDINGS = 1000
"""So many findings are told one by one; the others are counted."""
_WINDOW = 50_000  # ids looked through by one statement
_LATE = timedelta(hours=1)
"""A statement may wait so long before its row is there; what is older than this was dated back."""

_UTC = "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
CANONICAL = (
    f"jsonb_build_array(e.id, {_UTC.format('e.at')}, e.actor, e.action, e.target, e.table_uuid,"
    " e.before, e.after, e.context, e.request_id, e.transaction_id, e.xid::text, e.door, e.key,"
    " e.outcome, e.error)::text"
)
"""The text of a row that is hashed, as SQL."""
_DIGEST = f"sha256(convert_to({CANONICAL}, 'UTF8'))"
_SEAL = (
    f"s.number, {_UTC.format('s.sealed_at')}, s.event_id, {_UTC.format('s.at')},"
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
        """The hash that belongs to the other columns."""
        told = (self.number, self.sealed_at, self.event_id, self.at, self.table_uuid, self.xid)
        text = "|".join("" if value is None else str(value) for value in told)
        return hashlib.sha256(text.encode() + b"|" + self.digest + self.previous).digest()


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was sealed."""

    kind: str
    """altered, removed, inserted or dated back: of an event; broken: of the seals themselves."""
    text: str
    event_id: int | None = None
    seal: int | None = None


@dataclass(slots=True)
class Verification:
    """What a verification looked at, and what it found."""

    seals: int = 0
    retired: int = 0
    """Seals of events that a retention removed: their links hold, their content is gone."""
    waiting: int = 0
    """Events that no pass has sealed yet."""
    head: Seal | None = None
    """The newest seal that was looked at."""
    findings: list[Finding] = field(default_factory=list)
    more_findings: int = 0

    @property
    def is_sound(self) -> bool:
        return not self.findings

    def add(self, finding: Finding) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.more_findings += 1


# --- sealing -------------------------------------------------------------------------------------


def seal() -> int:
    """Seal what is committed and not sealed yet. Returns how many events; 0 if another pass runs.

    What a transaction that is under way might still come before waits for the next pass.
    """
    with locks.advisory_lock("audit.seal") as is_alone:
        if not is_alone:
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
            done, behind = _seal_batch(behind)
            sealed += done
        return sealed


def _seal_batch(behind: tuple[str, int]) -> tuple[int, tuple[str, int] | None]:
    """Seal the next events in the order. Returns how many, and behind which it goes on, if it does."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text,"  # noqa: S608 -- no input in the text
            f" {_UTC.format('clock_timestamp()')},"
            " EXISTS (SELECT FROM catalog_auditseal WHERE event_id IS NULL)"
        )
        oldest, moment, was_restored = cursor.fetchone()
        cursor.execute(
            _batch("(xid, id) > (%s::text::xid8, %s) AND xid < %s::text::xid8", "xid, id"),
            [*behind, oldest, BATCH],
        )
        rows = cursor.fetchall()
        # Transactions of the server before may have such ids too.
        unsealed = _without_seal(cursor, rows) if was_restored else rows
        _write(cursor, newest_seal(), moment, unsealed)
    return len(unsealed), (rows[-1][3], rows[-1][0]) if len(rows) == BATCH else None


def _seal_by_search(head: Seal | None) -> int:
    """After a restore: seal what has no seal, then tell from which transaction on the order holds."""
    found, after = 0, 0
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_snapshot_xmin(now)::text, pg_snapshot_xmax(now)::text,"  # noqa: S608 -- no input in the text
            f" {_UTC.format('clock_timestamp()')} FROM pg_current_snapshot() AS now"
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
            head, after, found = (
                _write(cursor, head, moment, unsealed),
                rows[-1][0],
                found + len(unsealed),
            )
        _write(cursor, head, moment, [(None, None, None, oldest, bytes(32))])
    return found


def _batch(condition: str, order: str) -> str:
    """Events in an order that an index has; first which, then what they hold."""
    ordered = ", ".join(f"e.{name}" for name in order.split(", "))
    return f"""
        SELECT e.id, {_UTC.format("e.at")}, e.table_uuid::text, e.xid::text, {_DIGEST}
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
    return next(_seals("TRUE ORDER BY s.number DESC LIMIT 1", []), None)


def _seals(condition: str, values: Sequence[Any]) -> Iterator[Seal]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {_SEAL} FROM catalog_auditseal s WHERE {condition}", values)  # noqa: S608 -- no input in the text
        for row in cursor.fetchall():
            yield Seal(*row[:6], *(bytes(part) for part in row[6:]))


# --- verifying -----------------------------------------------------------------------------------


def verify(
    *,
    table: uuid.UUID | None = None,
    since: datetime | None = None,
    expected: tuple[int, bytes] | None = None,
) -> Verification:
    """Recompute the chain and compare it with the events, batch by batch.

    ``table``: only that table's events, each with the seals on both sides of its own. ``since``:
    only what was sealed since then; the seal before it is trusted. ``expected``: number and hash
    of a seal that were noted elsewhere. Changes nothing.
    """
    found = Verification()
    if expected is not None:
        _look_for(found, *expected)
    newest = newest_seal()
    retention = newest_retention()
    start = numbers = _start(since) if since is not None else 0
    state, dates = _Links(found, retention), _Dates(found)
    if numbers > 0:
        state.before = next(_seals("s.number = %s", [numbers]), None)
        state.is_first = state.before is None
    while True:
        condition = "s.number > %s"
        values: list[Any] = [numbers]
        if table is not None:
            condition, values = condition + " AND s.table_uuid = %s", [*values, table]
        batch = list(_seals(f"{condition} ORDER BY s.number LIMIT {BATCH}", values))
        if not batch:
            break
        if table is None:
            state.follow(batch)
        else:
            _look_beside(found, batch, retention)
        _compare(found, batch, retention)
        dates.follow(batch)
        found.seals += len(batch)
        found.head, numbers = batch[-1], batch[-1].number
    _find_unsealed(found, newest, table, behind=start)
    return found


def _look_for(found: Verification, number: int, hash: bytes) -> None:
    known = next(_seals("s.number = %s", [number]), None)
    if known is None or known.hash != hash:
        how = "is missing" if known is None else "is another than was noted"
        found.add(Finding("broken", f"Seal {number} {how}", seal=number))


@dataclass(frozen=True, slots=True)
class Retention:
    """What the newest retention left: from when on events are kept, and the last seal removed."""

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


RETENTION = "audit.retention"


class _Links:
    """Follows the chain seal by seal."""

    def __init__(self, found: Verification, retention: Retention | None) -> None:
        self.found = found
        self.before: Seal | None = None
        self.is_first = True
        self.retention = retention
        self._was_altered = False

    def follow(self, batch: Sequence[Seal]) -> None:
        for seal in batch:
            is_altered = seal.compute() != seal.hash
            if is_altered:
                self.found.add(_altered_seal(seal))
            self._link(seal, is_altered=is_altered)
            self.before, self.is_first, self._was_altered = seal, False, is_altered

    def _link(self, seal: Seal, *, is_altered: bool) -> None:
        number, wanted = self._expected()
        if seal.number > number:
            last = seal.number - 1
            which = f"Seal {last} is" if last == number else f"Seals {number} to {last} are"
            self.found.add(Finding("broken", f"{which} missing", seal=number))
        elif seal.number < number:
            self.found.add(
                Finding(
                    "inserted",
                    f"Seal {seal.number} is there twice: one of event {seal.event_id}",
                    seal.event_id,
                    seal.number,
                )
            )
        elif seal.previous != wanted and not is_altered and not self._was_altered:
            self.found.add(_unlinked(seal, self.before))

    def _expected(self) -> tuple[int, bytes]:
        if self.before is not None:
            return self.before.number + 1, self.before.hash
        if self.retention is not None and self.retention.number:
            return self.retention.number + 1, self.retention.hash
        return 1, GENESIS


def _altered_seal(seal: Seal) -> Finding:
    text = f"Seal {seal.number} (of event {seal.event_id}) was altered"
    return Finding("broken", text, seal.event_id, seal.number)


def _unlinked(seal: Seal, before: Seal | None) -> Finding:
    if before is None:
        text = f"Seal {seal.number}, the first that is kept, follows none that is known"
        return Finding("broken", text, seal.event_id, seal.number)
    text = (
        f"Seal {before.number} (of event {before.event_id}) was replaced:"
        f" seal {seal.number} follows another"
    )
    return Finding("broken", text, before.event_id, before.number)


def _look_beside(found: Verification, batch: Sequence[Seal], retention: Retention | None) -> None:
    """The links of single seals: to the one before, and from the one after."""
    numbers = {seal.number + step for seal in batch for step in (-1, 1)}
    beside = {row.number: row for row in _seals("s.number = ANY(%s)", [list(numbers)])}
    known = {seal.number: seal for seal in batch}
    for seal in batch:
        if seal.compute() != seal.hash:
            found.add(_altered_seal(seal))
            continue
        before = beside.get(seal.number - 1) or known.get(seal.number - 1)
        if before is not None:
            if seal.previous != before.hash:
                found.add(_unlinked(seal, before))
        elif seal.number > 1 and (retention is None or seal.number != retention.number + 1):
            text = f"Seal {seal.number - 1} is missing"
            found.add(Finding("broken", text, seal=seal.number - 1))
        after = beside.get(seal.number + 1)
        if after is not None and after.number not in known and after.previous != seal.hash:
            found.add(_unlinked(after, seal))


def _compare(found: Verification, batch: Sequence[Seal], retention: Retention | None) -> None:
    """The events of seals with what was sealed."""
    kept_from = retention.kept_from if retention is not None else ""
    of_events = [seal for seal in batch if seal.event_id is not None and seal.at is not None]
    events = _digests(of_events)
    absent = [seal.event_id for seal in of_events if seal.event_id not in events]
    elsewhere = _digests_anywhere(absent) if absent else {}
    for seal in of_events:
        digest = events.get(seal.event_id) or elsewhere.get(seal.event_id)
        if digest is not None:
            if digest != seal.digest:
                text = f"Event {seal.event_id} of {seal.at} was altered"
                found.add(Finding("altered", text, seal.event_id, seal.number))
        elif str(seal.at) < kept_from:
            found.retired += 1
        else:
            text = f"Event {seal.event_id} of {seal.at} was removed"
            found.add(Finding("removed", text, seal.event_id, seal.number))


class _Dates:
    """The order in time is that of the passes: what a later one sealed did not happen long before."""

    def __init__(self, found: Verification) -> None:
        self.found = found
        self.earlier = self.latest = ""

    def follow(self, batch: Sequence[Seal]) -> None:
        for seal in batch:
            if seal.sealed_at != self.latest:
                self.earlier, self.latest = self.latest, seal.sealed_at
            if (
                seal.at is not None
                and seal.at < self.earlier
                and _moment(seal.at) < _moment(self.earlier) - _LATE
            ):
                text = (
                    f"Event {seal.event_id} is dated {seal.at}, and was there only after"
                    f" {self.earlier}"
                )
                self.found.add(Finding("dated back", text, seal.event_id, seal.number))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _digests(seals: Sequence[Seal]) -> dict[int | None, bytes]:
    """Of the events that are where their seals say; the times lead to the partitions."""
    if not seals:
        return {}
    times = [str(seal.at) for seal in seals]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT e.id, {_DIGEST} FROM catalog_auditevent e"  # noqa: S608 -- no input in the text
            " WHERE e.id = ANY(%s) AND e.at BETWEEN %s::timestamptz AND %s::timestamptz",
            [[seal.event_id for seal in seals], min(times), max(times)],
        )
        return {pk: bytes(digest) for pk, digest in cursor.fetchall()}


def _digests_anywhere(ids: Sequence[int | None]) -> dict[int | None, bytes]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT e.id, {_DIGEST} FROM catalog_auditevent e WHERE e.id = ANY(%s)",  # noqa: S608 -- no input in the text
            [list(ids)],
        )
        return {pk: bytes(digest) for pk, digest in cursor.fetchall()}


def _start(since: datetime) -> int:
    """The number of the last seal before this moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(max(number), 0) FROM catalog_auditseal WHERE sealed_at < %s", [since]
        )
        return int(cursor.fetchone()[0])


def _find_unsealed(
    found: Verification, newest: Seal | None, table: uuid.UUID | None, *, behind: int
) -> None:
    """Events without a seal: those behind the newest one wait, the others were inserted."""
    xid, event = (int(newest.xid), newest.event_id or 0) if newest is not None else (0, 0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM catalog_auditevent")
        low, high = cursor.fetchone()
        if behind:
            cursor.execute(
                "SELECT min(event_id) FROM catalog_auditseal WHERE number >= %s", [behind]
            )
            low = cursor.fetchone()[0] or low
        low -= 1
        while low < high:
            top = min(low + _WINDOW, high)
            cursor.execute(
                f"""
                SELECT e.id, {_UTC.format("e.at")}, e.xid::text::bigint FROM catalog_auditevent e
                WHERE e.id > %s AND e.id <= %s
                    AND (%s::uuid IS NULL OR e.table_uuid = %s::uuid)
                    AND NOT EXISTS (
                        SELECT FROM catalog_auditseal s
                        WHERE s.event_id = e.id AND s.event_id > %s AND s.event_id <= %s
                    )
                ORDER BY e.id
                """,  # noqa: S608 -- no input in the text
                [low, top, table, table, low, top],
            )
            for pk, at, row_xid in cursor.fetchall():
                if (row_xid, pk) > (xid, event):
                    found.waiting += 1
                else:
                    text = f"Event {pk} of {at} was inserted behind the seals"
                    found.add(Finding("inserted", text, pk))
            low = top
