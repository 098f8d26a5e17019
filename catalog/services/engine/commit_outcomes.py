"""Determining the outcome of a commit whose connection was lost.

A missing transaction row proves nothing while the old session may still commit. So this module
inserts the row itself, as failed: a later insert by the old session then violates the primary key,
and its whole transaction is rolled back.

    the insert finds a row       the commit stands
    the insert succeeds          the commit can never stand; it may be repeated
    the insert waits             the old session has inserted the row and has not ended yet
"""

import random
import time
from datetime import datetime

from django.db import InterfaceError, OperationalError, connection

from catalog.errors import OutcomeUnknown
from catalog.models import TransactionStatus
from catalog.services.engine.statements import NewTransaction

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
