from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0008_jobs"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="table",
            options={"permissions": [("preview_table", "Can look at rows of a table")]},
        ),
    ]
