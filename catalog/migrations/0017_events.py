import catalog.models.audit
import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0016_protection"),
    ]

    operations = [
        migrations.CreateModel(
            name="Webhook",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "url",
                    models.TextField(
                        help_text="Where events are sent: https, or http to this machine."
                    ),
                ),
                ("secret", models.BinaryField(help_text="The signing secret, encrypted.")),
                (
                    "types",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        blank=True,
                        default=list,
                        help_text="Which events: table.create, table.* or *; none: all.",
                        size=None,
                    ),
                ),
                ("is_active", models.BooleanField(default=True)),
                ("xid", catalog.models.audit.TransactionIdField(editable=False)),
                ("event", models.BigIntegerField(default=0, editable=False)),
                ("created_by", models.TextField(blank=True, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "namespace",
                    models.ForeignKey(
                        blank=True,
                        help_text="Only what happens in it and below; null: everywhere.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="catalog.namespace",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("event", models.BigIntegerField(help_text="AuditEvent.id.")),
                (
                    "event_at",
                    models.DateTimeField(help_text="AuditEvent.at, which leads to its partition."),
                ),
                ("type", models.TextField()),
                ("target", models.TextField()),
                (
                    "status",
                    models.TextField(
                        choices=[
                            ("pending", "Pending"),
                            ("delivered", "Delivered"),
                            ("dead", "dead letter"),
                        ],
                        default="pending",
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "due_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(),
                        help_text="When it is tried next.",
                    ),
                ),
                (
                    "answer",
                    models.TextField(blank=True, help_text="What the last attempt came to."),
                ),
                ("delivered_at", models.DateTimeField(blank=True, null=True)),
                (
                    "webhook",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="catalog.webhook",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "webhook deliveries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "pending")),
                        fields=["due_at"],
                        name="delivery_due",
                    ),
                    models.Index(fields=["webhook", "-id"], name="delivery_of_webhook"),
                    models.Index(
                        condition=models.Q(("status", "dead")), fields=["-id"], name="delivery_dead"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("webhook", "event"), name="delivery_once")
                ],
            },
        ),
    ]
