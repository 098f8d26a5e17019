"""The plans of frequent statements in a new catalog, whose tables PostgreSQL has not analyzed yet."""

import pytest
from django.db import connection

from catalog import access
from catalog.access import On
from catalog.identifiers import digest
from catalog.models import Grant, Namespace
from catalog.models import Principal as Row
from catalog.privileges import READ_ONLY, Privilege
from catalog.services.tables import namespaces, tables
from tests.factories import make_root, make_table

TABLE = ("sales", "orders")


@pytest.fixture
def readers(db, warehouse) -> list[access.Principal]:
    """An administrator, and a principal with a grant."""
    make_root()
    row = Row.objects.create(name="etl", kind="service")
    Grant.objects.create(
        principal=row, mask=READ_ONLY.value, namespace=make_table(*TABLE).namespace
    )
    return [access.SYSTEM, access.of_row(row)]


def read(readers: list[access.Principal]) -> None:
    for _ in range(15):  # until PostgreSQL keeps a plan
        for actor in readers:
            tables.describe_table(actor=actor, table=TABLE)
            access.require(actor, Privilege.BROWSE, On.table(TABLE))
            namespaces.require_namespace(actor=actor, namespace=TABLE[:-1])


def uses() -> dict[str, tuple[int, int]]:
    """The prepared statements that read namespaces: how often a kept plan was used, and their parameters."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, generic_plans, cardinality(parameter_types) FROM pg_prepared_statements"
            " WHERE statement LIKE '%catalog_namespace%'"
        )
        return {name: (count, parameters) for name, count, parameters in cursor.fetchall()}


def kept_plans(before: dict[str, tuple[int, int]]) -> list[str]:
    """The plans that were used since then. The connection also has statements of other tests."""
    with connection.cursor() as cursor:
        plans = []
        for name, (count, parameters) in uses().items():
            if count <= before.get(name, (0, 0))[0]:
                continue
            arguments = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
            cursor.execute(f'EXPLAIN EXECUTE "{name}" {arguments}')
            plans.append("\n".join(line for (line,) in cursor.fetchall()))
    return plans


def test_a_connection_finds_namespaces_by_their_name_when_the_catalog_has_grown(readers):
    read(readers)
    parent = Namespace.objects.get(digest=digest(()))
    Namespace.objects.bulk_create(
        Namespace(path=[name], digest=digest((name,)), parent=parent, name=name)
        for name in (f"namespace-{number}" for number in range(1_000))
    )
    for _ in range(1_000):
        connection.begin_request()
    before = uses()
    read(readers)
    plans = kept_plans(before)
    assert len(plans) >= 3
    for plan in plans:
        assert "Seq Scan on catalog_namespace" not in plan
        assert "namespace_of_owner" not in plan
