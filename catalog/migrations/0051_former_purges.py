"""Nobody has looked for remaining files after former purges: a periodic review frees the empty directories."""

from django.db import migrations

RECORD = """
    INSERT INTO catalog_remainingfiles (table_id)
    SELECT t.id FROM catalog_table t
    WHERE t.state = 'dropped' AND EXISTS (
        SELECT FROM catalog_job j
        WHERE j.table_id = t.id AND j.kind = 'purge_table' AND j.status = 'succeeded'
    )
    ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0050_remaining_files")]

    operations = [migrations.RunSQL(RECORD, migrations.RunSQL.noop)]
