"""Finds the views whose SQL changed since it was parsed."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("catalog", "0036_view_sources")]

    operations = [
        AddIndexConcurrently(
            model_name="table",
            index=models.Index(
                fields=["id"],
                condition=Q(kind="view") & ~Q(state="dropped"),
                name="table_views",
            ),
        ),
    ]
