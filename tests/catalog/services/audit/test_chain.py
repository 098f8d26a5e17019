"""The chain of the audit trail: sealed events, and detection of manipulation."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connection, transaction
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import AuditEvent
from catalog.models.audit import AuditSeal
from catalog.services.audit import chain as audit_chain
from catalog.services.audit import verification as audit_verification
from catalog.services.engine import audit_records, locks
from tests.sealing import seal_all

pytestmark = pytest.mark.django_db(transaction=True)


def write(count: int = 5, **facts) -> list[int]:
    for number in range(count):
        audit_records.record(
            SYSTEM, "version.create", f"ws.t{number}", after={"version": number}, **facts
        )
    return list(AuditEvent.objects.order_by("pk").values_list("pk", flat=True))[-count:]


def run(statement: str, *values) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


@contextmanager
def tampering() -> Iterator[None]:
    """Disable the trigger, which the owner of the tables can do."""
    tables = ("catalog_auditevent", "catalog_auditseal")
    for table in tables:
        run(f"ALTER TABLE {table} DISABLE TRIGGER audit_is_append_only")
    try:
        yield
    finally:
        for table in tables:
            run(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER audit_is_append_only")


def findings(**options) -> list[tuple[str, int | None]]:
    return [
        (finding.kind, finding.event_id)
        for finding in audit_verification.verify(**options).findings
    ]


def test_committed_events_are_sealed_once_and_in_order():
    ids = write(5)
    assert seal_all() == 5
    assert audit_chain.seal() == 0
    more = write(3)
    assert seal_all() == 3
    seals = list(AuditSeal.objects.order_by("number"))
    assert [seal.number for seal in seals] == list(range(1, 9))
    assert [seal.event_id for seal in seals] == ids + more
    assert bytes(seals[0].previous) == bytes(32)
    for before, seal in pairwise(seals):
        assert bytes(seal.previous) == bytes(before.hash)
    report = audit_verification.verify()
    assert (report.seals, report.waiting, report.retired, report.findings) == (8, 0, 0, [])
    assert report.is_sound
    assert report.head.hash == bytes(seals[-1].hash)


def test_sealing_continues_over_several_batches(monkeypatch):
    monkeypatch.setattr(audit_chain, "BATCH", 3)
    monkeypatch.setattr(audit_verification, "_WINDOW", 4)
    ids = write(10)
    assert seal_all() == 10
    assert audit_verification.verify().seals == 10
    with tampering():
        run("DELETE FROM catalog_auditevent WHERE id = %s", ids[6])
    assert findings() == [("removed", ids[6])]


def test_unsealed_events_are_pending_and_not_findings():
    write(2)
    seal_all()
    write(3)
    report = audit_verification.verify()
    assert (report.seals, report.waiting, report.findings) == (2, 3, [])


def test_an_empty_trail_verifies():
    assert audit_chain.seal() == 0
    report = audit_verification.verify()
    assert (report.seals, report.head, report.is_sound) == (0, None, True)


def test_sealing_waits_for_older_open_transactions():
    """Rows of an open transaction may still precede existing rows."""
    began, end = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            audit_records.record(SYSTEM, "version.create", "ws.slow")
            began.set()
            end.wait(60)
        connection.close()

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        assert began.wait(60)
        write(3)
        assert audit_chain.seal() == 0
        assert audit_verification.verify().waiting == 3
    finally:
        end.set()
        thread.join()
    assert seal_all() == 4
    first = AuditSeal.objects.get(number=1)
    assert AuditEvent.objects.get(pk=first.event_id).target == "ws.slow"
    assert audit_verification.verify().is_sound


def test_only_one_sealing_pass_runs_at_a_time():
    write(2)
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with locks.advisory_lock("audit.seal"):
            begun.set()
            end.wait(60)
        connection.close()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert begun.wait(60)
        assert audit_chain.seal() == 0
    finally:
        end.set()
        thread.join()
    assert not AuditSeal.objects.exists()
    assert seal_all() == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("actor", "'mallory'"),
        ("action", "'table.drop'"),
        ("target", "'other'"),
        ("table_uuid", "gen_random_uuid()"),
        ("before", "'{}'"),
        ("after", "'{\"version\": 3.0}'"),
        ("context", '\'{"a": "b"}\''),
        ("request_id", "'x'"),
        ("transaction_id", "gen_random_uuid()"),
        ("xid", "'1'"),
        ("interface", "'lance'"),
        ("key", "'other'"),
        ("outcome", "'refused'"),
        ("error", "'no'"),
        ("at", "at + interval '1 microsecond'"),
    ],
)
def test_verify_reports_an_altered_event(column, value):
    ids = write(5)
    seal_all()
    with tampering():
        run(f"UPDATE catalog_auditevent SET {column} = {value} WHERE id = %s", ids[3])
    assert findings() == [("altered", ids[3])]


def test_verify_reports_an_altered_id_as_removed_and_inserted():
    ids = write(3)
    seal_all()
    with tampering():
        run("UPDATE catalog_auditevent SET id = 0 WHERE id = %s", ids[1])
    assert findings() == [("removed", ids[1]), ("inserted", 0)]


def test_verify_reports_an_event_removed_with_its_seal():
    ids = write(5)
    seal_all()
    with tampering():
        run("DELETE FROM catalog_auditevent WHERE id = %s", ids[2])
    assert findings() == [("removed", ids[2])]
    with tampering():
        run("DELETE FROM catalog_auditseal WHERE event_id = %s", ids[2])
    (finding,) = audit_verification.verify().findings
    assert (finding.kind, finding.text) == ("broken", "Seal 3 is missing")


def test_verify_reports_a_removed_seal_with_its_event():
    ids = write(5)
    seal_all()
    with tampering():
        run("DELETE FROM catalog_auditseal WHERE number IN (2, 3)")
    report = audit_verification.verify()
    assert [finding.text for finding in report.findings if finding.kind == "broken"] == [
        "Seals 2 to 3 are missing"
    ]
    assert findings() == [("broken", None), ("inserted", ids[1]), ("inserted", ids[2])]


def test_verify_reports_an_inserted_event():
    ids = write(5)
    seal_all()
    run("SELECT setval('catalog_auditevent_id_seq', %s)", ids[-1] + 100)
    middle = AuditEvent.objects.get(pk=ids[2])
    inserted = AuditEvent.objects.create(
        id=ids[-1] + 50,
        at=middle.at,
        actor="mallory",
        action="tag.create",
        target="ws.t",
        xid=middle.xid - 1,
    )
    assert audit_chain.seal() == 0
    assert findings() == [("inserted", inserted.pk)]


def test_verify_reports_an_event_inserted_with_a_seal():
    write(5)
    seal_all()
    forged = AuditEvent.objects.create(actor="m", action="tag.create", target="x", xid=3)
    run(
        "INSERT INTO catalog_auditseal SELECT number, now(), %s, at, table_uuid, xid, digest,"
        " previous, hash FROM catalog_auditseal WHERE number = 3",
        forged.pk,
    )
    kinds = findings()
    assert ("inserted", forged.pk) in kinds
    assert ("broken", forged.pk) in kinds


def test_verify_reports_a_backdated_event():
    write(2)
    seal_all()
    old = AuditEvent.objects.create(
        at=timezone.now() - timedelta(hours=3), actor="m", action="tag.create", target="x"
    )
    write(1)
    assert seal_all() == 2
    assert findings() == [("dated back", old.pk)]


@pytest.mark.parametrize(
    "change",
    [
        "digest = sha256('x')",
        "previous = sha256('x')",
        "hash = sha256('x')",
        "table_uuid = gen_random_uuid()",
        "sealed_at = sealed_at + interval '1 microsecond'",
    ],
)
def test_verify_reports_an_altered_seal(change):
    ids = write(5)
    seal_all()
    with tampering():
        run(f"UPDATE catalog_auditseal SET {change} WHERE number = 3")
    broken = [
        finding for finding in audit_verification.verify().findings if finding.kind == "broken"
    ]
    assert [finding.text for finding in broken] == [f"Seal 3 (of event {ids[2]}) was altered"]


def test_verify_reports_a_forged_event_and_seal_at_the_next_seal():
    ids = write(5)
    seal_all()
    with tampering():
        run("UPDATE catalog_auditevent SET actor = 'mallory' WHERE id = %s", ids[2])
        forge(ids[2])
    (finding,) = audit_verification.verify().findings
    assert (finding.kind, finding.event_id, finding.seal) == ("broken", ids[2], 3)
    assert "seal 4 follows a different one" in finding.text


def forge(event_id: int) -> None:
    """Recompute the seal of a changed event."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {audit_chain.DIGEST} FROM catalog_auditevent e WHERE id = %s", [event_id]
        )
        digest = bytes(cursor.fetchone()[0])
    (seal,) = audit_chain.read_seals("s.event_id = %s", [event_id])
    anew = audit_chain.replace(seal, digest=digest)
    run(
        "UPDATE catalog_auditseal SET digest = %s, hash = %s WHERE event_id = %s",
        digest,
        anew.compute(),
        event_id,
    )


