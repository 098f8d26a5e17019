"""The order in which the scheduler serves tables, and the sizes of jobs from which costs are learned."""

from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("catalog", "0037_views_index")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="planned_bytes",
            field=models.BigIntegerField(
                blank=True,
                help_text="Bytes that the plan of a scheduled job reads and writes.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="tablehealth",
            name="namespace",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="Top-level namespace of the table when it was measured; empty for the root.",
            ),
        ),
        migrations.AddField(
            model_name="tablehealth",
            name="due_since",
            field=models.DateTimeField(
                blank=True, help_text="Since when the table has needed a job.", null=True
            ),
        ),
        migrations.AddField(
            model_name="tablehealth",
            name="turn",
            field=models.DateTimeField(
                db_default=Now(),
                editable=False,
                help_text="Tables of a namespace get jobs in this order (catalog.scheduling.turns).",
            ),
        ),
    ]
