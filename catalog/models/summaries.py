"""Figures and terms of tables, by which long lists of tables are sorted and searched."""

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Func

from catalog.models.audit import TransactionIdField
from catalog.models.tables import Table


class TableSummary(models.Model):
    """The figures of a table that is not dropped, as of some seconds ago.

    ``catalog.services.tables.summaries`` follows the audit trail and keeps the rows. The row of a table that
    was dropped, or created, some seconds ago may still exist, or not exist yet.
    """

    table = models.OneToOneField(
        Table,
        models.CASCADE,
        primary_key=True,
        related_name="summary",
        db_constraint=False,  # tables are never deleted
    )
    name = models.TextField(
        db_collation="C", help_text="The full name, shortened to 500 characters."
    )
    rows = models.BigIntegerField(null=True, help_text="Of the newest measurement.")
    bytes = models.BigIntegerField(null=True, help_text="Of the newest measurement.")
    score = models.PositiveSmallIntegerField(null=True, help_text="Of the newest measurement.")
    committed_at = models.DateTimeField(null=True, help_text="Creation of main's newest version.")

    class Meta:
        verbose_name_plural = "table summaries"
        # Each is read in both directions. Tables without the figure are at the end.
        indexes = [
            models.Index(fields=["name", "table"], name="summary_name"),
            models.Index(F("rows").desc(nulls_last=True), F("table").desc(), name="summary_rows"),
            models.Index(F("bytes").desc(nulls_last=True), F("table").desc(), name="summary_bytes"),
            models.Index(F("score").desc(nulls_last=True), F("table").desc(), name="summary_score"),
            models.Index(
                F("committed_at").desc(nulls_last=True), F("table").desc(), name="summary_committed"
            ),
        ]

    def __str__(self) -> str:
        return f"summary of {self.table_id}"


class TableFollowerCursor(models.Model):
    """The last audit event that derived rows of tables reflect. One row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    xid = TransactionIdField(help_text="AuditEvent.xid of the last processed event.")
    event = models.BigIntegerField(help_text="AuditEvent.id of the last processed event.")
    next_table = models.BigIntegerField(
        null=True, help_text="The first table without a row yet; null: all have one."
    )

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.xid}/{self.event}"


class TableSummaryCursor(TableFollowerCursor):
    """The last audit event that the summaries reflect."""


class TableTerms(models.Model):
    """What lists of tables filter and search by, as of some seconds ago: the name, and marks.

    ``catalog.services.tables.terms`` keeps the rows and defines the marks. They are no part of
    ``TableSummary``, because every commit updates a summary, and its index entries.
    """

    table = models.OneToOneField(
        Table,
        models.CASCADE,
        primary_key=True,
        related_name="terms",
        db_constraint=False,  # tables are never deleted
    )
    name = models.TextField(help_text="The last part of the name.")
    marks = ArrayField(models.TextField())

    class Meta:
        verbose_name_plural = "table terms"
        indexes = [
            # A search reads the entries that were not merged yet, so they are few.
            GinIndex(
                F("marks"),
                Func(F("name"), function="monodon_grams"),
                name="table_terms",
                gin_pending_list_limit=512,
            ),
        ]

    def __str__(self) -> str:
        return f"terms of {self.table_id}"


class TableTermsCursor(TableFollowerCursor):
    """The last audit event that the terms reflect."""
