"""What the columns of Iceberg views are made from."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0044_table_column_use")]

    operations = [
        migrations.AddField(
            model_name="viewquery",
            name="columns",
            field=models.JSONField(
                help_text="What the columns of the view are made from, in the form of "
                "catalog.formats.iceberg.views.stored_columns; null: not derived yet.",
                null=True,
            ),
        ),
    ]
