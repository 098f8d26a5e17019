"""The flights as Iceberg tables, written by stock PyIceberg."""

import time

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from examples.flights import COMMENT, DemoError, count, parts

NAMESPACE = "nycflights13_iceberg"
VIEW = "late_by_airline"
_LATE = """
SELECT a.name, count(*) AS late FROM flights f JOIN airlines a ON f.carrier = a.carrier
WHERE f.dep_delay > 60 GROUP BY a.name
"""


def connect(url: str, key: str) -> RestCatalog:
    catalog = RestCatalog("monodon", uri=url, token=key)
    catalog.create_namespace_if_not_exists(NAMESPACE, {"comment": COMMENT})
    return catalog


def load(catalog: RestCatalog, table: str) -> None:
    """Create the table and append its portions, each a snapshot."""
    created, total = None, 0
    for number, (label, rows) in enumerate(parts(table), 1):
        if created is None:
            created = catalog.create_table((NAMESPACE, table), rows.schema)
        created.append(rows)
        total += rows.num_rows
        print(f"  {table:<9} {label:<8} {rows.num_rows:>7,} rows   snapshot {number:>2}")
    stored = catalog.load_table((NAMESPACE, table)).scan().count()
    if stored != total:
        raise DemoError(f"Table {NAMESPACE}.{table} has {stored:,} rows instead of {total:,}.")


def exists(catalog: RestCatalog, table: str) -> bool:
    return catalog.table_exists((NAMESPACE, table))


def drop(catalog: RestCatalog, table: str) -> None:
    catalog.purge_table((NAMESPACE, table))


def is_complete(catalog: RestCatalog, table: str) -> bool:
    """True if an earlier run loaded the whole table; prints its row count."""
    loaded = catalog.load_table((NAMESPACE, table))
    rows, expected = loaded.scan().count(), count(table)
    if rows < expected:
        print(f"  {table:<9} has {rows:,} of {expected:,} rows")
        return False
    print(f"  {table:<9} is there: {rows:,} rows, {len(loaded.snapshots())} snapshots")
    return True


def create_view(catalog: RestCatalog) -> None:
    """A view for Spark, which is the one of these clients that reads views, if there is none yet."""
    if catalog.view_exists((NAMESPACE, VIEW)):
        return
    schema = Schema(
        NestedField(1, "name", StringType(), required=False),
        NestedField(2, "late", LongType(), required=False),
    )
    version = ViewVersion(
        version_id=1,
        timestamp_ms=int(time.time() * 1000),
        schema_id=schema.schema_id,
        summary={"engine-name": "make demo"},
        default_namespace=[NAMESPACE],
        representations=[SQLViewRepresentation(type="sql", dialect="spark", sql=_LATE.strip())],
    )
    catalog.create_view((NAMESPACE, VIEW), schema, version)
    print(f"  {VIEW}, a view")
