from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from catalog.identifiers import digest


def create_root(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("catalog", "Namespace").objects.create(path=[], digest=digest(()), name="")


def drop_root(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    apps.get_model("catalog", "Namespace").objects.filter(path=[]).delete()


class Migration(migrations.Migration):
    """The root of the tree is a row like every other, so that it can be locked like every other."""

    dependencies = [("catalog", "0001_initial")]

    operations = [migrations.RunPython(create_root, drop_root)]
