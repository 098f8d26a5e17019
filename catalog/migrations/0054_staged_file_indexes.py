"""Notes of staged files have the index of their path only.

Each commit to an Iceberg table adds a note and removes it, so there are few, and no query searches for a prefix.
"""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0053_located_at")]

    operations = [
        migrations.AlterField(
            model_name="stagedfile",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(), editable=False
            ),
        ),
        migrations.RunSQL(
            "DROP INDEX IF EXISTS catalog_stagedfile_path_bea16378_like",
            "CREATE INDEX catalog_stagedfile_path_bea16378_like ON catalog_stagedfile (path text_pattern_ops)",
        ),
    ]
