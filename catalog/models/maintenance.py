"""Maintenance: policies, measurements of tables, and jobs with their logs."""

from typing import Self

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from catalog import maintenance_actions
from catalog.models.namespaces import Namespace
from catalog.models.tables import Table
from catalog.models.transactions import Transaction


class JobKind(models.TextChoices):
    """The kinds of jobs that are not maintenance. The others are ``catalog.maintenance_actions``."""

    PURGE_TABLE = "purge_table", "Purge table"
    BUILD_INDEX = "build_index", "Build index"
    BACKFILL_COLUMN = "backfill_column", "Backfill column"
    REFRESH_VIEW = "refresh_view", "Refresh view"


def job_kinds() -> dict[str, str]:
    """All kinds of jobs, each with its name for people."""
    actions = {action.key: action.title for action in maintenance_actions.registered()}
    return {str(kind): str(kind.label) for kind in JobKind} | actions


class JobStatus(models.TextChoices):
    """The states of a job. The row is the truth; the broker is only a hint to look at it.

    queued ──worker takes it──▶ running ──▶ succeeded
      │  ▲                        │  │
      │  └──lease ran out─────────┘  └─────▶ failed (refused, or after its last attempt)
      └──▶ canceled ◀── (a running job sees the request and stops)
    """

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Engine(models.TextChoices):
    """The program that does the work of a job."""

    WORKER = "worker"
    SPARK = "spark"


class JobQuerySet(models.QuerySet["Job"]):
    def purges(self) -> Self:
        """Purges that have ended. They may have left files in place."""
        return self.filter(kind=JobKind.PURGE_TABLE, status=JobStatus.SUCCEEDED)

    def complete_purges(self) -> Self:
        """Purges that left no files in the directories of their table."""
        remaining = RemainingFiles.objects.filter(table=models.OuterRef("table"))
        return self.purges().filter(~models.Exists(remaining))


class Job(models.Model):
    """Background work after a commit, with the privileges of the principal who requested it.

    The jobs of a table run one at a time, in the order of their requests; any number may be queued.
    A job that waits for its next attempt lets later jobs run first. Dropping the table cancels queued
    jobs and asks a running job to stop; the purge waits until it has stopped.
    """

    has_details = True
    """False for a copy without parameters, result, error and log (``access.limit_jobs``)."""

    # Without choices: a new maintenance action must not require a migration.
    kind = models.TextField()
    status = models.TextField(choices=JobStatus, default=JobStatus.QUEUED)
    table = models.ForeignKey(Table, models.CASCADE, related_name="jobs")
    transaction = models.ForeignKey(
        Transaction, models.PROTECT, null=True, blank=True, related_name="jobs"
    )
    parameters = models.JSONField(
        default=dict, blank=True, help_text="Parameters of the request; they depend on the kind."
    )
    is_dry_run = models.BooleanField(
        default=False, help_text="Whether the job only reports the changes it would make."
    )
    attempts = models.PositiveSmallIntegerField(default=0)
    progress = models.BigIntegerField(
        default=0, help_text="Number of processed rows or removed files."
    )
    total = models.BigIntegerField(
        null=True, blank=True, help_text="Total number of rows or files, once known."
    )
    result = models.JSONField(null=True, blank=True, help_text="Result of the job.")
    error = models.TextField(blank=True)
    engine = models.TextField(
        choices=Engine,
        blank=True,
        default="",
        db_default="",
        help_text="Empty until the job has chosen one.",
    )
    engine_reason = models.TextField(blank=True, default="", db_default="")
    engine_profile = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Name of the engine profile, for jobs that may use Spark.",
    )
    stages = models.JSONField(
        db_default=[],
        default=list,
        blank=True,
        help_text="Stages of the last attempt: name, began_at, and bytes if known.",
    )
    spark_ui = models.TextField(
        blank=True, default="", db_default="", help_text="URL of Spark's own pages."
    )
    limit_key = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Jobs that the scheduler started under one policy have the same key.",
    )
    limit = models.PositiveIntegerField(
        null=True, blank=True, help_text="Maximum number of running jobs with the same key."
    )
    planned_bytes = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Bytes that the plan of a scheduled job reads and writes.",
    )
    cancel_requested = models.BooleanField(default=False)
    lease_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="A running job that does not renew its lease is taken over.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["table"],
                condition=models.Q(status=JobStatus.RUNNING),
                name="job_one_running_per_table",
            ),
        ]
        indexes = [
            models.Index(
                fields=["created_at"],
                condition=models.Q(status__in=[JobStatus.QUEUED, JobStatus.RUNNING]),
                name="job_active",
            ),
            models.Index(
                fields=["table"],
                condition=models.Q(status__in=[JobStatus.QUEUED, JobStatus.RUNNING]),
                name="job_active_of_table",
            ),
            # Finds the last job of a kind for a table, and recent jobs.
            models.Index(fields=["table", "kind", "-id"], name="job_last_of_kind"),
            models.Index(fields=["finished_at"], name="job_finished"),
            # Find the newest failed jobs: of the catalog, and of some tables, whatever fails elsewhere.
            models.Index(
                fields=["created_at"],
                condition=models.Q(status=JobStatus.FAILED),
                name="job_failed",
            ),
            models.Index(
                fields=["table", "created_at"],
                condition=models.Q(status=JobStatus.FAILED),
                name="job_failed_of_table",
            ),
        ]

    def __str__(self) -> str:
        return f"Job {self.pk}: {self.label}"

    @property
    def label(self) -> str:
        """The name of the kind for people; of a kind of another release, the kind itself."""
        return job_kinds().get(self.kind, self.kind)

    @property
    def unit(self) -> str:
        """The unit of ``progress`` and ``total``."""
        action = maintenance_actions.find(self.kind)
        if action is not None:
            return action.unit
        return "rows" if self.kind in _COUNTED_IN_ROWS else "files"

    @property
    def leaves_out_files(self) -> bool:
        """True if the process of this job leaves out the files that the catalog names with the table."""
        return "skipped" in (self.result or {})

    @property
    def summary(self) -> str:
        """The result of maintenance as a phrase; empty if there is none."""
        return maintenance_actions.summarize(self.kind, self.result, is_dry_run=self.is_dry_run)


