from collections.abc import Collection
from typing import Any, Self

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Func, Q, Window
from django.db.models.functions import Lead, Now

from catalog.models.tables import Table
from catalog.models.transactions import Transaction

# The texts of the index, to the letter: with parameters in them the planner would not know it.
_FILE_NAME = Func(
    F("manifest_path"),
    template="split_part(rtrim(%(expressions)s, '/.'), '/', -1)",
    output_field=models.TextField(),
)
_IS_WHOLE = Q(
    Func(
        F("manifest_path"),
        template="(%(expressions)s ~ '^(/|file:)')",
        output_field=models.BooleanField(),
    )
)


def file_name(location: str) -> str:
    """The last part of a path or URI, as the index of the ledger has it."""
    return location.rstrip("/.").rpartition("/")[2]


class TableVersionQuerySet(models.QuerySet["TableVersion"]):
    def visible(self) -> Self:
        """Versions that were not deleted."""
        return self.filter(deleted_at=None)

    def on(self, branch: str) -> Self:
        return self.filter(branch=branch)

    def with_end(self) -> Any:
        """With ``ended_at``: since when a version is not the newest of its branch any more."""
        return self.annotate(
            ended_at=Window(
                Lead("created_at"), partition_by=F("branch"), order_by=F("version").asc()
            )
        )

    def in_files_named(self, names: Collection[str]) -> Self:
        """Versions whose file's last name is one of these, if they name it as a path or URI.

        So do Iceberg's, each as its client spelled it, perhaps by a link. Lance's are relative.
        """
        return self.alias(file_name=_FILE_NAME).filter(_IS_WHOLE, file_name__in=names)


class TableVersion(models.Model):
    """One entry of the ledger: a version of a table and the metadata file that is this version.

    A deleted version stays as a tombstone: a number once used never comes back. While
    ``staged_path`` is set, the manifest may still have its staged name and ``manifest_path`` is
    the one it will have.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="versions",
        # The statement that writes a version locks its table, and tables are never deleted: the
        # database need not check again, which took an eighth of its time for a batch of ten.
        db_constraint=False,
        db_index=False,  # table_version_unique serves
    )
    branch = models.TextField(blank=True, default="", help_text="Empty is main.")
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
        # Written in one statement with its transaction, so the database need not check it; and a
        # transaction tells itself what it did, so nobody looks for its versions.
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
            # The few rows whose manifest is still to be moved.
            models.Index(
                fields=["created_at"],
                condition=models.Q(staged_path__isnull=False),
                name="table_version_staged",
            ),
            # Finds who else has a metadata file, before it is removed.
            models.Index(_FILE_NAME, condition=_IS_WHOLE, name="table_version_file_name"),
            # What came and went between two moments. Rows lie in the order of their times, so the
            # first is some pages for a million rows and takes nothing from a commit.
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
    """When a table's ledger was last compared with the manifests in storage."""

    table = models.OneToOneField(
        Table, models.CASCADE, primary_key=True, related_name="ledger_check"
    )
    checked_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"check of {self.table}"
