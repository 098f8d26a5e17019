from collections.abc import Collection
from typing import Any, Self

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Func, Q, Window
from django.db.models.functions import Lead, Now

from catalog.models.tables import Table
from catalog.models.transactions import Transaction

# These must match the expressions of the index exactly: with parameters, PostgreSQL's planner would
# not use it.
_FILE_NAME = Func(
    F("manifest_path"),
    template="split_part(rtrim(%(expressions)s, '/.'), '/', -1)",
    output_field=models.TextField(),
)
_IS_WHOLE = Q(
    Func(
        F("manifest_path"),
        template="(%(expressions)s ~ '^(/|file:|s3://|gs://|abfss://)')",
        output_field=models.BooleanField(),
    )
)


def file_name(location: str) -> str:
    """The last part of a path or URI, as in the index of the ledger."""
    return location.rstrip("/.").rpartition("/")[2]


class TableVersionQuerySet(models.QuerySet["TableVersion"]):
    def visible(self) -> Self:
        """Versions that were not deleted."""
        return self.filter(deleted_at=None)

    def on(self, branch: str) -> Self:
        return self.filter(branch=branch)

    def with_end(self) -> Any:
        """Annotate ``ended_at``: the time from which a version is no longer the newest of its branch."""
        return self.annotate(
            ended_at=Window(
                Lead("created_at"), partition_by=F("branch"), order_by=F("version").asc()
            )
        )

    def in_files_named(self, names: Collection[str]) -> Self:
        """Versions whose metadata file has one of these names, if they have a full path or URI.

        Iceberg's versions have one, as the client wrote it, perhaps through a link. Lance's paths are
        relative.
        """
        return self.alias(file_name=_FILE_NAME).filter(_IS_WHOLE, file_name__in=names)


class TableVersion(models.Model):
    """An entry of the ledger: a version of a table and its metadata file.

    A deleted version remains as a tombstone, because its number is never used again. While
    ``staged_path`` is set, the manifest may still have its staged name, and ``manifest_path`` is its
    future name.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="versions",
        # The statement that writes a version locks its table, and tables are never deleted, so the
        # database need not check the key. The check took an eighth of the time of a batch of ten.
        db_constraint=False,
        db_index=False,  # table_version_unique serves
    )
    branch = models.TextField(blank=True, default="", help_text="Empty: main.")
    version = models.BigIntegerField()
    manifest_path = models.TextField()
    staged_path = models.TextField(null=True, blank=True, editable=False)
    manifest_size = models.BigIntegerField(null=True, blank=True)
    e_tag = models.TextField(null=True, blank=True)
    metadata = models.JSONField(null=True, blank=True)
    transaction = models.ForeignKey(
        Transaction,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="versions",
        # Written in one statement with its transaction, so the database need not check the key. A
        # transaction records its own operations, so no query looks up its versions.
        db_constraint=False,
        db_index=False,
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = TableVersionQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["table", "branch", "version"], name="table_version_unique"
            ),
            models.CheckConstraint(condition=models.Q(version__gte=0), name="table_version_number"),
        ]
        indexes = [
            # The few rows whose manifest has not been moved yet.
            models.Index(
                fields=["created_at"],
                condition=models.Q(staged_path__isnull=False),
                name="table_version_staged",
            ),
            # Finds other versions with the same metadata file, before it is removed.
            models.Index(_FILE_NAME, condition=_IS_WHOLE, name="table_version_metadata_file"),
            # Find versions created or deleted between two moments. Rows are stored in order of
            # creation, so the first index takes a few pages for a million rows and no time of a
            # commit.
            BrinIndex(fields=["created_at"], name="table_version_entered", autosummarize=True),
            models.Index(
                fields=["deleted_at"],
                condition=models.Q(deleted_at__isnull=False),
                name="table_version_deleted",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.branch}@{self.version}" if self.branch else str(self.version)


class LedgerCheck(models.Model):
    """The time of the last comparison of a table's ledger with the manifests in storage."""

    table = models.OneToOneField(
        Table, models.CASCADE, primary_key=True, related_name="ledger_check"
    )
    checked_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"check of {self.table}"
