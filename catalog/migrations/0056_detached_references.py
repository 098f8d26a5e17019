"""Detached references are marked, so that they are not recorded again."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0055_restored_at")]

    operations = [
        migrations.AddField(
            model_name="filereference",
            name="is_detached",
            field=models.BooleanField(
                default=False,
                db_default=False,
                help_text="Whether the owner of the source has ended the reference: it opens no files, and keeps none.",
            ),
        ),
        migrations.AlterField(
            model_name="filereference",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                editable=False,
                help_text="When it was committed first, perhaps as one to a table that had the directories before.",
            ),
        ),
    ]
