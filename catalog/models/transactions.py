import secrets
import time
import uuid

from django.db import models
from django.db.models.functions import Now


def new_transaction_id() -> uuid.UUID:
    """Create a UUIDv7 (RFC 9562, section 5.7): ids in order of creation keep the index compact."""
    stamp = time.time_ns() // 1_000_000
    value = (stamp << 80) | secrets.randbits(80)
    value = value & ~(0xF << 76) | (0x7 << 76)
    value = value & ~(0x3 << 62) | (0x2 << 62)
    return uuid.UUID(int=value)


class TransactionStatus(models.TextChoices):
    """The spec's TransactionStatus, with the values of the protocol.

    A commit starts as Succeeded. A transaction that continues in a job (DropTable) starts as Queued:

        Queued ──▶ Running ──▶ Succeeded | Failed
           └──────────┴──────▶ Canceled
    """

    QUEUED = "Queued"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"


class Transaction(models.Model):
    """The operations of an atomic commit, which clients can describe by its id."""

    id = models.UUIDField(primary_key=True, default=new_transaction_id, editable=False)
    status = models.TextField(choices=TransactionStatus, default=TransactionStatus.SUCCEEDED)
    actor = models.TextField(blank=True)
    request_id = models.TextField(blank=True)
    operations = models.JSONField(
        default=list, help_text="The operations in order, with their changes."
    )
    properties = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return str(self.id)
