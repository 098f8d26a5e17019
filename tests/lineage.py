"""Views for the lineage: Iceberg views with SQL, and materialized views."""

from typing import Any

from catalog.access import SYSTEM
from catalog.models import MaterializedView, Table
from catalog.services.iceberg import views
from tests.factories import make_namespace

SCHEMA = {"type": "struct", "schema-id": 0, "fields": []}


def definition(sql: str, number: int = 1, dialect: str = "spark") -> dict[str, Any]:
    return {
        "version-id": number,
        "schema-id": 0,
        "timestamp-ms": number,
        "summary": {},
        "default-namespace": ["ws"],
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect}],
    }


def make_view(name: tuple[str, ...], sql: str) -> Table:
    make_namespace(*name[:-1])
    views.create_view(actor=SYSTEM, view=name, schema=SCHEMA, view_version=definition(sql))
    return Table.objects.named(name).get()


def materialize(table: Table, source: Table) -> None:
    MaterializedView.objects.create(table=table, source=source, definition={}, source_query="q")
    Table.objects.filter(pk=table.pk).update(is_materialized=True)
