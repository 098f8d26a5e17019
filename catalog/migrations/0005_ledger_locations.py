from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("catalog", "0004_ledger_constraint"),
    ]

    operations = [
        # The planner takes no figures from an index of a part of the rows, and would expect half the
        # table. They come with the next ANALYZE.
        migrations.RunSQL(
            """
            CREATE STATISTICS IF NOT EXISTS table_version_file_name_figures
            ON (split_part(rtrim(manifest_path, '/.'), '/', -1)) FROM catalog_tableversion
            """,
            "DROP STATISTICS IF EXISTS table_version_file_name_figures",
        ),
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
                        template="(%(expressions)s ~ '^(/|file:)')",
                    )
                ),
                name="table_version_file_name",
            ),
        ),
    ]
