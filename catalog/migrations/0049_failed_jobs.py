"""Finds the newest failed jobs of the tables that a principal may browse, and its dropped tables."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("catalog", "0048_table_by_drop")]

    operations = [
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["created_at"], condition=Q(status="failed"), name="job_failed"
            ),
        ),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(
                fields=["table", "created_at"],
                condition=Q(status="failed"),
                name="job_failed_of_table",
            ),
        ),
        AddIndexConcurrently(
            model_name="table",
            index=models.Index(
                fields=["owner"], condition=Q(state="dropped"), name="table_dropped_of_owner"
            ),
        ),
    ]
