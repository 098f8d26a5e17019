"""Figures by which long lists of tables are sorted. A periodic task fills them."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F

from catalog.models.audit import TransactionIdField


class Migration(migrations.Migration):
    dependencies = [("catalog", "0040_referenced_directories")]

    operations = [
        migrations.CreateModel(
            name="TableSummary",
            fields=[
                (
                    "table",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="summary",
                        serialize=False,
                        to="catalog.table",
                    ),
                ),
                (
                    "name",
                    models.TextField(
                        db_collation="C",
                        help_text="The full name, shortened to 500 characters.",
                    ),
                ),
                (
                    "rows",
                    models.BigIntegerField(help_text="Of the newest measurement.", null=True),
                ),
                (
                    "bytes",
                    models.BigIntegerField(help_text="Of the newest measurement.", null=True),
                ),
                (
                    "score",
                    models.PositiveSmallIntegerField(
                        help_text="Of the newest measurement.", null=True
                    ),
                ),
                (
                    "committed_at",
                    models.DateTimeField(
                        help_text="Creation of main's newest version.", null=True
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "table summaries",
                "indexes": [
                    models.Index(fields=["name", "table"], name="summary_name"),
                    *(
                    models.Index(
                        F(column).desc(nulls_last=True), F("table").desc(), name=f"summary_{name}"
                    )
                    for column, name in (
                        ("rows", "rows"),
                        ("bytes", "bytes"),
                        ("score", "score"),
                        ("committed_at", "committed"),
                    )),
                ],
            },
        ),
        migrations.CreateModel(
            name="TableSummaryCursor",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(default=1, primary_key=True, serialize=False),
                ),
                (
                    "xid",
                    TransactionIdField(help_text="AuditEvent.xid of the last processed event."),
                ),
                (
                    "event",
                    models.BigIntegerField(help_text="AuditEvent.id of the last processed event."),
                ),
                (
                    "next_table",
                    models.BigIntegerField(
                        help_text="The first table without a summary yet; null: all have one.",
                        null=True,
                    ),
                ),
            ],
        ),
    ]
