"""The audit trail in monthly partitions, with columns that tell the door, the key and refusals.

The rows that are there move into the new table, in the order of their ids; the transaction that
the database names for them is the one of this migration.
"""

import catalog.models.audit
import django.db.models.functions.datetime
from django.db import migrations, models

# Partitions for the months that have rows (not further back than ten years, if a clock was wrong)
# and for the coming ones. Who owns the tables owns the function, so that the application's role
# may make the coming months' partitions where it is not the owner: it runs with the owner's rights.
FUNCTIONS = """
CREATE FUNCTION catalog_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'The audit trail is append-only: % on % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Old months go with "manage.py audit_retention", which drops whole partitions.';
END
$$;

CREATE FUNCTION catalog_audit_make_partitions(first date, months integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    parent text;
    moment text;
    partition text;
    rest text;
    below timestamptz;
    above timestamptz;
    has_rows boolean;
    made integer := 0;
BEGIN
    IF months NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'Partitions are made for 1 to 200 months, not for %', months;
    END IF;
    FOREACH parent IN ARRAY ARRAY['catalog_auditevent', 'catalog_auditseal'] LOOP
        moment := CASE parent WHEN 'catalog_auditevent' THEN 'at' ELSE 'sealed_at' END;
        rest := parent || '_default';
        FOR i IN 0 .. months - 1 LOOP
            below := (date_trunc('month', first::timestamp) + make_interval(months => i)) AT TIME ZONE 'UTC';
            above := (date_trunc('month', first::timestamp) + make_interval(months => i + 1)) AT TIME ZONE 'UTC';
            partition := parent || '_' || to_char(below AT TIME ZONE 'UTC', 'YYYY_MM');
            CONTINUE WHEN to_regclass(quote_ident(partition)) IS NOT NULL;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                partition, parent);
            EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE %I >= $1 AND %I < $2)',
                rest, moment, moment) INTO has_rows USING below, above;
            IF has_rows THEN
                -- The rows came while the month had no partition. A row cannot be deleted, so the
                -- default partition is put aside and its rows are entered again.
                EXECUTE format('ALTER TABLE %I DETACH PARTITION %I', parent, rest);
                EXECUTE format('ALTER TABLE %I RENAME TO %I', rest, rest || '_aside');
                EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                    rest, parent);
                EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I DEFAULT', parent, rest);
            END IF;
            -- Attaching lets writers go on, which creating it in place would not.
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                parent, partition, below, above);
            IF has_rows THEN
                EXECUTE format('INSERT INTO %I SELECT * FROM %I', parent, rest || '_aside');
                EXECUTE format('DROP TABLE %I', rest || '_aside');
                EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER audit_is_append_only', rest);
            END IF;
            EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER audit_is_append_only', partition);
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END
$$;

-- Nobody's temporary tables come before the catalog's own.
DO $$ BEGIN
    EXECUTE format(
        'ALTER FUNCTION catalog_audit_make_partitions(date, integer) SET search_path = %I, pg_temp',
        current_schema()
    );
END $$;
"""

TABLES = """
ALTER TABLE catalog_auditevent RENAME TO catalog_auditevent_before;

CREATE TABLE catalog_auditevent (
    id bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    table_uuid uuid,
    before jsonb,
    after jsonb,
    context jsonb,
    request_id text NOT NULL,
    transaction_id uuid,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    door text NOT NULL DEFAULT '',
    key text NOT NULL DEFAULT '',
    outcome text NOT NULL DEFAULT 'done',
    error text NOT NULL DEFAULT ''
) PARTITION BY RANGE (at);
CREATE TABLE catalog_auditevent_default PARTITION OF catalog_auditevent DEFAULT;

CREATE TABLE catalog_auditseal (
    number bigint NOT NULL,
    sealed_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    event_id bigint,
    at timestamptz,
    table_uuid uuid,
    xid xid8 NOT NULL,
    digest bytea NOT NULL,
    previous bytea NOT NULL,
    hash bytea NOT NULL
) PARTITION BY RANGE (sealed_at);
CREATE TABLE catalog_auditseal_default PARTITION OF catalog_auditseal DEFAULT;

CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON catalog_auditevent
    FOR EACH ROW EXECUTE FUNCTION catalog_audit_is_append_only();
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON catalog_auditseal
    FOR EACH ROW EXECUTE FUNCTION catalog_audit_is_append_only();
-- ALWAYS: also in a session that calls itself a replica.
ALTER TABLE catalog_auditevent ENABLE ALWAYS TRIGGER audit_is_append_only;
ALTER TABLE catalog_auditevent_default ENABLE ALWAYS TRIGGER audit_is_append_only;
ALTER TABLE catalog_auditseal ENABLE ALWAYS TRIGGER audit_is_append_only;
ALTER TABLE catalog_auditseal_default ENABLE ALWAYS TRIGGER audit_is_append_only;
"""

MOVE = """
SELECT catalog_audit_make_partitions(
    first::date,
    (extract(year FROM age(last, first)) * 12 + extract(month FROM age(last, first)))::integer + 4
)
FROM (
    SELECT date_trunc('month', coalesce(min(at) AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC')) AS first,
           date_trunc('month', now() AT TIME ZONE 'UTC') AS last
    FROM catalog_auditevent_before
    WHERE at BETWEEN now() - interval '10 years' AND now()
) AS months;

INSERT INTO catalog_auditevent
    (id, at, actor, action, target, table_uuid, before, after, context, request_id, transaction_id)
SELECT id, at, actor, action, target, table_uuid, before, after, context, request_id, transaction_id
FROM catalog_auditevent_before ORDER BY id;

-- With it goes the sequence of its ids; the ids go on where they were.
CREATE TEMPORARY TABLE audit_next_id ON COMMIT DROP AS
    SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END AS id
    FROM catalog_auditevent_id_seq;
DROP TABLE catalog_auditevent_before;
CREATE SEQUENCE catalog_auditevent_id_seq AS bigint OWNED BY catalog_auditevent.id;
SELECT setval('catalog_auditevent_id_seq', (SELECT id FROM audit_next_id), false);
DROP TABLE audit_next_id;
ALTER TABLE catalog_auditevent
    ALTER COLUMN id SET DEFAULT nextval('catalog_auditevent_id_seq');
"""

