import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

# A namespace's path never changes, and so neither do its ancestors.
_ANCESTORS = """
    CREATE FUNCTION monodon_set_ancestors() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.ancestors := ARRAY(
            SELECT unnest(ancestors) FROM catalog_namespace WHERE id = NEW.parent_id
        ) || NEW.id;
        RETURN NEW;
    END $$;

    CREATE TRIGGER namespace_ancestors BEFORE INSERT ON catalog_namespace
        FOR EACH ROW EXECUTE FUNCTION monodon_set_ancestors();

    WITH RECURSIVE tree AS (
        SELECT id, ARRAY[id] AS ancestors FROM catalog_namespace WHERE parent_id IS NULL
        UNION ALL
        SELECT child.id, tree.ancestors || child.id
        FROM catalog_namespace child JOIN tree ON child.parent_id = tree.id
    )
    UPDATE catalog_namespace n SET ancestors = tree.ancestors FROM tree WHERE tree.id = n.id;
"""

# ``ids`` are the rows of a principal and its groups, ``names`` what they are called as owners.
_FUNCTIONS = """
    -- What they hold on a namespace with these ancestors, itself among them: a mask of privileges.
    -- No parameter may be called like a column: the column would be meant.
    CREATE FUNCTION monodon_held(ids bigint[], names text[], lineage bigint[]) RETURNS integer
    LANGUAGE sql STABLE AS $$
        SELECT CASE WHEN EXISTS (
            SELECT FROM catalog_namespace WHERE id = ANY(lineage) AND owner = ANY(names)
        ) THEN 127 ELSE coalesce((
            SELECT bit_or(mask) FROM catalog_grant
            WHERE principal_id = ANY(ids) AND namespace_id = ANY(lineage)
        ), 0) END
    $$;

    -- The namespaces on which they hold something; all that is below these may be browsed.
    CREATE FUNCTION monodon_roots(ids bigint[], names text[]) RETURNS bigint[]
    LANGUAGE sql STABLE AS $$
        SELECT ARRAY(
            SELECT namespace_id FROM catalog_grant
            WHERE principal_id = ANY(ids) AND namespace_id IS NOT NULL
            UNION
            SELECT n.id FROM catalog_namespace n
            LEFT JOIN catalog_namespace above ON above.id = n.parent_id
            WHERE n.owner = ANY(names) AND n.dropped_at IS NULL
                AND (above.owner IS NULL OR above.owner <> ALL(names))
        )
    $$;

    -- The namespaces that lead to what may be browsed, the root among them: they show as names.
    CREATE FUNCTION monodon_passages(ids bigint[], names text[], tables bigint[]) RETURNS bigint[]
    LANGUAGE sql STABLE AS $$
        SELECT ARRAY(
            SELECT DISTINCT unnest(ancestors) FROM catalog_namespace
            WHERE dropped_at IS NULL AND (parent_id IS NULL OR id IN (
                SELECT unnest(monodon_roots(ids, names))
                UNION
                SELECT t.namespace_id FROM catalog_grant g JOIN catalog_table t ON t.id = g.table_id
                WHERE g.principal_id = ANY(ids) AND t.state <> 'dropped'
                UNION
                SELECT namespace_id FROM catalog_table
                WHERE owner = ANY(names) AND state <> 'dropped'
                UNION
                SELECT namespace_id FROM catalog_table WHERE id = ANY(tables)
            ))
        )
    $$;
"""


