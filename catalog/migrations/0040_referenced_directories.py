"""References say which directories of their source may be read.

References that were recorded before keep their extent: all directories of the source.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

_FILL = """
    UPDATE catalog_filereference r SET directories = ARRAY(
        SELECT t.location FROM catalog_table t WHERE t.id = r.source_id
        UNION SELECT p.path FROM catalog_icebergpath p WHERE p.table_id = r.source_id
    )
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0039_turns_index")]

    operations = [
        migrations.AddField(
            model_name="filereference",
            name="directories",
            field=ArrayField(
                base_field=models.TextField(),
                db_default=models.Value([], output_field=ArrayField(models.TextField())),
                default=list,
                help_text="The directories of the source, with those below them, whose files may be read.",
                size=None,
            ),
        ),
        migrations.RunSQL(_FILL, migrations.RunSQL.noop),
    ]
