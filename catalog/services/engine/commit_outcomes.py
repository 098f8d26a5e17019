"""What became of a commit whose connection was lost.

A missing transaction row proves nothing while the old session may still commit. So the row is
inserted here, as failed: then the old session's insert, if it comes at all, violates the primary
key, and its whole transaction is rolled back.

    the insert finds a row       the commit stands
    the insert succeeds          the commit can never stand; it may be made again
    the insert waits             the old session has inserted the row and has not ended yet
"""

import random
import time
from datetime import datetime

from django.db import InterfaceError, OperationalError, connection

from catalog.errors import OutcomeUnknown
from catalog.models import Transaction, TransactionStatus

_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.2

_CLAIM = """
    INSERT INTO catalog_transaction (id, status, actor, request_id, operations, properties)
    VALUES (%s, %s, %s, %s, '[]', '{}')
    ON CONFLICT (id) DO NOTHING
"""
_READ = "SELECT status, operations = '[]', created_at FROM catalog_transaction WHERE id = %s"


def look_up(transaction: Transaction) -> datetime | None:
    """When the transaction was made; None: nothing of it stands, now or later.

    Raises OutcomeUnknown when the database cannot tell within some seconds.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return _decide(transaction)
        except (OperationalError, InterfaceError) as error:
            if time.monotonic() > deadline:
                raise unknown(transaction) from error
        time.sleep(random.uniform(0, _PAUSE_SECONDS))  # noqa: S311


def unknown(transaction: Transaction) -> OutcomeUnknown:
    """The refusal that leaves it open whether a transaction stands."""
    return OutcomeUnknown(
        "The database was lost during the commit, so its outcome is not known",
        detail=(
            f"Read what the request was to change before you send it again. Transaction"
            f" '{transaction.pk}' exists if the commit stands."
        ),
    )


def _decide(transaction: Transaction) -> datetime | None:
    connection.close()  # a session that broke off may look open
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM,
            [
                transaction.pk,
                TransactionStatus.FAILED,
                transaction.actor,
                transaction.request_id,
            ],
        )
        # A row that was there may be of an earlier call, whose answer was lost in its turn.
        cursor.execute(_READ, [transaction.pk])
        status, is_empty, created_at = cursor.fetchone()
    moment: datetime = created_at
    return None if is_empty and status == TransactionStatus.FAILED else moment
