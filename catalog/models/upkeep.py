from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from catalog.models.maintenance import Job
from catalog.models.namespaces import Namespace
from catalog.models.tables import Table


class MaintenancePolicy(models.Model):
    """How the tables of a namespace and all below it, or one table, are kept fast and small.

    ``values`` says what ``catalog.policies`` knows; what it leaves out comes from the policy of the
    namespace above, and at last from the defaults.
    """

    namespace = models.OneToOneField(
        Namespace, models.CASCADE, null=True, blank=True, related_name="maintenance_policy"
    )
    table = models.OneToOneField(
        Table, models.CASCADE, null=True, blank=True, related_name="maintenance_policy"
    )
    values = models.JSONField(default=dict, blank=True)
    updated_by = models.TextField(blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "maintenance policies"
        constraints = [
            models.CheckConstraint(
                condition=Q(namespace__isnull=False, table__isnull=True)
                | Q(namespace__isnull=True, table__isnull=False),
                name="policy_of_one_thing",
            ),
        ]

    def __str__(self) -> str:
        return f"policy of {self.table or self.namespace}"


class TableHealthQuerySet(models.QuerySet["TableHealth"]):
    def newest(self) -> Self:
        """The last measurement of each table."""
        return self.filter(is_newest=True)


class TableHealth(models.Model):
    """How well a table was at one moment: a point of its time series."""

    table = models.ForeignKey(Table, models.CASCADE, related_name="health")
    measured_at = models.DateTimeField(db_default=Now(), editable=False)
    is_newest = models.BooleanField(default=True)
    score = models.PositiveSmallIntegerField(help_text="From 0, all waits, to 100, all is well.")
    statistics = models.JSONField(help_text="catalog.planning.Statistics.")
    planned = models.JSONField(default=list, help_text="catalog.planning.Planned, each.")
    files_gone = models.BigIntegerField(default=0, help_text="What the plan would gain.")
    bytes_read = models.BigIntegerField(default=0, help_text="What the plan would cost.")

    objects = TableHealthQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "table health"
        constraints = [
            models.UniqueConstraint(
                fields=["table"], condition=Q(is_newest=True), name="health_one_newest"
            ),
        ]
        indexes = [
            models.Index(fields=["table", "measured_at"], name="health_series"),
            models.Index(
                fields=["score", "table"], condition=Q(is_newest=True), name="health_worst"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.table_id}: {self.score}"


class JobEvent(models.Model):
    """A line of a job's log."""

    class Level(models.TextChoices):
        INFO = "info"
        WARNING = "warning"
        ERROR = "error"

    job = models.ForeignKey(Job, models.CASCADE, related_name="events", db_index=False)
    at = models.DateTimeField(db_default=Now(), editable=False)
    level = models.TextField(choices=Level, default=Level.INFO)
    message = models.TextField()
    data = models.JSONField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["job", "id"], name="job_event_log")]

    def __str__(self) -> str:
        return self.message