def make_principals(apps, schema_editor):
    """Each key gets a service account of its name, and each user a principal."""
    principals = apps.get_model("catalog", "Principal").objects
    keys = apps.get_model("catalog", "ApiKey").objects
    taken = set(keys.values_list("name", flat=True))
    for key in keys.order_by("pk"):
        name = key.name
        # As these names the catalog itself is taken for: whoever bore one would be all-powerful.
        while name in {"system", "anonymous"} or (name != key.name and name in taken):
            name += "-key"
        key.principal = principals.create(name=name, kind="service", level=key.access)
        key.save(update_fields=["principal"])
    for user in apps.get_model(settings.AUTH_USER_MODEL).objects.all():
        principals.create(name=f"user:{user.username}", kind="user", user=user)


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0012_job_indexes"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="namespace",
            name="ancestors",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(),
                db_default=models.Value(
                    [],
                    output_field=django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None
                    ),
                ),
                editable=False,
                help_text="From the root down to itself; the database fills it in.",
                size=None,
            ),
        ),
        migrations.RunSQL(
            _ANCESTORS,
            "DROP TRIGGER namespace_ancestors ON catalog_namespace;"
            "DROP FUNCTION monodon_set_ancestors",
        ),
        migrations.AddIndex(
            model_name="namespace",
            index=django.contrib.postgres.indexes.GinIndex(
                condition=models.Q(dropped_at=None),
                fields=["ancestors"],
                name="namespace_ancestors",
            ),
        ),
        migrations.AddIndex(
            model_name="namespace",
            index=models.Index(
                condition=models.Q(dropped_at=None), fields=["owner"], name="namespace_of_owner"
            ),
        ),
        migrations.AddIndex(
            model_name="table",
            index=models.Index(
                condition=~models.Q(state="dropped"),
                fields=["owner", "namespace"],
                name="table_of_owner",
            ),
        ),
        migrations.CreateModel(
            name="Principal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.TextField(unique=True)),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("user", "person"),
                            ("group", "Group"),
                            ("service", "service account"),
                        ]
                    ),
                ),
                (
                    "level",
                    models.TextField(
                        choices=[
                            ("granted", "only what is granted"),
                            ("read", "read everything"),
                            ("admin", "everything"),
                        ],
                        default="granted",
                        help_text="What it may do everywhere. Members of a group have what the group has.",
                    ),
                ),
                ("description", models.TextField(blank=True)),
                ("is_active", models.BooleanField(default=True)),
                (
                    "user",
                    models.OneToOneField(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="principal",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "issuer",
                    models.TextField(
                        blank=True,
                        help_text="The OpenID Connect issuer that vouches for it; empty: none.",
                    ),
                ),
                (
                    "subject",
                    models.TextField(
                        blank=True, help_text="How that issuer calls it (its sub claim)."
                    ),
                ),
                (
                    "groups",
                    models.ManyToManyField(
                        blank=True,
                        limit_choices_to={"kind": "group"},
                        related_name="members",
                        to="catalog.principal",
                    ),
                ),
                ("created_by", models.TextField(blank=True, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=~models.Q(issuer=""),
                        fields=("issuer", "subject"),
                        name="principal_subject_unique",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Grant",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "mask",
                    models.PositiveSmallIntegerField(
                        help_text="catalog.privileges.Privilege, in full."
                    ),
                ),
                ("granted_by", models.TextField(blank=True)),
                (
                    "granted_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "namespace",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="catalog.namespace",
                    ),
                ),
                (
                    "table",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="catalog.table",
                    ),
                ),
                (
                    "principal",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to="catalog.principal",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(namespace__isnull=False, table__isnull=True)
                        | models.Q(namespace__isnull=True, table__isnull=False),
                        name="grant_on_one_thing",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(mask__gte=1, mask__lte=127), name="grant_of_something"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(table=None),
                        fields=("principal", "namespace"),
                        name="grant_on_namespace_unique",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(namespace=None),
                        fields=("principal", "table"),
                        name="grant_on_table_unique",
                    ),
                ],
            },
        ),
        migrations.RunSQL(_FUNCTIONS, "DROP FUNCTION monodon_passages, monodon_roots, monodon_held"),
        migrations.AddField(
            model_name="apikey",
            name="principal",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="keys",
                to="catalog.principal",
            ),
        ),
        migrations.RunPython(make_principals, migrations.RunPython.noop),
        # PostgreSQL alters no table of which rows are yet to be checked.
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="apikey",
            name="principal",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="keys",
                to="catalog.principal",
            ),
        ),
        migrations.RemoveField(model_name="apikey", name="access"),
        migrations.RemoveField(model_name="apikey", name="created_by"),
        migrations.AddField(
            model_name="apikey",
            name="created_by",
            field=models.TextField(blank=True, default="", editable=False),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="apikey",
            name="namespace",
            field=models.ForeignKey(
                blank=True,
                help_text="Where it may be used, with all below; null: everywhere.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                to="catalog.namespace",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="replaced_by",
            field=models.OneToOneField(
                blank=True,
                editable=False,
                help_text="The key that takes over: this one ends with the overlap.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="replaces",
                to="catalog.apikey",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="scopes",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.TextField(),
                blank=True,
                help_text="The privileges that may be used with it; null: all that its principal has.",
                null=True,
                size=None,
            ),
        ),
        migrations.AlterField(
            model_name="apikey",
            name="name",
            field=models.CharField(
                help_text="What uses it; shown in the audit trail.", max_length=100, unique=True
            ),
        ),
    ]
