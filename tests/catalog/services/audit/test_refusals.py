"""Refusals in the audit trail: selection, limits, and writing in the background."""

import logging
import threading

import pytest
from django.db import connection, transaction

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    CatalogError,
    InvalidInput,
    PermissionDenied,
    ServiceUnavailable,
    TableNotFound,
    TokenExpired,
    Unauthenticated,
    VersionAlreadyExists,
)
from catalog.models import AuditEvent
from catalog.privileges import READ_ONLY, Privilege
from catalog.services.access import api_keys
from catalog.services.audit import refusals

ADA = Principal("user:ada", READ_ONLY, "req-1", {"job": "x"}, interface="lance", key="ada-laptop")
PART = Principal("etl")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """A clock for the ledger, which writes immediately."""
    clock = Clock()
    monkeypatch.setattr(refusals, "ledger", refusals.Ledger(refusals.write, clock))
    return clock


def note(error: CatalogError, actor: Principal | None = ADA, **facts) -> None:
    fields = {"interface": "lance", "action": "table.drop", "target": "ws.t", **facts}
    refusals.note(error, actor=actor, **fields)


def written() -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(outcome="refused").order_by("pk"))


@pytest.mark.parametrize(
    ("error", "actor", "changes", "expected"),
    [
        (PermissionDenied("no"), ADA, False, True),
        (PermissionDenied("no"), ADA, True, True),
        (Unauthenticated("no"), None, False, True),
        (TokenExpired(), None, False, True),
        (VersionAlreadyExists(("t",), 3), ADA, True, True),
        (InvalidInput("no"), ADA, True, True),
        (InvalidInput("no"), ADA, False, False),
        (InvalidInput("no"), None, True, False),
        (ServiceUnavailable("no"), ADA, True, False),
        (TableNotFound(("t",)), ADA, False, False),
        (TableNotFound(("t",)), PART, False, True),
        (TableNotFound(("t",)), ADA, True, True),
    ],
)
def test_security_relevant_refusals_are_recorded(error, actor, changes, expected):
    assert ADA.holds_everywhere(Privilege.BROWSE)
    assert refusals.concerns(error, actor, changes=changes) is expected


def test_a_refusal_records_actor_action_and_interface(db, clock):
    note(PermissionDenied("'user:ada' may not manage 'ws.t'"), address="10.0.0.7")
    (row,) = written()
    assert (row.actor, row.interface, row.key, row.request_id) == (
        "user:ada",
        "lance",
        "ada-laptop",
        "req-1",
    )
    assert (row.action, row.target, row.table_uuid) == ("table.drop", "ws.t", None)
    assert row.error == "PermissionDenied: 'user:ada' may not manage 'ws.t'"
    assert (row.after, row.context) == ({"address": "10.0.0.7"}, {"job": "x"})
    assert row.transaction_id is None


def test_expired_keys_are_named_and_unknown_keys_are_not_stored(db, clock):
    _, key = api_keys.create_api_key(actor=SYSTEM, name="old-etl")
    note(Unauthenticated("no"), None, presented_key=key)
    note(Unauthenticated("no"), None, presented_key="mnd_" + "x" * 43)
    note(Unauthenticated("no"), None, presented_key="hunter2", address="10.0.0.7")
    first, second, third = written()
    assert (first.actor, first.key) == ("anonymous", "old-etl")
    assert (second.actor, second.key) == ("anonymous", "")
    with connection.cursor() as cursor:
        cursor.execute("SELECT string_agg(e::text, '') FROM catalog_auditevent e")
        (text,) = cursor.fetchone()
    assert "hunter2" not in text
    assert "xxxx" not in text
    assert key not in text
    assert third.after == {"address": "10.0.0.7"}


def test_refusals_store_no_secrets_and_no_invalid_text(db, clock):
    note(
        InvalidInput("Location 'https://u:c4n4ry@h/x' is no place"),
        target="a\x00b\ud800" + "c" * 5000,
    )
    (row,) = written()
    assert "c4n4ry" not in row.error
    assert row.target.startswith("ab?c")
    assert len(row.target) < 1001


