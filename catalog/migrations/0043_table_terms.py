"""Terms of tables, by which long lists are filtered and searched. A periodic task fills them."""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Func

from catalog.models.audit import TransactionIdField

# The parts of a name, of one to three characters. A loop takes a third of the time of one statement.
_GRAMS = """
    CREATE FUNCTION monodon_grams(term text) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
        DECLARE
            letters text[] := string_to_array(upper(term), NULL);
            grams text[] := letters;
        BEGIN
            FOR n IN 1 .. cardinality(letters) - 1 LOOP
                grams := array_append(grams, letters[n] || letters[n + 1]);
            END LOOP;
            FOR n IN 1 .. cardinality(letters) - 2 LOOP
                grams := array_append(grams, letters[n] || letters[n + 1] || letters[n + 2]);
            END LOOP;
            RETURN grams;
        END
    $$
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0042_table_by_owner")]

    operations = [
        migrations.RunSQL(_GRAMS, "DROP FUNCTION monodon_grams"),
        migrations.CreateModel(
            name="TableTerms",
            fields=[
                (
                    "table",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="terms",
                        serialize=False,
                        to="catalog.table",
                    ),
                ),
                ("name", models.TextField(help_text="The last part of the name.")),
                (
                    "marks",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), size=None
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "table terms",
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(
                        F("marks"),
                        Func(F("name"), function="monodon_grams"),
                        name="table_terms",
                        gin_pending_list_limit=512,
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TableTermsCursor",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(default=1, primary_key=True, serialize=False),
                ),
                (
                    "xid",
                    TransactionIdField(help_text="AuditEvent.xid of the last processed event."),
                ),
                (
                    "event",
                    models.BigIntegerField(help_text="AuditEvent.id of the last processed event."),
                ),
                (
                    "next_table",
                    models.BigIntegerField(
                        help_text="The first table without a row yet; null: all have one.",
                        null=True,
                    ),
                ),
            ],
            options={"abstract": False},
        ),
        migrations.AlterField(
            model_name="tablesummarycursor",
            name="next_table",
            field=models.BigIntegerField(
                help_text="The first table without a row yet; null: all have one.", null=True
            ),
        ),
    ]
