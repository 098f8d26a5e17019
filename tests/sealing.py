"""Seals of the audit trail in tests."""

import time

from django.db import connection

from catalog.services.audit import chain as audit_chain

_SECONDS = 120.0


def seal_all() -> int:
    """Seal until no event is unsealed. Returns the number of sealed events.

    A pass waits for older transactions of the whole database server, including those of parallel tests
    in other databases.
    """
    sealed, deadline = audit_chain.seal(), time.monotonic() + _SECONDS
    while _waiting():
        assert time.monotonic() < deadline, "an older transaction does not end"
        time.sleep(0.02)
        sealed += audit_chain.seal()
    return sealed


def _waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM catalog_auditevent e WHERE NOT EXISTS"
            " (SELECT FROM catalog_auditseal s WHERE s.event_id = e.id))"
        )
        return cursor.fetchone()[0]
