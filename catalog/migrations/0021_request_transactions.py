from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0020_namespace_locations")]

    operations = [
        migrations.AddField(
            model_name="idempotencyrecord",
            name="transaction_id",
            field=models.UUIDField(help_text="What the request did.", null=True),
        ),
    ]
