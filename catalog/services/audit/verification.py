"""Verifying the audit trail against its seals (see ``chain``).

Every finding names the event or the seal that is not as it was sealed.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from catalog.services.audit import chain
from catalog.services.audit.chain import Retention, Seal

MAX_FINDINGS = 1000
"""The number of findings that are listed; further ones are only counted."""
_WINDOW = 50_000  # ids examined by one statement
_LATE = timedelta(hours=1)
"""A statement may wait this long before its row is visible; an older event was backdated."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A deviation from the seals."""

    kind: str
    """altered, removed, inserted or dated back: of an event; broken: of the seals themselves."""
    text: str
    event_id: int | None = None
    seal: int | None = None


@dataclass(slots=True)
class Verification:
    """The result of a verification."""

    seals: int = 0
    retired: int = 0
    """Seals of events that a retention removed: their links are verified, their events are not."""
    waiting: int = 0
    """Events that are not sealed yet."""
    head: Seal | None = None
    """The newest verified seal."""
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


def verify(
    *,
    table: uuid.UUID | None = None,
    since: datetime | None = None,
    expected: tuple[int, bytes] | None = None,
) -> Verification:
    """Recompute the chain and compare it with the events, batch by batch.

    ``table`` limits it to that table's events, each with the seals on both sides of its own.
    ``since`` limits it to seals since then; the seal before them is trusted. ``expected`` is the
    number and the hash of a seal that were stored elsewhere. Changes nothing.
    """
    result = Verification()
    if expected is not None:
        _check_expected(result, *expected)
    newest = chain.newest_seal()
    retention = chain.newest_retention()
    start = number = _start(since) if since is not None else 0
    links, dates = _Links(result, retention), _Dates(result)
    if number > 0:
        links.before = next(chain.read_seals("s.number = %s", [number]), None)
        links.is_first = links.before is None
    while True:
        condition = "s.number > %s"
        values: list[Any] = [number]
        if table is not None:
            condition, values = condition + " AND s.table_uuid = %s", [*values, table]
        batch = list(chain.read_seals(f"{condition} ORDER BY s.number LIMIT {chain.BATCH}", values))
        if not batch:
            break
        if table is None:
            links.follow(batch)
        else:
            _check_neighbors(result, batch, retention)
        _compare(result, batch, retention)
        dates.follow(batch)
        result.seals += len(batch)
        result.head, number = batch[-1], batch[-1].number
    _find_unsealed(result, newest, table, behind=start)
    return result


def _check_expected(result: Verification, number: int, hash: bytes) -> None:
    seal = next(chain.read_seals("s.number = %s", [number]), None)
    if seal is None or seal.hash != hash:
        problem = "is missing" if seal is None else "does not have the expected hash"
        result.add(Finding("broken", f"Seal {number} {problem}", seal=number))


class _Links:
    """Verifies the links of the chain, seal by seal."""

    def __init__(self, result: Verification, retention: Retention | None) -> None:
        self.result = result
        self.before: Seal | None = None
        self.is_first = True
        self.retention = retention
        self._was_altered = False

    def follow(self, batch: Sequence[Seal]) -> None:
        for seal in batch:
            is_altered = seal.compute() != seal.hash
            if is_altered:
                self.result.add(_altered_seal(seal))
            self._link(seal, is_altered=is_altered)
            self.before, self.is_first, self._was_altered = seal, False, is_altered

    def _link(self, seal: Seal, *, is_altered: bool) -> None:
        number, expected_hash = self._expected()
        if seal.number > number:
            last = seal.number - 1
            subject = f"Seal {last} is" if last == number else f"Seals {number} to {last} are"
            self.result.add(Finding("broken", f"{subject} missing", seal=number))
        elif seal.number < number:
            self.result.add(
                Finding(
                    "inserted",
                    f"Seal {seal.number} exists twice: one copy is of event {seal.event_id}",
                    seal.event_id,
                    seal.number,
                )
            )
        elif seal.previous != expected_hash and not is_altered and not self._was_altered:
            self.result.add(_unlinked(seal, self.before))

    def _expected(self) -> tuple[int, bytes]:
        if self.before is not None:
            return self.before.number + 1, self.before.hash
        if self.retention is not None and self.retention.number:
            return self.retention.number + 1, self.retention.hash
        return 1, chain.GENESIS


