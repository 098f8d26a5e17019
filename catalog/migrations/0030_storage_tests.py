import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0029_ledger_in_object_stores"),
    ]

    operations = [
        migrations.CreateModel(
            name="StorageTest",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "profile_version",
                    models.PositiveIntegerField(
                        help_text="The version of the profile that was tested."
                    ),
                ),
                (
                    "status",
                    models.TextField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("passed", "Passed"),
                            ("failed", "Failed"),
                            ("interrupted", "Interrupted"),
                        ],
                        default="queued",
                    ),
                ),
                (
                    "checks",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="The results of the checks that have ended, in order.",
                    ),
                ),
                ("requested_by", models.TextField(blank=True, editable=False)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "profile",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tests",
                        to="catalog.storageprofile",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["profile", "-id"], name="storage_test_newest")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("status__in", ["queued", "running"])),
                        fields=("profile",),
                        name="storage_test_one_active",
                    )
                ],
            },
        ),
    ]
