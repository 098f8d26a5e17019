from django.db import models
from django.db.models.functions import Now


class AuditEvent(models.Model):
    """Who changed what, when, and through which request. Written with the change, never altered.

    It names its target by words rather than by foreign keys: the event outlives the row.
    """

    at = models.DateTimeField(db_default=Now(), editable=False)
    actor = models.TextField()
    action = models.TextField(help_text="Noun and verb: version.create.")
    target = models.TextField(help_text="The namespace or table, dotted.")
    table_uuid = models.UUIDField(null=True, blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    context = models.JSONField(null=True, blank=True, help_text="Context headers of the request.")
    request_id = models.TextField(blank=True)
    transaction_id = models.UUIDField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["table_uuid", "-id"], name="audit_of_table"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"
