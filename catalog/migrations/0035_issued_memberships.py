"""When the token was issued that has set the memberships of a principal."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0034_engine_profiles")]

    operations = [
        migrations.AddField(
            "principal",
            "groups_issued_at",
            models.DateTimeField(
                editable=False,
                help_text="When the newest token was issued that has set the memberships; older ones do not"
                " change them.",
                null=True,
            ),
        ),
    ]
