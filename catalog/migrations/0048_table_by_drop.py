"""Finds the last dropped tables of the catalog."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("catalog", "0047_namespace_statistics")]

    operations = [
        AddIndexConcurrently(
            model_name="table",
            index=models.Index(
                fields=["dropped_at"], condition=Q(state="dropped"), name="table_by_drop"
            ),
        ),
    ]
