"""Tables know when they were last restored from the trash."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0054_staged_file_indexes")]

    operations = [
        migrations.AddField(
            model_name="table",
            name="restored_at",
            field=models.DateTimeField(
                null=True,
                blank=True,
                editable=False,
                help_text="When the table was last restored from the trash.",
            ),
        ),
    ]
