"""Determining the outcome of a commit after an error, and of one whose connection was lost.

A missing transaction row proves nothing while the old session may still commit. So this module
inserts the row itself, as failed: a later insert by the old session then violates the primary key,
and its whole transaction is rolled back.

    the insert finds a row       the commit stands
    the insert succeeds          the commit can never stand; it may be repeated
    the insert waits             the old session has inserted the row and has not ended yet
"""

import random
import time
from collections.abc import Sequence
from datetime import datetime

from django.db import IntegrityError, InterfaceError, OperationalError, connection

from catalog.errors import OutcomeUnknown
from catalog.models import TransactionStatus
from catalog.postgresql import outcomes
from catalog.postgresql.outcomes import OutcomeLost, TransactionLost
from catalog.services.engine import locks, taken_keys
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.engine.statements import NewTransaction

RETRIED = {"40P01", "40001"}  # deadlock_detected, serialization_failure

_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.2

_CLAIM = """
    INSERT INTO catalog_transaction (id, status, actor, request_id, operations, properties)
    VALUES (%s, %s, %s, %s, '[]', '{}')
    ON CONFLICT (id) DO NOTHING
"""
_READ = "SELECT status, operations = '[]', created_at FROM catalog_transaction WHERE id = %s"


def look_up(transaction: NewTransaction) -> datetime | None:
    """The time of the transaction; None: it does not stand and never will.

    Raises OutcomeUnknown when the database does not answer within a few seconds.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return _decide(transaction)
        except (OperationalError, InterfaceError) as error:
            if time.monotonic() > deadline:
                raise unknown(transaction) from error
        time.sleep(random.uniform(0, _PAUSE_SECONDS))  # noqa: S311


def unknown(transaction: NewTransaction) -> OutcomeUnknown:
    """The refusal for a transaction whose outcome is not known."""
    return OutcomeUnknown(
        "The database was lost during the commit, so its outcome is not known",
        detail=(
            f"Read what the request was to change before you send it again. Transaction"
            f" '{transaction.id}' exists if the commit stands."
        ),
    )


def _decide(transaction: NewTransaction) -> datetime | None:
    connection.close()  # a broken session may still look open
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM,
            [
                transaction.id,
                TransactionStatus.FAILED,
                transaction.actor,
                transaction.request_id,
            ],
        )
        # An existing row may come from an earlier call whose answer was lost as well.
        cursor.execute(_READ, [transaction.id])
        status, is_empty, created_at = cursor.fetchone()
    moment: datetime = created_at
    return None if is_empty and status == TransactionStatus.FAILED else moment


# --- after an error ------------------------------------------------------------------------------


def raise_refusal(batch: Batch, operations: Sequence[Operation], error: IntegrityError) -> None:
    """Raise the refusal behind a violated constraint, if there is one.

    It names the first operation that caused the violation.
    """
    constraint, key = taken_keys.constraint(error), taken_keys.read(error)
    if constraint == taken_keys.OF_VERSIONS:
        index = batch.operation_that_added(lambda row: taken_keys.of_version(row) == key)
        indexes = [] if index is None else [index]
    else:
        indexes = list(range(len(operations)))
    for index in indexes:
        refusal = operations[index].conflict(constraint)
        if refusal is not None:
            refusal.operation = index
            raise refusal from error


def stands(
    batch: Batch,
    operations: Sequence[Operation],
    error: IntegrityError | OperationalError,
    *,
    is_nested: bool,
) -> bool:
    """Return True if a commit stands despite the error, False if it may be repeated.

    Raises the refusal behind the error, or the error itself when a repetition cannot help.
    """
    if isinstance(error, IntegrityError):
        raise_refusal(batch, operations, error)
        if taken_keys.constraint(error) == "idempotency_key_unique":
            raise error  # a concurrent request with the same key was committed first
        return False
    if isinstance(error, (OutcomeLost, TransactionLost)):
        if is_nested or locks.needs_session():
            raise error  # only the caller can restart its transaction, or take its lock again
        # Without a transaction row nothing had to change, so the commit may be repeated.
        was_sent = isinstance(error, OutcomeLost) and batch.transaction_id is not None
        return was_sent and look_up(batch.transaction) is not None
    if outcomes.sqlstate(error) not in RETRIED:
        raise error
    return False
