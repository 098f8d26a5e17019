from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("catalog", "0016_protection")]
    operations = []
