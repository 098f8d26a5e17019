"""Requests that carry an Idempotency-Key: what they do, they do once.

The commit engine notes a key in the transaction of the change itself; its answer follows when it is
known (``keep_answer``). A refusal that is to be the same again is noted after its rollback
(``keep_refusal``). Whoever comes again with a noted key gets the noted answer.

Two requests with one key at once meet at the unique constraint: the second waits for the first,
and then finds its record. So a change whose key got a refusal meanwhile is rolled back, and a
refusal whose key got a change is not given.
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
"""How long a client may go on repeating a request."""
LIFETIME_ISO = "PT24H"
_GRACE = timedelta(hours=1)  # for clocks that differ

MAX_KEPT_BYTES = 64 * 1024
"""Larger answers are made anew from the catalog's present state."""

CONSTRAINT = "idempotency_key_unique"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# RFC 9562: version 7 and its variant.
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def read_key(text: str, *request: bytes) -> IdempotencyKey:
    """The key of a header and what tells its request from others. Raises InvalidInput."""
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
    """What tells a request from others."""
    digest = hashlib.sha256()
    for part in request:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def find(actor: Principal) -> IdempotencyRecord | None:
    """The record of this actor's key. Raises ContradictoryInput when it is of another request."""
    key = _key(actor)
    record = _of(actor).first()
    if record is not None and record.fingerprint != key.fingerprint:  # reads a streamed body
        raise ContradictoryInput(f"Idempotency-Key {key.key} was used for another request")
    return record


def keep_answer(
    actor: Principal, *, status: int, content: bytes | None, headers: Mapping[str, str]
) -> None:
    """Note the answer to a change that stands. ``content`` None: it is to be made anew.

    Never raises for a database that is away: the change stands, and so must its answer.
    """
    record = _record(actor)
    if content is not None:
        record.status, record.content, record.headers = status, content, dict(headers)
    try:
        noted = _of(actor).filter(fingerprint=record.fingerprint, status=None)
        if content is None or not noted.update(
            status=record.status, content=record.content, headers=record.headers
        ):
            # Nothing had to change, so nothing is noted; or the answer is there already.
            IdempotencyRecord.objects.bulk_create([record], ignore_conflicts=True)
    except DatabaseError:
        log.warning("The answer under Idempotency-Key %s could not be kept", record.key)


def keep_refusal(
    actor: Principal, *, status: int, content: bytes, headers: Mapping[str, str]
) -> IdempotencyRecord | None:
    """Note a refusal and return what is noted under the key: another request may have been first.

    Waits for a change with the key that is about to be committed. Raises ContradictoryInput when
    what is noted was another request.
    """
    record = _record(actor)
    record.status, record.content, record.headers = status, content, dict(headers)
    outcomes.repeated(
        lambda: IdempotencyRecord.objects.bulk_create([record], ignore_conflicts=True)
    )
    return find(actor)


def change_of(record: IdempotencyRecord) -> dict[str, Any]:
    """What the first operation of a noted change did, as its transaction tells it.

    Raises OutcomeUnknown when that is not there.
    """
    known = record.transaction_id
    row = Transaction.objects.filter(pk=known).first() if known is not None else None
    if row is None or not row.operations:
        raise OutcomeUnknown("The request was carried out before, and its answer is gone")
    change: dict[str, Any] = row.operations[0]
    return change


def lost_race(error: Exception) -> bool:
    """Whether this is the second of two requests with one key, and the first is noted."""
    return getattr(getattr(error.__cause__, "diag", None), "constraint_name", "") == CONSTRAINT


def delete_expired() -> int:
    """Delete the records that nobody may ask for any more; returns how many."""
    expired = timezone.now() - LIFETIME - _GRACE
    deleted, _ = IdempotencyRecord.objects.filter(created_at__lt=expired).delete()
    return deleted


def _of(actor: Principal) -> QuerySet[IdempotencyRecord]:
    # Who comes with less than another key of the same principal gets none of that one's answers.
    return IdempotencyRecord.objects.filter(key=_key(actor).key, actor=actor.narrowed_name)


def _record(actor: Principal) -> IdempotencyRecord:
    key = _key(actor)
    return IdempotencyRecord(key=key.key, actor=actor.narrowed_name, fingerprint=key.fingerprint)


def _key(actor: Principal) -> IdempotencyKey:
    if actor.idempotency is None:
        raise TypeError("the request has no Idempotency-Key")
    return actor.idempotency
