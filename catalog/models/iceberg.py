import uuid
from typing import Self

from django.db import models
from django.db.models.functions import Now

from catalog.models.namespaces import Namespace
from catalog.models.tables import Table, TableState
from catalog.storage import locations


class IcebergMetadata(models.Model):
    """The current metadata of an Iceberg table or view, in the form in which it is sent.

    Loading a table is by far the most frequent request, so its response is stored compressed.
    Parsing and serializing 1 MB of JSON would take thirty times as long.
    """

    table = models.OneToOneField(
        Table, models.CASCADE, primary_key=True, related_name="iceberg_metadata"
    )
    metadata_location = models.TextField(help_text="The metadata file with the same content.")
    sequence = models.BigIntegerField(help_text="Version number in the ledger, starting at 0.")
    answer = models.BinaryField(help_text="The gzip-compressed JSON answer to loadTable.")
    etag = models.TextField(help_text="ETag of this answer, including the quotes.")
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "Iceberg metadata"

    def __str__(self) -> str:
        return self.metadata_location


class StagedFile(models.Model):
    """A note of a metadata file, stored before the file is written.

    The commit that makes the file current removes the note. A remaining note belongs to an
    interrupted commit, and a periodic task removes its file. So a killed server leaves no orphaned
    file. A killed database may: notes of commits to existing tables reach its disk up to 0.6 s late.

    A note of a failed commit to an object store remains with its file until that task runs, because a
    write that was given up may still reach the store.

    Each commit adds a note and removes it, so the path is the only index.
    """

    path = models.TextField(primary_key=True, help_text="Canonical path.")
    is_condemned = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the clean-up pass is about to remove the file.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.path


class IcebergPathQuerySet(models.QuerySet["IcebergPath"]):
    def meeting(self, directory: str) -> Self:
        """Paths at a directory, below it or above it, of tables in any state."""
        return self.filter(
            models.Q(path__in=[directory, *locations.parents(directory)])
            | models.Q(path__startswith=directory + "/")
        )

    def inside(self, location: str) -> Self:
        """Paths at or below a directory, of tables that still need their files, or may be restored with them."""
        return self.filter(
            models.Q(path=location) | models.Q(path__startswith=location + "/"),
            ~models.Q(table__state=TableState.DROPPED)
            | models.Q(table__trash__isnull=False, table__trash__purge_begun_at=None),
        )


class IcebergPath(models.Model):
    """A directory outside an Iceberg table's location that may hold files of the table.

    The table's properties name it, the table was registered from it, or it is a former location.
    It is never removed: files of older snapshots stay in it.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="paths",
        db_index=False,  # iceberg_path_unique serves
    )
    path = models.TextField(help_text="Canonical local path.")
    created_at = models.DateTimeField(
        db_default=Now(), editable=False, help_text="When the table got the directory."
    )

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


class ViewQuery(models.Model):
    """The state in which the SQL of an Iceberg view was parsed for its sources.

    A periodic task parses views whose metadata or namespace differs from it.
    """

    view = models.OneToOneField(Table, models.CASCADE, primary_key=True, related_name="view_query")
    metadata_location = models.TextField(help_text="The metadata file whose SQL was taken.")
    within = models.BigIntegerField(help_text="Primary key of the namespace of the view then.")
    taken_at = models.DateTimeField(
        db_default=Now(), editable=False, help_text="When the parser was started."
    )
    parsed_at = models.DateTimeField(
        null=True, help_text="When the sources were stored; null: the parser has not ended."
    )
    problem = models.TextField(
        blank=True, help_text="Which SQL was not parsed, and why; empty: the sources are complete."
    )
    columns = models.JSONField(
        null=True,
        help_text="What the columns of the view are made from, in the form of "
        "catalog.formats.iceberg.views.stored_columns; null: not derived yet.",
    )

    class Meta:
        verbose_name_plural = "view queries"

    def __str__(self) -> str:
        return str(self.view)


class ViewSource(models.Model):
    """A name in the SQL of an Iceberg view, with the digest of an identifier that it may stand for.

    A name may stand for several identifiers. Those with a table or a view count, so a view reads
    whatever has the name at the time.
    """

    view = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="view_sources",
        db_index=False,  # view_source_unique serves
    )
    digest = models.UUIDField(help_text="catalog.identifiers.digest of the identifier.")
    name = models.TextField(
        help_text="The name as in the SQL, with unprintable characters replaced."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["view", "digest"], name="view_source_unique"),
        ]
        indexes = [models.Index(fields=["digest"], name="view_source_digest")]

    def __str__(self) -> str:
        return f"{self.view} → {self.name}"


class IdempotencyRecord(models.Model):
    """The outcome of a request with an Idempotency-Key, of either protocol.

    A success is recorded in the transaction of the change, so a key can never make a change twice.
    The response is stored right after. If it is missing because the server was killed in between, it
    is created from the catalog's present state, as the specification allows.
    """

    key = models.UUIDField()
    actor = models.TextField()
    fingerprint = models.TextField(help_text="SHA-256 of the request.")
    status = models.PositiveSmallIntegerField(
        null=True, help_text="HTTP status; null: not answered yet."
    )
    content = models.BinaryField(null=True)
    headers = models.JSONField(default=dict)
    transaction_id = models.UUIDField(null=True, help_text="Transaction of the request.")
    created_at = models.DateTimeField(db_default=Now(), editable=False, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["key", "actor"], name="idempotency_key_unique"),
        ]

    def __str__(self) -> str:
        return str(self.key)


class MetricsReport(models.Model):
    """An engine's report about a scan of a table or a commit to it."""

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
    """A planned scan with the tasks that the client fetches later."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    table = models.ForeignKey(Table, models.CASCADE, related_name="scan_plans")
    actor = models.TextField(blank=True)
    request = models.JSONField(help_text="The scan request, with resolved snapshots.")
    tasks = models.JSONField(default=list, help_text="The manifests that each plan task reads.")
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
    owner = models.TextField(
        blank=True, help_text="Name of the principal that created the function."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["namespace", "name"], name="function_name_unique"),
        ]

    def __str__(self) -> str:
        return self.name
