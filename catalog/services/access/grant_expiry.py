"""Deleting grants that have expired. They permit nothing from their end on, deleted or not."""

from django.db import transaction
from django.db.models.functions import Now

from catalog.access import SYSTEM
from catalog.identifiers import label
from catalog.models import Grant
from catalog.privileges import words
from catalog.services.engine import audit_records

_MAX_ROWS = 1000


def delete_expired() -> int:
    """Delete the grants that have expired, with an audit event each; returns the number."""
    with transaction.atomic():
        rows = list(
            Grant.objects.filter(expires_at__lte=Now())
            .select_related("principal", "namespace", "table__namespace")
            .select_for_update(of=("self",), skip_locked=True)
            .order_by("pk")[:_MAX_ROWS]
        )
        for row in rows:
            record(row)
        Grant.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def record(row: Grant) -> None:
    """Record in the audit trail that a grant has expired, in the transaction that deletes it."""
    values = {"principal": row.principal.name, "privileges": words(row.privileges)}
    audit_records.record(SYSTEM, "grant.expire", label(row.target.identifier), before=values)