def _altered_seal(seal: Seal) -> Finding:
    text = f"Seal {seal.number} (of event {seal.event_id}) was altered"
    return Finding("broken", text, seal.event_id, seal.number)


def _unlinked(seal: Seal, before: Seal | None) -> Finding:
    if before is None:
        text = f"Seal {seal.number}, the first that is retained, does not follow the removed one"
        return Finding("broken", text, seal.event_id, seal.number)
    text = (
        f"Seal {before.number} (of event {before.event_id}) was replaced:"
        f" seal {seal.number} follows a different one"
    )
    return Finding("broken", text, before.event_id, before.number)


def _check_neighbors(
    result: Verification, batch: Sequence[Seal], retention: Retention | None
) -> None:
    """Verify the links of single seals: to the previous one, and from the next one."""
    numbers = {seal.number + step for seal in batch for step in (-1, 1)}
    neighbors = {row.number: row for row in chain.read_seals("s.number = ANY(%s)", [list(numbers)])}
    in_batch = {seal.number: seal for seal in batch}
    for seal in batch:
        if seal.compute() != seal.hash:
            result.add(_altered_seal(seal))
            continue
        before = neighbors.get(seal.number - 1) or in_batch.get(seal.number - 1)
        if before is not None:
            if seal.previous != before.hash:
                result.add(_unlinked(seal, before))
        elif seal.number > 1 and (retention is None or seal.number != retention.number + 1):
            text = f"Seal {seal.number - 1} is missing"
            result.add(Finding("broken", text, seal=seal.number - 1))
        after = neighbors.get(seal.number + 1)
        if after is not None and after.number not in in_batch and after.previous != seal.hash:
            result.add(_unlinked(after, seal))


def _compare(result: Verification, batch: Sequence[Seal], retention: Retention | None) -> None:
    """Compare the events with their seals."""
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
                result.add(Finding("altered", text, seal.event_id, seal.number))
        elif str(seal.at) < kept_from:
            result.retired += 1
        else:
            text = f"Event {seal.event_id} of {seal.at} was removed"
            result.add(Finding("removed", text, seal.event_id, seal.number))


class _Dates:
    """Verifies the times: an event that a later pass sealed cannot be much older than that pass."""

    def __init__(self, result: Verification) -> None:
        self.result = result
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
                    f"Event {seal.event_id} is dated {seal.at}, but was written only after"
                    f" {self.earlier}"
                )
                self.result.add(Finding("dated back", text, seal.event_id, seal.number))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _digests(seals: Sequence[Seal]) -> dict[int | None, bytes]:
    """The digests of events at the times in their seals; the times select the partitions."""
    if not seals:
        return {}
    times = [str(seal.at) for seal in seals]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT e.id, {chain.DIGEST} FROM catalog_auditevent e"  # noqa: S608 -- no input in the text
            " WHERE e.id = ANY(%s) AND e.at BETWEEN %s::timestamptz AND %s::timestamptz",
            [[seal.event_id for seal in seals], min(times), max(times)],
        )
        return {pk: bytes(digest) for pk, digest in cursor.fetchall()}


def _digests_anywhere(ids: Sequence[int | None]) -> dict[int | None, bytes]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT e.id, {chain.DIGEST} FROM catalog_auditevent e WHERE e.id = ANY(%s)",  # noqa: S608 -- no input in the text
            [list(ids)],
        )
        return {pk: bytes(digest) for pk, digest in cursor.fetchall()}


def _start(since: datetime) -> int:
    """The number of the last seal before this time."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(max(number), 0) FROM catalog_auditseal WHERE sealed_at < %s", [since]
        )
        return int(cursor.fetchone()[0])


def _find_unsealed(
    result: Verification, newest: Seal | None, table: uuid.UUID | None, *, behind: int
) -> None:
    """Find events without a seal: those after the newest seal are waiting, others were inserted."""
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
                SELECT e.id, {chain.UTC_TEXT.format("e.at")}, e.xid::text::bigint FROM catalog_auditevent e
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
                    result.waiting += 1
                else:
                    text = f"Event {pk} of {at} was inserted among sealed events"
                    result.add(Finding("inserted", text, pk))
            low = top
