"""The version of all grants, which triggers replace with each change of a grant."""

from django.db import migrations, models
from django.db.models import Q

_TRIGGERS = """
    -- A random value: unlike a counter it never has the same value again, not even after a rollback or a
    -- restore. ``changed`` are the rows that the statement has changed.
    CREATE FUNCTION catalog_grants_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP <> 'TRUNCATE' THEN
            IF NOT EXISTS (SELECT FROM changed) THEN
                RETURN NULL;
            END IF;
        END IF;
        INSERT INTO catalog_grantversion (id, version) VALUES (1, gen_random_uuid())
        ON CONFLICT (id) DO UPDATE SET version = excluded.version;
        RETURN NULL;
    END $$;

    CREATE TRIGGER grants_inserted AFTER INSERT ON catalog_grant
        REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION catalog_grants_changed();
    CREATE TRIGGER grants_updated AFTER UPDATE ON catalog_grant
        REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION catalog_grants_changed();
    CREATE TRIGGER grants_deleted AFTER DELETE ON catalog_grant
        REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION catalog_grants_changed();
    CREATE TRIGGER grants_truncated AFTER TRUNCATE ON catalog_grant
        FOR EACH STATEMENT EXECUTE FUNCTION catalog_grants_changed();
    -- ALWAYS: also in a session that calls itself a replica.
    ALTER TABLE catalog_grant ENABLE ALWAYS TRIGGER grants_inserted;
    ALTER TABLE catalog_grant ENABLE ALWAYS TRIGGER grants_updated;
    ALTER TABLE catalog_grant ENABLE ALWAYS TRIGGER grants_deleted;
    ALTER TABLE catalog_grant ENABLE ALWAYS TRIGGER grants_truncated;

    INSERT INTO catalog_grantversion (id, version) VALUES (1, gen_random_uuid());
"""
_NO_TRIGGERS = """
    DROP TRIGGER grants_inserted ON catalog_grant;
    DROP TRIGGER grants_updated ON catalog_grant;
    DROP TRIGGER grants_deleted ON catalog_grant;
    DROP TRIGGER grants_truncated ON catalog_grant;
    DROP FUNCTION catalog_grants_changed;
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0045_view_columns")]

    operations = [
        migrations.CreateModel(
            name="GrantVersion",
            fields=[
                (
                    "id",
                    models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False),
                ),
                ("version", models.UUIDField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(condition=Q(("id", 1)), name="grant_version_single")
                ],
            },
        ),
        migrations.RunSQL(_TRIGGERS, _NO_TRIGGERS),
    ]
