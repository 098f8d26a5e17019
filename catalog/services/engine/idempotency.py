"""Idempotent requests: a request with an Idempotency-Key takes effect once.

The commit engine records the key in the transaction of the change; the answer is added once it
exists (``keep_answer``). A refusal that must be repeatable is recorded after its rollback
(``keep_refusal``). A repeated request with a recorded key gets the recorded answer.

Two concurrent requests with one key meet at the unique constraint: the second waits for the first
and then finds its record. So a change is rolled back if a refusal was recorded under its key
meanwhile, and a refusal is not given if a change was recorded under its key.
"""

import hashlib
import logging
import re
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db import DatabaseError
from django.db.models import QuerySet
from django.utils import timezone

from catalog.access import IdempotencyKey, Principal
from catalog.errors import ContradictoryInput, InvalidInput, OutcomeUnknown
from catalog.models import IdempotencyRecord, Transaction
from catalog.postgresql import outcomes

log = logging.getLogger(__name__)

LIFETIME = timedelta(hours=24)
"""The period in which a client may repeat a request."""
LIFETIME_ISO = "PT24H"
_GRACE = timedelta(hours=1)  # for clocks that differ

MAX_KEPT_BYTES = 64 * 1024
"""Larger answers are rebuilt from the catalog's current state."""

CONSTRAINT = "idempotency_key_unique"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# RFC 9562: version 7 and its variant.
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def read_key(text: str, *request: bytes) -> IdempotencyKey:
    """The key in a header, with the fingerprint of its request. Raises InvalidInput."""
    if not _UUID7.fullmatch(text.lower()):
        raise InvalidInput(f"Idempotency-Key {text[:40]!r} is not a UUID of version 7")
    fingerprint = fingerprint_of(*request)
    return IdempotencyKey(uuid.UUID(text), lambda: fingerprint)


def read_any_key(text: str) -> uuid.UUID:
    """A UUID of any version. Raises InvalidInput."""
    if not _UUID.fullmatch(text.lower()):
        raise InvalidInput(f"Idempotency-Key {text[:40]!r} is not a UUID")
    return uuid.UUID(text)


def fingerprint_of(*request: bytes) -> str:
    """The SHA-256 of the parts of a request, each with its length."""
    digest = hashlib.sha256()
    for content in request:
        digest.update(b"%d:" % len(content))
        digest.update(content)
    return digest.hexdigest()


def find(actor: Principal) -> IdempotencyRecord | None:
    """The record of this actor's key. Raises ContradictoryInput if it belongs to another request."""
    key = _key(actor)
    record = _of(actor).first()
    if record is not None and record.fingerprint != key.fingerprint:  # reads a streamed body
        raise ContradictoryInput(f"Idempotency-Key {key.key} was used for another request")
    return record


def keep_answer(
    actor: Principal, *, status: int, content: bytes | None, headers: Mapping[str, str]
) -> None:
    """Record the answer to a committed change. ``content`` None: the answer has to be rebuilt.

    Never raises when the database is unavailable: the change stands, so the answer must be sent.
    """
    record = _record(actor)
    if content is not None:
        record.status, record.content, record.headers = status, content, dict(headers)
    try:
        noted = _of(actor).filter(fingerprint=record.fingerprint, status=None)
        if content is None or not noted.update(
            status=record.status, content=record.content, headers=record.headers
        ):
            # Nothing had to change, so no key was recorded; or the answer is recorded already.
            IdempotencyRecord.objects.bulk_create([record], ignore_conflicts=True)
    except DatabaseError:
        log.warning("The answer under Idempotency-Key %s could not be stored", record.key)


def keep_refusal(
    actor: Principal, *, status: int, content: bytes, headers: Mapping[str, str]
) -> IdempotencyRecord | None:
    """Record a refusal and return the record of the key, which may be that of another request.

    Waits for a change with this key that is about to be committed. Raises ContradictoryInput when
    the recorded request is a different one.
    """
    record = _record(actor)
    record.status, record.content, record.headers = status, content, dict(headers)
    outcomes.repeated(
        lambda: IdempotencyRecord.objects.bulk_create([record], ignore_conflicts=True)
    )
    return find(actor)


def change_of(record: IdempotencyRecord) -> dict[str, Any]:
    """The result of the first operation of a recorded change, from its transaction.

    Raises OutcomeUnknown when the transaction is missing.
    """
    pk = record.transaction_id
    row = Transaction.objects.filter(pk=pk).first() if pk is not None else None
    if row is None or not row.operations:
        raise OutcomeUnknown("The request was carried out before, and its answer is gone")
    change: dict[str, Any] = row.operations[0]
    return change


def lost_race(error: Exception) -> bool:
    """True if a concurrent request with the same key was recorded first."""
    return getattr(getattr(error.__cause__, "diag", None), "constraint_name", "") == CONSTRAINT


def delete_expired() -> int:
    """Delete the records whose lifetime is over; returns their number."""
    expired = timezone.now() - LIFETIME - _GRACE
    deleted, _ = IdempotencyRecord.objects.filter(created_at__lt=expired).delete()
    return deleted


def _of(actor: Principal) -> QuerySet[IdempotencyRecord]:
    # A narrower API key of the same principal must not receive the answers to a wider one.
    return IdempotencyRecord.objects.filter(key=_key(actor).key, actor=actor.narrowed_name)


def _record(actor: Principal) -> IdempotencyRecord:
    key = _key(actor)
    return IdempotencyRecord(key=key.key, actor=actor.narrowed_name, fingerprint=key.fingerprint)


def _key(actor: Principal) -> IdempotencyKey:
    if actor.idempotency is None:
        raise TypeError("the request has no Idempotency-Key")
    return actor.idempotency
