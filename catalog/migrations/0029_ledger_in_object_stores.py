from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("catalog", "0028_storage_profiles")]

    operations = [
        AddIndexConcurrently(
            model_name="tableversion",
            index=models.Index(
                models.Func(
                    models.F("manifest_path"),
                    output_field=models.TextField(),
                    template="split_part(rtrim(%(expressions)s, '/.'), '/', -1)",
                ),
                condition=models.Q(
                    models.Func(
                        models.F("manifest_path"),
                        output_field=models.BooleanField(),
                        template="(%(expressions)s ~ '^(/|file:|s3://|gs://|abfss://)')",
                    )
                ),
                name="table_version_metadata_file",
            ),
        ),
        RemoveIndexConcurrently(model_name="tableversion", name="table_version_file_name"),
        migrations.AlterField(
            model_name="stagedfile",
            name="path",
            field=models.TextField(help_text="Canonical path.", primary_key=True, serialize=False),
        ),
    ]
