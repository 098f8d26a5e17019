from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("catalog", "0011_upkeep")]

    operations = [
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(fields=["table", "kind", "-id"], name="job_last_of_kind"),
        ),
        AddIndexConcurrently(
            model_name="job",
            index=models.Index(fields=["finished_at"], name="job_finished"),
        ),
    ]
