"""Idempotency keys: parsing, and records of requests."""

import hashlib
import uuid
from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.utils import timezone

from catalog.access import IdempotencyKey, Principal
from catalog.errors import ContradictoryInput, InvalidInput, OutcomeUnknown
from catalog.models import IdempotencyRecord, Transaction
from catalog.privileges import READ_ONLY
from catalog.services.engine import idempotency
from tests.factories import unchanged

KEY = "01960000-0000-7000-8000-0000000000ab"


def actor(digest="f1", name="etl", key=KEY, **keys):
    return Principal(name, idempotency=IdempotencyKey(uuid.UUID(key), lambda: digest), **keys)


def test_a_key_of_version_7_is_parsed_with_the_fingerprint_of_its_request():
    for text in (KEY, KEY.upper()):
        key = idempotency.read_key(text, b"POST", b"/x")
        assert key.key == uuid.UUID(KEY)
        assert key.fingerprint == hashlib.sha256(b"4:POST2:/x").hexdigest()
    assert idempotency.fingerprint_of(b"a", b"bc") != idempotency.fingerprint_of(b"ab", b"c")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 41,
        KEY.replace("-7000", "-4000"),
        KEY.replace("-8000", "-7000"),
        KEY.replace("-", ""),
        KEY + "0",
    ],
)
def test_other_keys_are_refused(text):
    with pytest.raises(InvalidInput) as refusal:
        idempotency.read_key(text, b"")
    message = f"Idempotency-Key {text[:40]!r} is not a UUID of version 7"
    assert refusal.value.message == message


def test_a_key_may_have_any_version():
    text = KEY.replace("-7000", "-4000").upper()
    assert idempotency.read_any_key(text) == uuid.UUID(text)
    with pytest.raises(InvalidInput) as refusal:
        idempotency.read_any_key("y" * 41)
    assert refusal.value.message == f"Idempotency-Key {'y' * 40!r} is not a UUID"


def records():
    fields = ("key", "actor", "fingerprint", "status", "content", "headers")
    return [
        (str(key), *others, content if content is None else bytes(content), headers)
        for key, *others, content, headers in IdempotencyRecord.objects.order_by(
            "actor"
        ).values_list(*fields)
    ]


@pytest.mark.django_db
def test_a_refusal_is_recorded_once():
    record = idempotency.keep_refusal(actor(), status=409, content=b"no", headers={"a": "b"})
    expected = [(KEY, "etl", "f1", 409, b"no", {"a": "b"})]
    assert records() == expected
    assert (record.status, bytes(record.content), record.headers) == (409, b"no", {"a": "b"})
    again = idempotency.keep_refusal(actor(), status=400, content=b"other", headers={})
    assert (again.pk, again.status) == (record.pk, 409)
    assert records() == expected
    with unchanged(), pytest.raises(ContradictoryInput) as refusal:
        idempotency.keep_refusal(actor("f2"), status=409, content=b"", headers={})
    assert refusal.value.message == f"Idempotency-Key {KEY} was used for another request"


@pytest.mark.django_db
def test_a_record_belongs_to_the_principal_and_a_key_with_the_same_limits():
    idempotency.keep_refusal(actor(), status=409, content=b"no", headers={})
    assert idempotency.find(actor()).status == 409
    assert idempotency.find(actor(name="other")) is None
    assert idempotency.find(actor(ceiling=READ_ONLY)) is None
    assert idempotency.find(actor(key=KEY.replace("ab", "ac"))) is None
    with pytest.raises(ContradictoryInput):
        idempotency.find(actor("f2"))
    idempotency.keep_refusal(actor("f2", name="other"), status=400, content=b"", headers={})
    assert [(row[1], row[2]) for row in records()] == [("etl", "f1"), ("other", "f2")]


@pytest.mark.django_db
def test_an_answer_completes_the_record_of_its_change():
    IdempotencyRecord.objects.create(key=KEY, actor="etl", fingerprint="f1")
    idempotency.keep_answer(actor(), status=200, content=b"yes", headers={"a": "b"})
    expected = [(KEY, "etl", "f1", 200, b"yes", {"a": "b"})]
    assert records() == expected
    # Neither another request nor a repeated one changes the answer.
    idempotency.keep_answer(actor("f2"), status=200, content=b"other", headers={})
    idempotency.keep_answer(actor(), status=204, content=b"", headers={})
    assert records() == expected


@pytest.mark.django_db
def test_an_answer_to_a_request_that_changed_nothing_is_recorded():
    idempotency.keep_answer(actor(), status=200, content=b"yes", headers={})
    assert records() == [(KEY, "etl", "f1", 200, b"yes", {})]


@pytest.mark.django_db
def test_a_large_answer_is_not_recorded():
    IdempotencyRecord.objects.create(key=KEY, actor="etl", fingerprint="f1")
    with unchanged():
        idempotency.keep_answer(actor(), status=200, content=None, headers={"a": "b"})
    assert idempotency.find(actor()).status is None


@pytest.mark.django_db
def test_an_answer_is_sent_although_it_cannot_be_recorded(monkeypatch, caplog):
    def fail(*args, **keys):
        raise DatabaseError

    monkeypatch.setattr(type(IdempotencyRecord.objects.all()), "bulk_create", fail)
    idempotency.keep_answer(actor(), status=200, content=b"", headers={})
    assert caplog.messages == [f"The answer under Idempotency-Key {KEY} could not be stored"]


@pytest.mark.django_db
def test_the_change_of_a_record_is_the_first_operation_of_its_transaction():
    change = Transaction.objects.create(
        actor="etl", operations=[{"operation": "A"}, {"operation": "B"}]
    )
    record = IdempotencyRecord.objects.create(
        key=KEY, actor="etl", fingerprint="f1", transaction_id=change.pk
    )
    assert idempotency.change_of(record) == {"operation": "A"}
    for operations in ([], None):
        if operations is None:
            record.transaction_id = None
        else:
            Transaction.objects.update(operations=operations)
        with pytest.raises(OutcomeUnknown) as refusal:
            idempotency.change_of(record)
        assert refusal.value.message == (
            "The request was carried out before, and its answer is gone"
        )


@pytest.mark.django_db
def test_records_expire_after_25_hours():
    for name, hours in (("young", 24.9), ("old", 25.1), ("older", 30)):
        row = IdempotencyRecord.objects.create(key=KEY, actor=name, fingerprint="f1")
        created_at = timezone.now() - timedelta(hours=hours)
        IdempotencyRecord.objects.filter(pk=row.pk).update(created_at=created_at)
    assert idempotency.delete_expired() == 2
    assert [row[1] for row in records()] == ["young"]


def test_a_lost_race_is_a_violation_of_the_constraint_of_keys():
    def error(name):
        class Diagnosis:
            constraint_name = name

        cause = Exception()
        cause.diag = Diagnosis
        error = Exception()
        error.__cause__ = cause
        return error

    assert idempotency.lost_race(error("idempotency_key_unique"))
    assert not idempotency.lost_race(error("table_version_unique"))
    assert not idempotency.lost_race(Exception())


def test_a_request_without_a_key_has_no_record():
    with pytest.raises(TypeError, match=r"^the request has no Idempotency-Key$"):
        idempotency.find(Principal("etl"))
