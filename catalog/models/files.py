from typing import Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from catalog.models.tables import Table


class FileReferenceQuerySet(models.QuerySet["FileReference"]):
    def attached(self) -> Self:
        """References that the owner of their source has not ended."""
        return self.filter(is_detached=False)


class FileReference(models.Model):
    """A reference of a table to files of another table, and the principal that committed it.

    Readers of the table may read files in the recorded directories through it, while that principal may
    read the source. Clean-up and removal of the source check such references first.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="file_references",
        db_index=False,  # file_reference_unique serves
    )
    source = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="dependent_references",
        help_text="The table that owns the files.",
    )
    principal = models.TextField(help_text="Name of the principal that committed the reference.")
    directories = ArrayField(
        models.TextField(),
        default=list,
        null=True,
        help_text=(
            "The directories of the source, with those below them, whose files may be read. NULL in"
            " references of servers that record none: all directories."
        ),
    )
    created_at = models.DateTimeField(
        db_default=Now(),
        editable=False,
        help_text="When it was committed first, perhaps as one to a table that had the directories before.",
    )

    is_detached = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the owner of the source has ended the reference: it opens no files, and keeps none.",
    )

    objects = FileReferenceQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["table", "source"], name="file_reference_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.table} → {self.source}"


class UnreadSnapshot(models.Model):
    """A snapshot of an Iceberg table whose manifests the commit that brought it in did not read to the end.

    They may name files of other tables. So they are read before files of any table are removed.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="unread_snapshots",
        db_index=False,  # unread_snapshot_unique serves
    )
    snapshot_id = models.BigIntegerField()
    is_whole = models.BooleanField(
        help_text="Whether all manifests of the snapshot must be read, not only those it added."
    )
    manifests_read = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text="Number of these manifests that were read, in the order of the manifest list.",
    )
    principal = models.TextField(help_text="Name of the principal that committed the snapshot.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["table", "snapshot_id"], name="unread_snapshot_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.table} @{self.snapshot_id}"


class FreeDirectory(models.Model):
    """A directory that belonged to no table when a table referred to files in it.

    It may become another table's later, which must not remove these files then.
    """

    table = models.ForeignKey(
        Table,
        models.CASCADE,
        related_name="free_directories",
        db_index=False,  # free_directory_unique serves
    )
    path = models.TextField(help_text="Canonical local path.")
    is_prefix = models.BooleanField(
        help_text="Whether the row stands for the directories below the path: a commit named too many to record each."
    )
    principal = models.TextField(help_text="Name of the principal that committed the reference.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "free directories"
        constraints = [
            models.UniqueConstraint(
                fields=["table", "path", "is_prefix"], name="free_directory_unique"
            ),
        ]
        indexes = [
            models.Index(
                fields=["path"], name="free_directory_prefix", opclasses=["text_pattern_ops"]
            ),
        ]

    def __str__(self) -> str:
        return f"{self.table} → {self.path}"
