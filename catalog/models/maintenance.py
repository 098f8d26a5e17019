from django.db import models
from django.db.models.functions import Now

from catalog.models.tables import Table
from catalog.models.transactions import Transaction


class JobKind(models.TextChoices):
    PURGE_TABLE = "purge_table", "remove the data of a dropped table"


class JobStatus(models.TextChoices):
    """The states of a job. The row is the truth; the broker is only a hint to look at it.

    queued ──worker takes it──▶ running ──▶ succeeded
      │  ▲                        │  │
      │  └──lease ran out─────────┘  └─────▶ failed (after its last attempt)
      └──▶ canceled ◀── (a running job sees the request and stops)
    """

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Job(models.Model):
    """Work that goes on after a commit."""

    kind = models.TextField(choices=JobKind)
    status = models.TextField(choices=JobStatus, default=JobStatus.QUEUED)
    table = models.ForeignKey(Table, models.CASCADE, related_name="jobs")
    transaction = models.ForeignKey(
        Transaction, models.PROTECT, null=True, blank=True, related_name="jobs"
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    progress = models.BigIntegerField(default=0, help_text="Files removed so far.")
    error = models.TextField(blank=True)
    cancel_requested = models.BooleanField(default=False)
    lease_until = models.DateTimeField(
        null=True, blank=True, help_text="A running job that does not renew it is taken over."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["table"],
                condition=models.Q(status__in=[JobStatus.QUEUED, JobStatus.RUNNING]),
                name="job_one_active_per_table",
            ),
        ]
        indexes = [
            models.Index(
                fields=["created_at"],
                condition=models.Q(status__in=[JobStatus.QUEUED, JobStatus.RUNNING]),
                name="job_active",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
