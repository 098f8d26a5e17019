"""Figures of tables, from which long lists of tables are sorted."""

from django.db import models
from django.db.models import F

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


class TableSummaryCursor(models.Model):
    """The last audit event that the summaries reflect. One row."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    xid = TransactionIdField(help_text="AuditEvent.xid of the last processed event.")
    event = models.BigIntegerField(help_text="AuditEvent.id of the last processed event.")
    next_table = models.BigIntegerField(
        null=True, help_text="The first table without a summary yet; null: all have one."
    )

    def __str__(self) -> str:
        return f"{self.xid}/{self.event}"
