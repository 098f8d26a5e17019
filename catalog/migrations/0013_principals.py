from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("catalog", "0012_job_indexes")]
    operations = []
