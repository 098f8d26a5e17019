"""Who manages a table for a limited time cannot get its files for a table of their own, which they own without an end."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from catalog import access
from catalog.access import SYSTEM, On
from catalog.errors import LocationTaken
from catalog.models import Namespace, Principal, PrincipalKind, Table
from catalog.privileges import Privilege
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.lance.ledger.registration_operations import DeclareTable, RegisterTable
from catalog.services.tables.namespace_operations import UpdateNamespaceProperties
from catalog.services.tables.table_operations import DeregisterTable
from tests.factories import (
    ICEBERG_SCHEMA,
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    unchanged,
)

pytestmark = pytest.mark.usefixtures("warehouse")
SOON = datetime(2100, 1, 1, tzinfo=UTC)
LANCE, ICEBERG = ("prod", "users"), ("prod", "ice")
each_name = pytest.mark.parametrize("name", [("own", "users"), ("prod", "again")])


@pytest.fixture(autouse=True)
def _ada(db, warehouse):
    """A principal that owns the namespace ``own`` and holds everything in ``prod`` for a limited time."""
    make_root()
    Principal.objects.create(name="ada", kind=PrincipalKind.SERVICE)
    make_namespace("own")
    make_namespace("prod")
    Namespace.objects.filter(name="own").update(owner="ada")
    give(SOON)


def give(end: datetime | None) -> None:
    on = On.namespace(("prod",))
    grants.set_grant(actor=SYSTEM, on=on, principal="ada", privileges=Privilege.ALL, expires_at=end)


def actor() -> access.Principal:
    principal = access.named("ada")
    assert principal is not None
    return principal


def only_without_an_end(call: Callable[[], Any]) -> None:
    """Check that a call is refused until the privileges have no end."""
    with unchanged(), pytest.raises(LocationTaken):
        call()
    give(None)
    call()


@each_name
def test_a_deregistered_lance_table_is_not_registered_as_an_own_table(name):
    location = make_lance_table(LANCE).location
    commit([DeregisterTable(table=LANCE)], actor=actor())
    only_without_an_end(
        lambda: commit([RegisterTable(table=name, location=location)], actor=actor())
    )
    assert Table.objects.named(name).get().owner == "ada"


@each_name
def test_a_lance_table_is_not_registered_again_in_the_transaction_that_deregisters_it(name):
    location = make_lance_table(LANCE).location
    operations = [DeregisterTable(table=LANCE), RegisterTable(table=name, location=location)]
    only_without_an_end(lambda: commit(operations, actor=actor()))


def test_no_table_is_declared_at_the_location_of_a_deregistered_one():
    location = make_lance_table(LANCE).location
    commit([DeregisterTable(table=LANCE)], actor=actor())
    declare = DeclareTable(table=("own", "users"), location=location)
    only_without_an_end(lambda: commit([declare], actor=actor()))


@each_name
def test_a_deregistered_iceberg_table_is_not_registered_as_an_own_table(name):
    loaded = make_iceberg_table(*ICEBERG)
    iceberg_tables.drop_table(actor=actor(), table=ICEBERG)
    only_without_an_end(
        lambda: iceberg_commits.register_table(
            actor=actor(), table=name, metadata_location=loaded.metadata_location
        )
    )


def test_a_registration_that_replaces_an_iceberg_table_does_not_take_its_files():
    loaded = make_iceberg_table(*ICEBERG)
    only_without_an_end(
        lambda: iceberg_commits.register_table(
            actor=actor(),
            table=ICEBERG,
            metadata_location=loaded.metadata_location,
            overwrite=True,
        )
    )


def create_with_data_at(path: str) -> None:
    iceberg_commits.create_table(
        actor=actor(),
        table=("own", "ice"),
        schema=ICEBERG_SCHEMA,
        properties={"write.data.path": path},
    )


@pytest.mark.parametrize("is_dropped", [False, True])
def test_no_own_table_names_a_directory_of_the_table(warehouse, is_dropped):
    data = f"file://{warehouse}/apart/data"
    make_iceberg_table(*ICEBERG, properties={"write.data.path": data})
    if is_dropped:
        iceberg_tables.drop_table(actor=SYSTEM, table=ICEBERG)
    only_without_an_end(lambda: create_with_data_at(f"{data}/inside"))


def test_no_own_table_names_a_directory_in_the_location_of_a_dropped_table():
    loaded = make_iceberg_table(*ICEBERG)
    iceberg_tables.drop_table(actor=SYSTEM, table=ICEBERG)
    only_without_an_end(lambda: create_with_data_at(f"file://{loaded.location}/data"))


def test_an_own_namespace_gets_no_location_around_the_table(warehouse: Path):
    at = f"{warehouse}/around"
    make_iceberg_table(*ICEBERG, location=f"file://{at}/ice")
    update = UpdateNamespaceProperties(
        namespace=("own",), updates={"location": f"file://{at}"}, removals=()
    )
    only_without_an_end(lambda: commit([update], actor=actor()))