def test_a_forged_tail_changes_the_newest_hash():
    ids = write(3)
    seal_all()
    kept_elsewhere = audit_verification.verify().head.hash
    with tampering():
        run("UPDATE catalog_auditevent SET actor = 'mallory' WHERE id = %s", ids[2])
        forge(ids[2])
    report = audit_verification.verify()
    assert report.is_sound
    assert report.head.hash != kept_elsewhere
    (report,) = audit_verification.verify(expected=(3, kept_elsewhere)).findings
    assert (report.kind, report.text) == ("broken", "Seal 3 does not have the expected hash")


def test_a_recorded_seal_reveals_a_truncated_trail():
    ids = write(5)
    seal_all()
    noted = audit_verification.verify().head
    assert audit_verification.verify(expected=(noted.number, noted.hash)).is_sound
    with tampering():
        run("DELETE FROM catalog_auditevent WHERE id = %s", ids[4])
        run("DELETE FROM catalog_auditseal WHERE number = 5")
    assert audit_verification.verify().is_sound
    (finding,) = audit_verification.verify(expected=(noted.number, noted.hash)).findings
    assert finding.text == "Seal 5 is missing"


class Of:
    """A stand-in for the row of a table."""

    def __init__(self) -> None:
        self.uuid = uuid.uuid4()


