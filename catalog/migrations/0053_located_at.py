"""Tables know since when they have their location."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0052_staged_locations")]

    operations = [
        # Present tables get the time of the migration, after which they certainly have their locations.
        migrations.AddField(
            model_name="table",
            name="located_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                editable=False,
                help_text="When the table got its location.",
            ),
        ),
        migrations.AlterField(
            model_name="icebergpath",
            name="created_at",
            field=models.DateTimeField(
                db_default=django.db.models.functions.datetime.Now(),
                editable=False,
                help_text="When the table got the directory.",
            ),
        ),
    ]
