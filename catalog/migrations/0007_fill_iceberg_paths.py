import os

import orjson
from django.db import migrations
from isal import igzip

from catalog.storage import locations
from catalog.errors import InvalidLocation

_AT_ONCE = 200
_PROPERTIES = (
    "write.metadata.path",
    "write.data.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


def fill(apps, schema_editor):
    """Of tables that exist: what their properties name, and where their metadata lies."""
    IcebergMetadata = apps.get_model("catalog", "IcebergMetadata")
    IcebergPath = apps.get_model("catalog", "IcebergPath")
    rows = IcebergMetadata.objects.exclude(table__state="dropped").select_related("table")
    rows = rows.order_by("pk")
    last = 0
    while batch := list(rows.filter(pk__gt=last)[:_AT_ONCE]):
        last = batch[-1].pk
        found = []
        for row in batch:
            properties = orjson.loads(igzip.decompress(bytes(row.answer)))["metadata"].get(
                "properties", {}
            )
            spelled = [os.path.dirname(row.metadata_location)]
            spelled += [properties[name] for name in _PROPERTIES if name in properties]
            for path in {path for location in spelled if (path := _path(location))}:
                if row.table.location not in (path, *locations.parents(path)):
                    found.append(IcebergPath(table=row.table, path=path))
        IcebergPath.objects.bulk_create(found, ignore_conflicts=True)


def _path(location):
    try:
        return locations.iceberg_path(location)
    except InvalidLocation:
        return None


def clear(apps, schema_editor):
    apps.get_model("catalog", "IcebergPath").objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0006_iceberg_paths"),
    ]

    operations = [migrations.RunPython(fill, clear)]
