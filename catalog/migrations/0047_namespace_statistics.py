"""Statistics of the namespaces, which PostgreSQL otherwise collects after 50 changes.

Without them it assumes that nearly all namespaces are dropped, so that reading all others seems as cheap as an
index on the name.
"""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("catalog", "0046_grant_version")]

    operations = [migrations.RunSQL("ANALYZE catalog_namespace", migrations.RunSQL.noop)]