def test_verify_accepts_a_single_table():
    mine, other = Of(), Of()
    a, b, c = (
        write(1, table=mine)[0],
        write(1, table=other)[0],
        write(1, table=mine)[0],
    )
    seal_all()
    report = audit_verification.verify(table=mine.uuid)
    assert (report.seals, report.is_sound) == (2, True)
    with tampering():
        run("UPDATE catalog_auditevent SET actor = 'm' WHERE id IN (%s, %s)", b, c)
    assert findings(table=mine.uuid) == [("altered", c)]
    assert findings() == [("altered", b), ("altered", c)]
    with tampering():
        run("DELETE FROM catalog_auditseal WHERE event_id = %s", b)
        run("DELETE FROM catalog_auditevent WHERE id = %s", a)
    assert findings(table=mine.uuid) == [("broken", None), ("removed", a), ("altered", c)]
    unsealed = AuditEvent.objects.create(
        actor="m", action="x.y", target="t", table_uuid=mine.uuid, xid=3
    )
    assert ("inserted", unsealed.pk) in findings(table=mine.uuid)
    assert ("inserted", unsealed.pk) not in findings(table=other.uuid)


def test_verify_accepts_a_start_time():
    first = write(3)
    seal_all()
    moment = timezone.now()
    second = write(3)
    seal_all()
    assert audit_verification.verify(since=moment).seals == 3
    with tampering():
        run("UPDATE catalog_auditevent SET actor = 'm' WHERE id IN (%s, %s)", first[0], second[0])
    assert findings(since=moment) == [("altered", second[0])]
    assert findings() == [("altered", first[0]), ("altered", second[0])]


def test_sealing_continues_after_restore_with_lower_transaction_ids():
    """Transaction ids of the old server are higher; no event is missed or sealed twice."""
    far = 1 << 40
    for number in range(3):
        AuditEvent.objects.create(actor="a", action="x.y", target=f"t{number}", xid=far + number)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM catalog_auditevent"
            " WHERE xid < pg_snapshot_xmax(pg_current_snapshot())"
        )
        assert cursor.fetchone() == (0,)
    sealed_there = list(AuditEvent.objects.order_by("pk"))[:2]
    seal_as_elsewhere(sealed_there)
    here = write(2)
    assert seal_all() == 3
    assert audit_chain.seal() == 0
    later = write(2)
    assert seal_all() == 2
    sealed = AuditSeal.objects.order_by("number").values_list("event_id", flat=True)
    ids = list(AuditEvent.objects.order_by("pk").values_list("pk", flat=True))
    # Events of transactions that were open during the search pass come after its cursor.
    assert list(sealed)[:3] == ids[:3]
    assert list(sealed).count(None) == 1
    assert {pk for pk in sealed if pk is not None} == {*ids[:3], *here, *later}
    report = audit_verification.verify()
    assert (report.seals, report.waiting, report.findings) == (8, 0, [])


def seal_as_elsewhere(events: list[AuditEvent]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT e.id, {audit_chain.UTC_TEXT.format('e.at')}, NULL, e.xid::text,"
            f" {audit_chain.DIGEST} FROM catalog_auditevent e WHERE id = ANY(%s) ORDER BY id",
            [[event.pk for event in events]],
        )
        rows = cursor.fetchall()
        moment = audit_chain.AuditEvent.objects.order_by("at")[0].at.isoformat()
        audit_chain._write(cursor, None, moment.replace("+00:00", "Z"), rows)


def test_findings_beyond_the_limit_are_counted(monkeypatch):
    monkeypatch.setattr(audit_verification, "MAX_FINDINGS", 3)
    write(10)
    seal_all()
    with tampering():
        run("UPDATE catalog_auditevent SET actor = 'm'")
    report = audit_verification.verify()
    assert (len(report.findings), report.more_findings) == (3, 7)
