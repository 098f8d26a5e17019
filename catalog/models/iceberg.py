import uuid
from typing import Self

from django.db import models
from django.db.models.functions import Now

from catalog.models.namespaces import Namespace
from catalog.models.tables import Table, TableState


class IcebergMetadata(models.Model):
    """The current metadata of an Iceberg table or view, as it is sent.

    Reading a table is by far the commonest request, so the answer lies here ready and compressed;
    parsing and writing 1 MB of JSON anew costs thirty times as much.
    """

    table = models.OneToOneField(
        Table, models.CASCADE, primary_key=True, related_name="iceberg_metadata"
    )
    metadata_location = models.TextField(help_text="The metadata file that holds the same.")
    sequence = models.BigIntegerField(help_text="Its version in the ledger, counted from 0.")
    answer = models.BinaryField(help_text="The gzip-compressed JSON answer to loadTable.")
    etag = models.TextField(help_text="Names this answer, with its quotes.")
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "Iceberg metadata"

    def __str__(self) -> str:
        return self.metadata_location


class StagedFile(models.Model):
    """A metadata file that is about to be written, noted before it is.

    The commit that makes the file current removes the note. A note that stays tells of a commit
    that was cut off, and a periodic pass removes its file. So a server that is killed leaves no file
    unaccounted for. A database that is killed may: notes of commits to tables that exist reach its
    disk up to 0.6 s late.
    """

    path = models.TextField(primary_key=True, help_text="Absolute local path.")
    is_condemned = models.BooleanField(
        default=False, db_default=False, help_text="The pass is about to remove it."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False, db_index=True)

    def __str__(self) -> str:
        return self.path


class IcebergPathQuerySet(models.QuerySet["IcebergPath"]):
    def inside(self, location: str) -> Self:
        """Paths that lie in a directory, or are that, of tables that need their files."""
        return self.filter(
            models.Q(path=location) | models.Q(path__startswith=location + "/"),
            ~models.Q(table__state=TableState.DROPPED)
            | models.Q(
                table__trash__job__status__in=["queued", "running"],
                table__trash__purge_begun_at=None,
            ),
        )


class IcebergPath(models.Model):
    """A directory outside an Iceberg table's location in which files of it may lie.

    Its properties name one, it was registered from one, or it was its location before it moved.
    Once entered it stays: older snapshots keep their files where they are.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="paths",
        db_index=False,  # iceberg_path_unique serves
    )
    path = models.TextField(help_text="Canonical local path.")

    objects = IcebergPathQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["table", "path"], name="iceberg_path_unique"),
        ]
        indexes = [
            models.Index(
                fields=["path"], name="iceberg_path_prefix", opclasses=["text_pattern_ops"]
            ),
        ]

    def __str__(self) -> str:
        return self.path


class IdempotencyRecord(models.Model):
    """How a request of either protocol ended that carried an Idempotency-Key.

    A success is noted in the transaction of the change itself, so the same key can never change
    anything twice; its answer follows right after. Without one (a server killed in between) the
    answer is made anew from the catalog's present state, as the specification allows.
    """

    key = models.UUIDField()
    actor = models.TextField()
    fingerprint = models.TextField(help_text="SHA-256 of the request.")
    status = models.PositiveSmallIntegerField(null=True, help_text="None: not answered yet.")
    content = models.BinaryField(null=True)
    headers = models.JSONField(default=dict)
    transaction_id = models.UUIDField(null=True, help_text="What the request did.")
    created_at = models.DateTimeField(db_default=Now(), editable=False, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["key", "actor"], name="idempotency_key_unique"),
        ]

    def __str__(self) -> str:
        return str(self.key)


class MetricsReport(models.Model):
    """What an engine reported about a scan of a table or a commit to it."""

    class Kind(models.TextChoices):
        SCAN = "scan-report", "scan"
        COMMIT = "commit-report", "commit"

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="metrics_reports",
        db_index=False,  # metrics_of_table serves
    )
    kind = models.TextField(choices=Kind)
    snapshot_id = models.BigIntegerField(null=True)
    report = models.JSONField()
    actor = models.TextField(blank=True)
    at = models.DateTimeField(db_default=Now(), editable=False, db_index=True)

    class Meta:
        indexes = [models.Index(fields=["table", "-id"], name="metrics_of_table")]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class ScanPlan(models.Model):
    """A scan that the server planned and whose tasks a client has still to fetch."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    table = models.ForeignKey(Table, models.CASCADE, related_name="scan_plans")
    actor = models.TextField(blank=True)
    request = models.JSONField(help_text="What was asked for, snapshots resolved.")
    tasks = models.JSONField(default=list, help_text="For each plan task, the manifests it reads.")
    created_at = models.DateTimeField(db_default=Now(), editable=False, db_index=True)

    def __str__(self) -> str:
        return str(self.id)


class Function(models.Model):
    """A user-defined function that engines load (Iceberg REST specification, FunctionMetadata)."""

    namespace = models.ForeignKey(
        Namespace,
        models.PROTECT,
        related_name="functions",
        db_index=False,  # function_name_unique serves
    )
    name = models.TextField()
    metadata = models.JSONField(help_text="FunctionMetadata: uuid, definitions, versions, log.")
    owner = models.TextField(blank=True, help_text="The principal who created it.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], name="function_name_unique"),
        ]

    def __str__(self) -> str:
        return self.name