def test_equal_refusals_within_a_minute_share_one_row(db, clock):
    for _ in range(500):
        note(PermissionDenied("no"))
    assert len(written()) == 1
    clock.now += 61
    note(PermissionDenied("no"), target="ws.other")
    first, other, counted = written()
    assert (first.target, first.after) == ("ws.t", None)
    assert {other.target, counted.target} == {"ws.t", "ws.other"}
    assert [row.after for row in (other, counted) if row.target == "ws.t"] == [{"times": 499}]
    clock.now += 61
    note(PermissionDenied("no"))
    assert len(written()) == 4, "the refusal is recorded again after a minute"


def test_the_number_of_different_refusals_is_bounded(db, clock):
    """If table names, keys or addresses vary."""
    for number in range(5000):
        note(PermissionDenied("no"), target=f"ws.t{number}")
        note(Unauthenticated("no"), None, presented_key=f"mnd_{number}", address=f"10.0.{number}.1")
    assert len(written()) == 300 + 60
    clock.now += 61
    refusals.ledger.deliver = None
    refusals.ledger.flush()
    rows = AuditEvent.objects.filter(action="refusals.count").order_by("actor")
    assert [(row.actor, row.after) for row in rows] == [
        ("", {"times": 4700}),
        ("anonymous", {"times": 4940}),
    ]
    assert len(written()) == 362


def test_anonymous_refusals_do_not_displace_others(db, clock):
    for number in range(1000):
        note(Unauthenticated("no"), None, address=f"10.0.{number}.1")
    note(PermissionDenied("no"))
    assert [row.actor for row in written()].count("user:ada") == 1


@pytest.mark.django_db(transaction=True)
def test_refusals_are_written_by_a_background_thread(monkeypatch):
    wrote = threading.Event()
    original = refusals.write

    def write(due) -> None:
        original(due)
        wrote.set()

    monkeypatch.setattr(refusals, "write", write)
    ledger = refusals.Ledger()
    monkeypatch.setattr(refusals, "ledger", ledger)
    with transaction.atomic():
        note(PermissionDenied("no"))
        assert wrote.wait(60), "in a transaction of its own"
        transaction.set_rollback(True)
    (row,) = written()
    assert row.error == "PermissionDenied: no"
    note(PermissionDenied("no"))
    ledger.flush()
    assert [row.after for row in written()] == [None, None], "what was counted goes at the end"


@pytest.mark.django_db(transaction=True)
def test_an_unwritable_refusal_does_not_stop_the_thread(monkeypatch, caplog):
    monkeypatch.setattr(refusals, "ledger", refusals.Ledger(lambda due: None))
    refusals.ledger.deliver = None
    bad = Principal("ada", context={"k": "\ud800"})  # not valid in any JSON encoding
    with caplog.at_level(logging.ERROR, "catalog.services.audit.refusals"):
        note(PermissionDenied("no"), bad)
        refusals.ledger.flush()
    assert "1 refusals could not be written to the audit trail" in caplog.text
    note(PermissionDenied("no"), target="another")
    refusals.ledger.flush()
    assert [event.target for event in written()] == ["another"]


@pytest.mark.django_db(transaction=True)
def test_a_failed_write_is_logged_and_fails_no_request(monkeypatch, caplog):
    monkeypatch.setattr(refusals, "ledger", refusals.Ledger(lambda due: None))
    note(PermissionDenied("no"))
    refusals.ledger.deliver = None
    note(PermissionDenied("no"))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE catalog_auditevent RENAME COLUMN interface TO doorway")
    try:
        with caplog.at_level(logging.ERROR, "catalog.services.audit.refusals"):
            refusals.ledger.flush()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE catalog_auditevent RENAME COLUMN doorway TO interface")
    assert "1 refusals could not be written to the audit trail" in caplog.text
    assert written() == []
