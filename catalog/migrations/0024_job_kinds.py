from django.db import migrations, models


class Migration(migrations.Migration):
    """Remove the choices of the kind of a job. Changes no row and no column."""

    dependencies = [("catalog", "0023_unread_snapshots")]

    operations = [
        migrations.AlterField(model_name="job", name="kind", field=models.TextField()),
    ]