_COUNTED_IN_ROWS = {JobKind.BUILD_INDEX, JobKind.BACKFILL_COLUMN, JobKind.REFRESH_VIEW}


class RemainingFiles(models.Model):
    """A dropped table in whose directories files remain after its purge. They are still the table's.

    Or clients may still write files there. The row is deleted when a review finds the directories empty, and all
    credentials for them have expired.
    """

    table = models.OneToOneField(
        Table, models.CASCADE, primary_key=True, related_name="remaining_files"
    )
    checked_at = models.DateTimeField(
        null=True, blank=True, help_text="Time of the last review of the directories."
    )

    class Meta:
        verbose_name_plural = "remaining files"
        indexes = [
            models.Index(
                models.F("checked_at").asc(nulls_first=True), name="remaining_files_by_review"
            ),
        ]

    def __str__(self) -> str:
        return f"remaining files of {self.table}"


class MaintenancePolicy(models.Model):
    """The maintenance policy of a table, or of the tables in a namespace and below it.

    ``values`` holds settings of ``catalog.policies``. Missing settings are inherited from the parent
    namespaces, and finally from the defaults.
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
    """A measurement of a table's health: one point of a time series."""

    table = models.ForeignKey(Table, models.CASCADE, related_name="health")
    measured_at = models.DateTimeField(db_default=Now(), editable=False)
    is_newest = models.BooleanField(default=True)
    score = models.PositiveSmallIntegerField(
        help_text="From 0 (maintenance needed) to 100 (healthy)."
    )
    statistics = models.JSONField(help_text="catalog.planning.Statistics.")
    planned = models.JSONField(default=list, help_text="A list of catalog.planning.Planned.")
    files_gone = models.BigIntegerField(
        default=0, help_text="Number of files that the plan would remove."
    )
    bytes_read = models.BigIntegerField(
        default=0, help_text="Number of bytes that the plan would read."
    )

    namespace = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Top-level namespace of the table when it was measured; empty for the root.",
    )
    due_since = models.DateTimeField(
        null=True, blank=True, help_text="Since when the table has needed a job."
    )
    turn = models.DateTimeField(
        db_default=Now(),
        editable=False,
        help_text="Tables of a namespace get jobs in this order (catalog.scheduling.turns).",
    )

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
            models.Index(
                fields=["namespace", "turn", "table"],
                condition=Q(is_newest=True),
                name="health_turns",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.table_id}: {self.score}"


class TableUse(models.Model):
    """The reads of a table on a day (UTC)."""

    table = models.ForeignKey(Table, models.CASCADE, related_name="use", db_index=False)
    day = models.DateField()
    loads = models.BigIntegerField(default=0)
    scans = models.BigIntegerField(default=0)
    queries = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "table use"
        constraints = [
            models.UniqueConstraint(fields=["table", "day"], name="table_use_of_day"),
        ]
        indexes = [models.Index(fields=["day"], name="table_use_day")]

    def __str__(self) -> str:
        return f"{self.table_id}: {self.day}"

    @property
    def reads(self) -> int:
        """The number of reads. A scan usually follows a load, so it is the larger of both counts."""
        return max(self.loads, self.scans + self.queries)


class TableColumnUse(models.Model):
    """Queries over HTTP that an index on a column of a Lance table serves, on a day (UTC)."""

    table = models.ForeignKey(Table, models.CASCADE, related_name="column_use", db_index=False)
    day = models.DateField()
    column = models.TextField(help_text="The path of the column, as the query spells it.")
    use = models.TextField(
        help_text="A comparison of catalog.formats.lance.filters, or 'vector' and a distance type."
    )
    queries = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "use of columns"
        constraints = [
            models.UniqueConstraint(
                fields=["table", "day", "column", "use"], name="table_column_use_of_day"
            ),
        ]
        indexes = [models.Index(fields=["day"], name="table_column_use_day")]

    def __str__(self) -> str:
        return f"{self.table_id}: {self.column}, {self.day}"


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
