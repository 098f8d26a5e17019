"""Queries by the columns that they compare, from which missing indexes are suggested."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0043_table_terms")]

    operations = [
        migrations.CreateModel(
            name="TableColumnUse",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                (
                    "column",
                    models.TextField(help_text="The path of the column, as the query spells it."),
                ),
                (
                    "use",
                    models.TextField(
                        help_text="A comparison of catalog.formats.lance.filters, or 'vector' and a "
                        "distance type."
                    ),
                ),
                ("queries", models.BigIntegerField(default=0)),
                (
                    "table",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="column_use",
                        to="catalog.table",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "use of columns",
                "indexes": [models.Index(fields=["day"], name="table_column_use_day")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("table", "day", "column", "use"), name="table_column_use_of_day"
                    )
                ],
            },
        ),
    ]
