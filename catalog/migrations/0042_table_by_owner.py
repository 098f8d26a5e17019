"""Sorts lists of all tables by owner."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("catalog", "0041_table_summaries")]

    operations = [
        AddIndexConcurrently(
            model_name="table",
            index=models.Index(
                fields=["owner", "id"], condition=~Q(state="dropped"), name="table_by_owner"
            ),
        ),
    ]
