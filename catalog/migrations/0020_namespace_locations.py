import uuid

import django.contrib.postgres.functions
from django.db import migrations, models

from catalog.storage import locations
from catalog.errors import InvalidLocation


def fill(apps, schema_editor):
    """Enter the canonical path of every location that a namespace has as a property already."""
    Namespace = apps.get_model("catalog", "Namespace")
    for row in Namespace.objects.filter(properties__has_key="location").iterator():
        location = row.properties["location"]
        try:
            path = locations.iceberg_path(location) if location else None
        except InvalidLocation:  # no table can lie there, so nothing is to be guarded
            path = None
        if path is not None:
            Namespace.objects.filter(pk=row.pk).update(location=path)


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0019_file_references"),
    ]

    operations = [
        migrations.AddField(
            model_name="namespace",
            name="uuid",
            field=models.UUIDField(
                db_default=django.contrib.postgres.functions.RandomUUID(),
                default=uuid.uuid4,
                editable=False,
                help_text="Part of its default location, so that no other namespace ever has the same.",
                unique=True,
            ),
        ),
        migrations.AddField(
            model_name="namespace",
            name="location",
            field=models.TextField(
                editable=False,
                help_text="Canonical local path of the property 'location'; null: there is none.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="namespace",
            index=models.Index(
                condition=models.Q(("location__isnull", False)),
                fields=["location"],
                name="namespace_location_prefix",
                opclasses=["text_pattern_ops"],
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
