from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from catalog.models.audit import TransactionIdField
from catalog.models.namespaces import Namespace


class Webhook(models.Model):
    """An endpoint to which the catalog sends its events by POST.

    Its position in the stream of events is ``(xid, event)``: later events are not queued yet.
    """

    name = models.CharField(max_length=100, unique=True)
    url = models.TextField(
        help_text="URL to which events are sent: https, or http to this machine."
    )
    secret = models.BinaryField(editable=False, help_text="The signing secret, encrypted.")
    types = ArrayField(
        models.TextField(),
        default=list,
        blank=True,
        help_text="Event types such as table.create, table.* or *; empty: all.",
    )
    namespace = models.ForeignKey(
        Namespace,
        models.CASCADE,
        null=True,
        blank=True,
        help_text="Only events in this namespace and below it; null: all events.",
    )
    is_active = models.BooleanField(default=True)
    xid = TransactionIdField(editable=False)
    event = models.BigIntegerField(default=0, editable=False)
    created_by = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.name


class DeliveryStatus(models.TextChoices):
    """An event on its way to a webhook.

    pending ──answered 2xx──▶ delivered
       │ ▲
       │ └──replayed── dead ◀──┐
       └──refused too often────┘
    """

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead", "dead letter"


class WebhookDelivery(models.Model):
    """An event for a webhook. Delivered events are kept for some days, dead letters longer."""

    webhook = models.ForeignKey(Webhook, models.CASCADE, related_name="deliveries")
    event = models.BigIntegerField(help_text="AuditEvent.id.")
    event_at = models.DateTimeField(
        help_text="AuditEvent.at, which identifies the partition of the event."
    )
    type = models.TextField()
    target = models.TextField()
    status = models.TextField(choices=DeliveryStatus, default=DeliveryStatus.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(db_default=Now(), help_text="Time of the next attempt.")
    answer = models.TextField(blank=True, help_text="Result of the last attempt.")
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "webhook deliveries"
        constraints = [
            models.UniqueConstraint(fields=["webhook", "event"], name="delivery_once"),
        ]
        indexes = [
            models.Index(
                fields=["due_at"],
                name="delivery_due",
                condition=Q(status=DeliveryStatus.PENDING),
            ),
            models.Index(fields=["webhook", "-id"], name="delivery_of_webhook"),
            models.Index(
                fields=["-id"], name="delivery_dead", condition=Q(status=DeliveryStatus.DEAD)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.target} to {self.webhook}"
