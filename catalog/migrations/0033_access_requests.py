"""Grants that expire, and requests for access to a table."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

_FUNCTIONS = """
    CREATE OR REPLACE FUNCTION monodon_held(ids bigint[], names text[], lineage bigint[]) RETURNS integer
    LANGUAGE sql STABLE AS $$
        SELECT CASE WHEN EXISTS (
            SELECT FROM catalog_namespace WHERE id = ANY(lineage) AND owner = ANY(names)
        ) THEN 127 ELSE coalesce((
            SELECT bit_or(mask) FROM catalog_grant
            WHERE principal_id = ANY(ids) AND namespace_id = ANY(lineage) {valid}
        ), 0) END
    $$;

    CREATE OR REPLACE FUNCTION monodon_roots(ids bigint[], names text[]) RETURNS bigint[]
    LANGUAGE sql STABLE AS $$
        SELECT ARRAY(
            SELECT namespace_id FROM catalog_grant
            WHERE principal_id = ANY(ids) AND namespace_id IS NOT NULL {valid}
            UNION
            SELECT n.id FROM catalog_namespace n
            LEFT JOIN catalog_namespace above ON above.id = n.parent_id
            WHERE n.owner = ANY(names) AND n.dropped_at IS NULL
                AND (above.owner IS NULL OR above.owner <> ALL(names))
        )
    $$;

    CREATE OR REPLACE FUNCTION monodon_passages(ids bigint[], names text[], tables bigint[]) RETURNS bigint[]
    LANGUAGE sql STABLE AS $$
        SELECT ARRAY(
            SELECT DISTINCT unnest(ancestors) FROM catalog_namespace
            WHERE dropped_at IS NULL AND (parent_id IS NULL OR id IN (
                SELECT unnest(monodon_roots(ids, names))
                UNION
                SELECT t.namespace_id FROM catalog_grant g JOIN catalog_table t ON t.id = g.table_id
                WHERE g.principal_id = ANY(ids) AND t.state <> 'dropped' {valid}
                UNION
                SELECT namespace_id FROM catalog_table
                WHERE owner = ANY(names) AND state <> 'dropped'
                UNION
                SELECT namespace_id FROM catalog_table WHERE id = ANY(tables)
            ))
        )
    $$;
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0032_table_use")]

    operations = [
        migrations.AddField(
            model_name="grant",
            name="expires_at",
            field=models.DateTimeField(
                blank=True,
                null=True,
                help_text="From this time on the grant permits nothing; null: it does not expire.",
            ),
        ),
        migrations.AddIndex(
            model_name="grant",
            index=models.Index(
                condition=Q(expires_at__isnull=False), fields=["expires_at"], name="grant_expiring"
            ),
        ),
        migrations.AddField(
            model_name="approvalrequest",
            name="table",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="approvals",
                to="catalog.table",
                help_text="The table of a request for access to a table: its managers may decide too.",
            ),
        ),
        # No parameter may be called like a column: the column would be meant.
        migrations.RunSQL(
            _FUNCTIONS.format(valid="AND (expires_at IS NULL OR expires_at > now())"),
            _FUNCTIONS.format(valid=""),
        ),
    ]
