"""Rename the interface of audit events, and the kinds of objects that a label applies to."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("catalog", "0024_job_kinds")]
    operations = [
        migrations.RenameField("auditevent", "door", "interface"),
        migrations.RenameField("labeldefinition", "places", "applies_to"),
    ]
