"""The backlog of webhooks."""

from dataclasses import dataclass

from django.db import connection


@dataclass(frozen=True, slots=True)
class Backlog:
    pending: int
    dead: int
    """Deliveries that were given up."""
    lag_seconds: float
    """Time since the oldest pending delivery was due; 0 without one."""


def backlog() -> Backlog:
    """Count the deliveries that did not arrive. One statement, which uses the partial indexes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM catalog_webhookdelivery WHERE status = 'dead'), count(*),"
            " coalesce(greatest(extract(epoch FROM clock_timestamp() - min(due_at)), 0), 0)"
            " FROM catalog_webhookdelivery WHERE status = 'pending'"
        )
        dead, pending, lag = cursor.fetchone()
    return Backlog(pending=pending, dead=dead, lag_seconds=float(lag))
