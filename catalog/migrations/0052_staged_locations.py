"""Locations of staged creations are reserved while their principals have credentials for them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0051_former_purges")]

    operations = [
        migrations.CreateModel(
            name="StagedLocation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("location", models.TextField(help_text="Canonical.")),
                (
                    "principal",
                    models.TextField(help_text="Name of the principal that has the credentials."),
                ),
                (
                    "until",
                    models.DateTimeField(
                        db_index=True, help_text="When the credentials have expired."
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["location"],
                        name="staged_location_prefix",
                        opclasses=["text_pattern_ops"],
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("location", "principal"), name="staged_location_once"
                    )
                ],
            },
        ),
    ]
