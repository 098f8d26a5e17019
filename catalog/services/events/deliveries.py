"""The backlog of webhooks."""

from dataclasses import dataclass

from django.db import connection


@dataclass(frozen=True, slots=True)
class Backlog:
    pending: int
    failing: int
    """Pending deliveries of active webhooks whose last attempt failed."""
    dead: int
    """Deliveries that were given up."""
    lag_seconds: float
    """Time since the oldest pending delivery of an active webhook was due; 0 without one."""


def backlog() -> Backlog:
    """Count the deliveries that did not arrive. One statement, which uses the partial indexes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT count(*) FROM catalog_webhookdelivery WHERE status = 'dead'), count(*),"
            " count(*) FILTER (WHERE w.is_active AND d.answer <> ''),"
            " coalesce(greatest(extract(epoch FROM clock_timestamp()"
            " - min(d.due_at) FILTER (WHERE w.is_active)), 0), 0)"
            " FROM catalog_webhookdelivery d JOIN catalog_webhook w ON w.id = d.webhook_id"
            " WHERE d.status = 'pending'"
        )
        dead, pending, failing, lag = cursor.fetchone()
    return Backlog(pending=pending, failing=failing, dead=dead, lag_seconds=float(lag))