INDEXES = """
ALTER TABLE catalog_auditevent ADD CONSTRAINT catalog_auditevent_pkey PRIMARY KEY (id, at);
CREATE INDEX audit_of_table ON catalog_auditevent (table_uuid, id DESC);
CREATE INDEX audit_in_order ON catalog_auditevent (xid, id);
CREATE INDEX audit_of_actor ON catalog_auditevent (actor, id DESC);
CREATE INDEX audit_of_transaction ON catalog_auditevent (transaction_id)
    WHERE transaction_id IS NOT NULL;
CREATE INDEX audit_refusals ON catalog_auditevent (id DESC) WHERE outcome = 'refused';
ALTER TABLE catalog_auditseal ADD CONSTRAINT catalog_auditseal_pkey PRIMARY KEY (number, sealed_at);
CREATE INDEX audit_seal_of_event ON catalog_auditseal (event_id);
CREATE INDEX audit_seal_of_table ON catalog_auditseal (table_uuid, number);
"""

BACK = """
CREATE TABLE catalog_auditevent_before (
    id bigint NOT NULL PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    table_uuid uuid,
    before jsonb,
    after jsonb,
    context jsonb,
    request_id text NOT NULL,
    transaction_id uuid
);
INSERT INTO catalog_auditevent_before
SELECT id, at, actor, action, target, table_uuid, before, after, context, request_id, transaction_id
FROM catalog_auditevent ORDER BY id;
SELECT setval(
    pg_get_serial_sequence('catalog_auditevent_before', 'id'),
    (SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END FROM catalog_auditevent_id_seq),
    false
);
DROP TABLE catalog_auditevent;
DROP TABLE catalog_auditseal;
DROP FUNCTION catalog_audit_make_partitions(date, integer);
DROP FUNCTION catalog_audit_is_append_only();
ALTER TABLE catalog_auditevent_before RENAME TO catalog_auditevent;
ALTER INDEX catalog_auditevent_before_pkey RENAME TO catalog_auditevent_pkey;
ALTER SEQUENCE catalog_auditevent_before_id_seq RENAME TO catalog_auditevent_id_seq;
CREATE INDEX audit_of_table ON catalog_auditevent (table_uuid, id DESC);
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0013_principals")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(FUNCTIONS + TABLES + MOVE + INDEXES, BACK),
            ],
            state_operations=[
                migrations.CreateModel(
                    name='AuditSeal',
                    fields=[
                        ('number', models.BigIntegerField(primary_key=True, serialize=False)),
                        ('sealed_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                        ('event_id', models.BigIntegerField(help_text='The event; none where the catalog went on after a restore.', null=True)),
                        ('at', models.DateTimeField(help_text='When the event happened.', null=True)),
                        ('table_uuid', models.UUIDField(null=True)),
                        ('xid', catalog.models.audit.TransactionIdField(help_text="The event's; all that is older is sealed.")),
                        ('digest', models.BinaryField()),
                        ('previous', models.BinaryField()),
                        ('hash', models.BinaryField()),
                    ],
                ),
                migrations.AddField(
                    model_name='auditevent',
                    name='door',
                    field=models.TextField(blank=True, choices=[('lance', 'Lance'), ('iceberg', 'Iceberg'), ('management', 'Management'), ('admin', 'Admin'), ('job', 'Job'), ('command', 'Command line'), ('system', 'System')], db_default=''),
                ),
                migrations.AddField(
                    model_name='auditevent',
                    name='error',
                    field=models.TextField(blank=True, db_default='', help_text='Of a refusal: its class and its message.'),
                ),
                migrations.AddField(
                    model_name='auditevent',
                    name='key',
                    field=models.TextField(blank=True, db_default='', help_text='The name of the API key or client; never a secret.'),
                ),
                migrations.AddField(
                    model_name='auditevent',
                    name='outcome',
                    field=models.TextField(choices=[('done', 'Done'), ('refused', 'Refused')], db_default='done'),
                ),
                migrations.AddField(
                    model_name='auditevent',
                    name='xid',
                    field=catalog.models.audit.TransactionIdField(db_default=models.Func(function='pg_current_xact_id'), editable=False, help_text="The database's transaction that wrote it."),
                ),
                migrations.AddIndex(
                    model_name='auditevent',
                    index=models.Index(fields=['xid', 'id'], name='audit_in_order'),
                ),
                migrations.AddIndex(
                    model_name='auditevent',
                    index=models.Index(fields=['actor', '-id'], name='audit_of_actor'),
                ),
                migrations.AddIndex(
                    model_name='auditevent',
                    index=models.Index(condition=models.Q(('transaction_id__isnull', False)), fields=['transaction_id'], name='audit_of_transaction'),
                ),
                migrations.AddIndex(
                    model_name='auditevent',
                    index=models.Index(condition=models.Q(('outcome', 'refused')), fields=['-id'], name='audit_refusals'),
                ),
                migrations.AddIndex(
                    model_name='auditseal',
                    index=models.Index(fields=['event_id'], name='audit_seal_of_event'),
                ),
                migrations.AddIndex(
                    model_name='auditseal',
                    index=models.Index(fields=['table_uuid', 'number'], name='audit_seal_of_table'),
                ),
            ],
        ),
    ]
