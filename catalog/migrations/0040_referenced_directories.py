"""References say which directories of their source may be read.

References that were recorded before, and those that servers of the older release record, keep their extent: all
directories of the source.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models


HELP = (
    "The directories of the source, with those below them, whose files may be read. NULL in"
    " references of servers that record none: all directories."
)


class Migration(migrations.Migration):
    dependencies = [("catalog", "0039_turns_index")]

    operations = [
        migrations.AddField(
            model_name="filereference",
            name="directories",
            field=ArrayField(base_field=models.TextField(), help_text=HELP, null=True, size=None),
        ),
        # Not as the default of the existing rows.
        migrations.AlterField(
            model_name="filereference",
            name="directories",
            field=ArrayField(
                base_field=models.TextField(), default=list, help_text=HELP, null=True, size=None
            ),
        ),
    ]
