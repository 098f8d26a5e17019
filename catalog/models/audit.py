from typing import Any

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models.functions import Now


class TransactionIdField(models.Field):  # type: ignore[type-arg]
    """PostgreSQL's 64-bit transaction id (xid8), as an integer. It never wraps around."""

    description = "PostgreSQL's transaction id"

    def db_type(self, connection: Any) -> str:
        return "xid8"

    def get_internal_type(self) -> str:
        return "TransactionIdField"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> int | None:
        return None if value is None else int(value)

    def to_python(self, value: Any) -> int | None:
        return None if value is None else int(value)

    def get_prep_value(self, value: Any) -> Any:
        # As text: PostgreSQL compares xid8 only with xid8, and casts an untyped literal to it.
        return str(value) if isinstance(value, int) else super().get_prep_value(value)


class Interface(models.TextChoices):
    """The interface through which a request came in."""

    LANCE = "lance", "Lance"
    ICEBERG = "iceberg", "Iceberg"
    MANAGEMENT = "management", "Management"
    ADMIN = "admin", "Admin"
    JOB = "job", "Job"
    COMMAND = "command", "Command line"
    SYSTEM = "system", "System"


class Outcome(models.TextChoices):
    DONE = "done", "Done"
    REFUSED = "refused", "Refused"


class AuditEvent(models.Model):
    """A change with its actor, time and request. Written in the transaction of the change.

    It names its target by text rather than by foreign keys, because the event outlives the row.

    The table is partitioned by month of ``at``, so the database's primary key is (id, at). ``id`` is
    still unique, because a single sequence generates it. A trigger refuses UPDATE and DELETE.

    Readers that follow the trail read rows with ``xid < pg_snapshot_xmin(pg_current_snapshot())``
    in the order (xid, id): all transactions below that limit have ended, so no event is missed.
    """

    at = models.DateTimeField(db_default=Now(), editable=False)
    actor = models.TextField()
    action = models.TextField(help_text="Noun and verb, such as version.create.")
    target = models.TextField(help_text="Dotted name of the namespace or table.")
    table_uuid = models.UUIDField(null=True, blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    context = models.JSONField(null=True, blank=True, help_text="Context headers of the request.")
    request_id = models.TextField(blank=True)
    transaction_id = models.UUIDField(null=True, blank=True)
    xid = TransactionIdField(
        db_default=models.Func(function="pg_current_xact_id"),
        editable=False,
        help_text="The database transaction that wrote the event.",
    )
    interface = models.TextField(blank=True, db_default="", choices=Interface)
    key = models.TextField(
        blank=True, db_default="", help_text="The name of the API key or client; never a secret."
    )
    outcome = models.TextField(db_default=Outcome.DONE.value, choices=Outcome)
    error = models.TextField(
        blank=True,
        db_default="",
        help_text="Class and message of the error, if the request was refused.",
    )

    class Meta:
        indexes = [
            models.Index(fields=["table_uuid", "-id"], name="audit_of_table"),
            models.Index(fields=["xid", "id"], name="audit_in_order"),
            models.Index(fields=["actor", "-id"], name="audit_of_actor"),
            # Transaction ids increase with time, so this index grows only at its end.
            models.Index(
                fields=["transaction_id"],
                name="audit_of_transaction",
                condition=models.Q(transaction_id__isnull=False),
            ),
            models.Index(
                fields=["-id"], name="audit_refusals", condition=models.Q(outcome=Outcome.REFUSED)
            ),
            # Finds events between two moments: a few pages for a million events.
            BrinIndex(fields=["at"], name="audit_moments", autosummarize=True),
            # Finds the earlier names and lifetimes of a table, which its row lacks; they are few.
            models.Index(
                fields=["table_uuid", "id"],
                name="audit_of_lifetimes",
                condition=models.Q(
                    action__in=["table.rename", "view.rename", "table.undrop", "namespace.undrop"]
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"


class AuditSeal(models.Model):
    """A link of the hash chain that reveals tampering with the audit trail.

    Seals are numbered 1, 2, 3 … without gaps. ``digest`` is the SHA-256 of the event, and ``hash``
    that of the seal's own columns with ``previous``, the hash of the seal before it. See
    ``catalog.services.audit.chain``. Partitioned by month of ``sealed_at``; never altered.
    """

    number = models.BigIntegerField(primary_key=True)
    sealed_at = models.DateTimeField(db_default=Now(), editable=False)
    event_id = models.BigIntegerField(
        null=True, help_text="The sealed event; null: the catalog continued after a restore."
    )
    at = models.DateTimeField(null=True, help_text="When the event happened.")
    table_uuid = models.UUIDField(null=True)
    xid = TransactionIdField(
        help_text="Transaction id of the event; all events of older transactions are sealed."
    )
    digest = models.BinaryField()
    previous = models.BinaryField()
    hash = models.BinaryField()

    class Meta:
        indexes = [
            models.Index(fields=["event_id"], name="audit_seal_of_event"),
            models.Index(fields=["table_uuid", "number"], name="audit_seal_of_table"),
        ]

    def __str__(self) -> str:
        return f"Seal {self.number}"
