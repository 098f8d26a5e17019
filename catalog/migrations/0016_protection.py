import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

# What was dropped before and whose data is there, can be brought back too: who dropped it is in the
# audit trail.
_TRASH = """
    INSERT INTO catalog_trashitem
        (table_id, job_id, transaction_id, dropped_by, dropped_at, purge_at, purge_begun_at, content)
    SELECT t.id, j.id, e.transaction_id, coalesce(e.actor, ''), coalesce(t.dropped_at, now()),
        CASE WHEN j.status IN ('queued', 'running') THEN now() END,
        CASE WHEN j.attempts > 0 THEN now() END,
        jsonb_build_object('state', CASE
            WHEN t.format = 'iceberg'
                OR EXISTS (SELECT FROM catalog_tableversion WHERE table_id = t.id)
            THEN 'live' ELSE 'declared'
        END)
    FROM catalog_table t
    LEFT JOIN LATERAL (
        SELECT id, status, attempts FROM catalog_job
        WHERE table_id = t.id AND kind = 'purge_table' ORDER BY id DESC LIMIT 1
    ) j ON true
    LEFT JOIN LATERAL (
        SELECT event.actor, done.id AS transaction_id FROM catalog_auditevent event
        LEFT JOIN catalog_transaction done ON done.id = event.transaction_id
        WHERE event.table_uuid = t.uuid
            AND event.action IN ('table.drop', 'table.deregister', 'view.drop')
        ORDER BY event.id DESC LIMIT 1
    ) e ON true
    WHERE t.state = 'dropped' AND j.status IS DISTINCT FROM 'succeeded'
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0015_facts")]
    operations = [
        # Of the catalog's history.
        migrations.AddIndex(
            model_name='auditevent',
            index=django.contrib.postgres.indexes.BrinIndex(autosummarize=True, fields=['at'], name='audit_moments'),
        ),
        migrations.AddIndex(
            model_name='auditevent',
            index=models.Index(condition=models.Q(('action__in', ['table.rename', 'view.rename', 'table.undrop', 'namespace.undrop'])), fields=['table_uuid', 'id'], name='audit_of_lifetimes'),
        ),
        migrations.AddIndex(
            model_name='table',
            index=models.Index(condition=models.Q(('state', 'dropped')), fields=['namespace', 'name'], name='table_dropped_listing'),
        ),
        migrations.AddIndex(
            model_name='tableversion',
            index=django.contrib.postgres.indexes.BrinIndex(autosummarize=True, fields=['created_at'], name='table_version_entered'),
        ),
        migrations.AddIndex(
            model_name='tableversion',
            index=models.Index(condition=models.Q(('deleted_at__isnull', False)), fields=['deleted_at'], name='table_version_deleted'),
        ),
        migrations.AddField(
            model_name='namespace',
            name='guarded',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), blank=True, db_default=models.Value([], output_field=django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)), default=list, help_text='What needs a second person, here and below (GuardedAction).', size=None),
        ),
        migrations.AddField(
            model_name='namespace',
            name='is_protected',
            field=models.BooleanField(db_default=False, default=False, help_text='Whether nobody may drop it.'),
        ),
        migrations.AddField(
            model_name='namespace',
            name='retention_seconds',
            field=models.BigIntegerField(blank=True, help_text='How long what is dropped in it can be brought back; null: inherited.', null=True),
        ),
        migrations.AddField(
            model_name='table',
            name='is_protected',
            field=models.BooleanField(db_default=False, default=False, help_text='Whether nobody may drop or overwrite it.'),
        ),
        migrations.CreateModel(
            name='ApprovalRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.TextField(help_text='What is asked for, in words.')),
                ('target', models.TextField(help_text='What it would be done to.')),
                ('operation', models.JSONField(help_text='The operation that an approval carries out.')),
                ('expected', models.JSONField(help_text='What it was asked for on; if that changes, it fails.')),
                ('reason', models.TextField(blank=True, help_text='Why it is asked for.')),
                ('requester', models.TextField()),
                ('status', models.TextField(choices=[('pending', 'Pending'), ('done', 'Done'), ('refused', 'Refused'), ('withdrawn', 'Withdrawn'), ('expired', 'Expired')], default='pending')),
                ('decided_by', models.TextField(blank=True)),
                ('decision_reason', models.TextField(blank=True)),
                ('digest', models.TextField(help_text='SHA-256 of who asks for what, on what.')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('expires_at', models.DateTimeField()),
                ('decided_at', models.DateTimeField(blank=True, null=True)),
                ('namespace', models.ForeignKey(help_text='Who may manage it may decide.', on_delete=django.db.models.deletion.CASCADE, related_name='approvals', to='catalog.namespace')),
                ('transaction', models.ForeignKey(blank=True, help_text='What the approval did.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='approvals', to='catalog.transaction')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('status', 'pending')), fields=['expires_at'], name='approval_pending'), models.Index(fields=['requester', '-id'], name='approval_of_requester')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('status', 'pending')), fields=('digest',), name='approval_asked_once')],
            },
        ),
        migrations.CreateModel(
            name='TrashItem',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('dropped_by', models.TextField(blank=True)),
                ('dropped_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('purge_at', models.DateTimeField(blank=True, db_index=True, help_text='When its time here is over; null: it is kept until somebody purges it.', null=True)),
                ('purge_begun_at', models.DateTimeField(blank=True, null=True)),
                ('content', models.JSONField(default=dict, help_text="What the drop took out of other tables: the state, functions, a view's query.")),
                ('job', models.OneToOneField(blank=True, help_text='What removes the data; null: nothing does.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='trash', to='catalog.job')),
                ('namespace', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='trash', to='catalog.namespace')),
                ('table', models.OneToOneField(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='trash', to='catalog.table')),
                ('transaction', models.ForeignKey(help_text='The drop.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='trash', to='catalog.transaction')),
            ],
            options={
                'verbose_name': 'dropped thing',
                'verbose_name_plural': 'trash',
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('namespace__isnull', False), ('table__isnull', True)), models.Q(('namespace__isnull', True), ('table__isnull', False)), _connector='OR'), name='trash_of_one_thing')],
            },
        ),
        migrations.RunSQL(_TRASH, migrations.RunSQL.noop),
    ]
