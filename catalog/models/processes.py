"""The background processes of an installation, as they report themselves."""

from django.db import models
from django.db.models.functions import Now


class ProcessRole(models.TextChoices):
    JOB_WORKER = "jobs", "worker for jobs"
    TASK_WORKER = "tasks", "worker for periodic tasks"
    WORKER = "worker", "worker for jobs and periodic tasks"
    BEAT = "beat", "scheduler of periodic tasks"


class Heartbeat(models.Model):
    """A running worker or beat, which updates its row every few seconds. Times are the database's."""

    name = models.TextField(primary_key=True, help_text="Unique among the processes that run.")
    role = models.TextField(choices=ProcessRole)
    started_at = models.DateTimeField(db_default=Now(), editable=False)
    seen_at = models.DateTimeField(db_default=Now(), editable=False)
    concurrency = models.PositiveIntegerField(default=1)
    missing_for_spark = models.TextField(
        blank=True, help_text="Why the worker cannot run Spark; empty if it can."
    )
    missing_for_iceberg = models.TextField(
        blank=True, help_text="Why the worker cannot maintain Iceberg tables; empty if it can."
    )
    missing_for_profiles = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="Engine profiles on which the worker cannot run jobs, each with the reason.",
    )
    is_downloading = models.BooleanField(
        default=False, help_text="Whether libraries of Spark are being fetched."
    )

    def __str__(self) -> str:
        return self.name
