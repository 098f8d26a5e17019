"""Files that purges left in place stay those of the purged tables."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0049_failed_jobs")]

    operations = [
        migrations.CreateModel(
            name="RemainingFiles",
            fields=[
                (
                    "table",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="remaining_files",
                        serialize=False,
                        to="catalog.table",
                    ),
                ),
                (
                    "checked_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="Time of the last review of the directories.",
                        null=True,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "remaining files",
                "indexes": [
                    models.Index(
                        models.OrderBy(models.F("checked_at"), nulls_first=True),
                        name="remaining_files_by_review",
                    )
                ],
            },
        ),
    ]
