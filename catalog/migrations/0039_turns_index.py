"""Finds the tables of a namespace whose turn it is."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("catalog", "0038_turns")]

    operations = [
        AddIndexConcurrently(
            model_name="tablehealth",
            index=models.Index(
                fields=["namespace", "turn", "table"],
                condition=Q(is_newest=True),
                name="health_turns",
            ),
        ),
    ]
