"""What the SQL of Iceberg views names, for the lineage."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now


class Migration(migrations.Migration):
    dependencies = [("catalog", "0035_issued_memberships")]

    operations = [
        migrations.CreateModel(
            name="ViewQuery",
            fields=[
                (
                    "view",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="view_query",
                        serialize=False,
                        to="catalog.table",
                    ),
                ),
                (
                    "metadata_location",
                    models.TextField(help_text="The metadata file whose SQL was taken."),
                ),
                (
                    "within",
                    models.BigIntegerField(
                        help_text="Primary key of the namespace of the view then."
                    ),
                ),
                (
                    "taken_at",
                    models.DateTimeField(
                        db_default=Now(), editable=False, help_text="When the parser was started."
                    ),
                ),
                (
                    "parsed_at",
                    models.DateTimeField(
                        null=True,
                        help_text="When the sources were stored; null: the parser has not ended.",
                    ),
                ),
                (
                    "problem",
                    models.TextField(
                        blank=True,
                        help_text="Which SQL was not parsed, and why; empty: the sources are complete.",
                    ),
                ),
            ],
            options={"verbose_name_plural": "view queries"},
        ),
        migrations.CreateModel(
            name="ViewSource",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "digest",
                    models.UUIDField(help_text="catalog.identifiers.digest of the identifier."),
                ),
                (
                    "name",
                    models.TextField(
                        help_text="The name as in the SQL, with unprintable characters replaced."
                    ),
                ),
                (
                    "view",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="view_sources",
                        to="catalog.table",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["digest"], name="view_source_digest")],
                "constraints": [
                    models.UniqueConstraint(fields=["view", "digest"], name="view_source_unique")
                ],
            },
        ),
    ]
