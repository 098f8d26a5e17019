"""Batches: the number of statements, and the operation named on failure."""

from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    InvalidManifestPath,
    InvalidTableState,
    LocationTaken,
    TableNotFound,
    VersionAlreadyExists,
)
from catalog.models import (
    AuditEvent,
    Branch,
    Grant,
    Job,
    JobStatus,
    Namespace,
    Principal,
    Table,
    TableState,
    TableVersion,
)
from catalog.privileges import Privilege, closure
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.lance.ledger import registration_operations, version_operations
from catalog.services.storage import namespace_locations
from catalog.services.tables import namespace_operations, table_operations
from tests.factories import (
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    manifest,
    unchanged,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("warehouse", "root"),
]
SMALL, LARGE = 20, 60


@pytest.fixture
def root(transactional_db) -> None:
    make_root()
    make_namespace("ns")


def name(number: int) -> tuple[str, str]:
    return "ns", f"t{number:03d}"


def declare(number: int) -> registration_operations.DeclareTable:
    return registration_operations.DeclareTable(table=name(number))


def declare_at(number: int, location: str | None = None) -> registration_operations.DeclareTable:
    location = location or f"own/{number}"
    return registration_operations.DeclareTable(table=name(number), location=location)


def create(number: int, version: int, branch: str = "") -> version_operations.CreateVersion:
    return version_operations.CreateVersion(
        table=name(number),
        version=version,
        branch=branch,
        manifest_path=f"elsewhere/{number}/{version}",
    )


def delete(number: int, version: int) -> version_operations.DeleteVersions:
    return version_operations.DeleteVersions(table=name(number), ranges=((version, version + 1),))


def deregister(number: int) -> table_operations.DeregisterTable:
    return table_operations.DeregisterTable(table=name(number))


def drop(number: int) -> table_operations.DropTable:
    return table_operations.DropTable(table=name(number))


def make(count: int, versions: int = 1) -> None:
    """Live tables with this many versions."""
    commit([declare(n) for n in range(count)], actor=SYSTEM)
    commit([create(n, v) for n in range(count) for v in range(1, versions + 1)], actor=SYSTEM)


def statements(operations: list[Operation]) -> int:
    with CaptureQueriesContext(connection) as captured:
        commit(operations, actor=SYSTEM)
    return len(captured)


KINDS = {
    # Maximum number of statements that each operation adds to its batch.
    "declare": (lambda n: [declare(100 + n)], 0),
    "first version": (lambda n: [declare(100 + n), create(100 + n, 1)], 0),
    "declare at a location": (lambda n: [declare_at(100 + n)], 0),
    "declare at a location with version": (lambda n: [declare_at(100 + n), create(100 + n, 1)], 0),
    "declare in a namespace": (lambda n: [declare_at(100 + n, f"located/{n}")], 0),
    "delete and declare at a location": (lambda n: [delete(n, 1), declare_at(100 + n)], 2),
    "version": (lambda n: [create(n, 3)], 0),
    "branch": (lambda n: [create(n, 1, "dev")], 2),
    "delete": (lambda n: [delete(n, 1)], 1),
    "create and delete": (lambda n: [create(n, 3), delete(n, 2)], 2),
    "deregister": (lambda n: [deregister(n)], 0),
    "drop": (lambda n: [drop(n)], 0),
    "delete and deregister": (lambda n: [delete(n, 1), deregister(n)], 1),
    "replace at the same location": (lambda n: [deregister(n), declare_at(n, f"kept/{n}")], 0),
    "replace": (lambda n: [deregister(n), declare(n), create(n, 1)], 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_statements_per_batched_operation(kind, warehouse):
    build, per_item = KINDS[kind]
    make_namespace("located", properties={"location": f"file://{warehouse}/located"})
    make(SMALL + LARGE, versions=2)
    if kind == "replace at the same location":
        put_at_chosen_locations(SMALL + LARGE, warehouse)
    small = statements([op for n in range(SMALL) for op in build(n)])
    large = statements([op for n in range(SMALL, SMALL + LARGE) for op in build(n)])
    grown = large - small
    assert grown <= per_item * (LARGE - SMALL) + 1, (small, large)
    fixed = 20 if kind == "replace at the same location" else 16
    assert small <= fixed + per_item * SMALL


def redeclare(number: int) -> list[Operation]:
    return [deregister(number), declare_at(number, f"kept/{number}")]


def put_at_chosen_locations(count: int, warehouse: Path) -> None:
    """Give the tables the locations ``kept/0`` and so on."""
    for number in range(count):
        row = Table.objects.filter(name=name(number)[1])
        row.update(location=f"{warehouse}/kept/{number}")


@pytest.mark.parametrize(
    "obstacle", ["inside", "around", "a job", "a dropped table of others", "taken in the batch"]
)
def test_a_location_that_others_hold_is_refused_although_its_table_is_deregistered(
    obstacle, warehouse
):
    make(3)
    put_at_chosen_locations(3, warehouse)
    table, other = Table.objects.get(name="t001"), Table.objects.filter(name="t002")
    ada = Principal.objects.create(name="ada", kind="user")
    namespace = Namespace.objects.named(("ns",)).get()
    Grant.objects.create(principal=ada, namespace=namespace, mask=closure(Privilege.ALL).value)
    operations = [*redeclare(0), *redeclare(1)]
    match obstacle:
        case "inside":
            other.update(location=f"{warehouse}/kept/1/inner")
        case "around":
            other.update(location=f"{warehouse}/kept")
        case "a job":
            Job.objects.create(table=table, kind="compact", status=JobStatus.RUNNING)
        case "a dropped table of others":
            commit([deregister(2)], actor=SYSTEM)
            other.update(location=table.location, namespace=make_namespace("hidden"))
        case "taken in the batch":
            operations.append(declare_at(8, "kept/1"))
    with unchanged(), pytest.raises(LocationTaken):
        commit(operations, actor=access.on_behalf_of("ada"))


@pytest.mark.parametrize("culprit", [0, 17, LARGE - 1])
def test_a_failed_batch_names_the_failed_operation(culprit):
    make(LARGE)
    commit([create(culprit, 2)], actor=SYSTEM)
    versions, events = TableVersion.objects.count(), AuditEvent.objects.count()
    with CaptureQueriesContext(connection) as captured, pytest.raises(VersionAlreadyExists) as met:
        commit([create(n, 2) for n in range(LARGE)], actor=SYSTEM)
    assert met.value.operation == culprit
    assert met.value.message == f"Table 'ns.t{culprit:03d}' has version 2 already"
    assert len(captured) <= 3
    assert (TableVersion.objects.count(), AuditEvent.objects.count()) == (versions, events)


def test_a_failed_batch_names_the_operation_on_the_right_branch():
    make(2)
    commit([create(0, 1, "dev"), create(1, 1, "dev"), create(1, 7, "dev")], actor=SYSTEM)
    batch = [create(0, 7), create(1, 7), create(0, 7, "dev"), create(1, 7, "dev")]
    with pytest.raises(VersionAlreadyExists) as met:
        commit(batch, actor=SYSTEM)
    assert (met.value.operation, met.value.branch) == (3, "dev")


def test_a_replaced_table_is_not_the_failed_operation():
    """The name has version 1, but the batch creates that version for another table of the name."""
    make(2)
    with pytest.raises(VersionAlreadyExists) as met:
        commit([deregister(0), declare(0), create(0, 1), create(1, 1)], actor=SYSTEM)
    assert met.value.operation == 3
    assert Table.objects.filter(state=TableState.LIVE).count() == 2


def test_operations_of_a_batch_see_earlier_drops():
    make(2)
    for second, error in [
        (create(0, 2), TableNotFound),
        (delete(0, 1), TableNotFound),
        (deregister(0), TableNotFound),
    ]:
        with pytest.raises(error) as met:
            commit([deregister(0), second], actor=SYSTEM)
        assert met.value.operation == 1
    new = commit([declare(9), create(9, 1), deregister(9), declare(9)], actor=SYSTEM)
    assert new.results[0].pk != new.results[3].pk
    states = Table.objects.filter(name="t009").order_by("pk").values_list("state", flat=True)
    assert list(states) == [TableState.DROPPED, TableState.DECLARED]


def test_ranges_of_versions_are_deleted():
    make(1)
    commit([create(0, n) for n in range(2, 12)], actor=SYSTEM)
    deletion = version_operations.DeleteVersions(
        table=name(0), ranges=((2, 4), (3, 5), (7, 7), (10, 11))
    )
    result = commit([deletion], actor=SYSTEM)
    assert result.results == [4]
    visible = TableVersion.objects.visible().order_by("version")
    assert list(visible.values_list("version", flat=True)) == [1, 5, 6, 7, 8, 9, 11]
    assert commit([deletion], actor=SYSTEM).results == [0]


@pytest.mark.parametrize("ranges", [((2, 3),), ((2, -1),), ((1, 2), (0, 9))])
def test_the_newest_version_is_not_deleted(ranges):
    make(1)
    commit([create(0, 2)], actor=SYSTEM)
    with unchanged(), pytest.raises(InvalidTableState) as met:
        commit([version_operations.DeleteVersions(table=name(0), ranges=ranges)], actor=SYSTEM)
    assert met.value.message == "Version 2 is the newest of table 'ns.t000', and cannot be deleted"


def test_a_batch_creates_each_branch_once():
    make(2)
    commit([create(n, v, "dev") for v in (1, 2) for n in range(2)], actor=SYSTEM)
    assert Branch.objects.count() == 2


# --- locations --------------------------------------------------------------------------------

OVERLAPPING = [("a/b", "a/b"), ("a/b", "a/b/c"), ("a/b/c", "a/b"), ("a/b", "a")]


@pytest.mark.parametrize(("first", "second"), OVERLAPPING)
def test_tables_of_a_batch_do_not_overlap(first, second, warehouse):
    batch = [declare_at(0, "beside"), declare_at(1, first), create(1, 1), declare_at(2, second)]
    with unchanged(), pytest.raises(LocationTaken) as met:
        commit(batch, actor=SYSTEM)
    assert (met.value.operation, met.value.location) == (3, f"{warehouse}/{second}")
    assert "ns.t001" in str(met.value)


@pytest.mark.parametrize("location", ["x", "x/t", "x/t/inside", "y/data", "y"])
def test_a_batch_refuses_the_same_locations_as_single_operations(location, warehouse):
    make_table("ns", "present", location="x/t")
    properties = {"write.data.path": f"file://{warehouse}/y/data"}
    make_iceberg_table("ns", "iceberg", properties=properties)
    messages = []
    for batch in ([declare_at(1, location)], [declare_at(0), declare_at(1, location)]):
        with unchanged(), pytest.raises(LocationTaken) as met:
            commit(batch, actor=SYSTEM)
        assert met.value.operation == len(batch) - 1
        messages.append(str(met.value))
    assert messages[0] == messages[1]


def test_a_batch_may_reuse_a_location_that_it_frees():
    new = commit([declare_at(0), deregister(0), declare_at(0)], actor=SYSTEM)
    assert new.results[0].location == new.results[2].location
    assert new.results[0].pk != new.results[2].pk


def test_locations_are_looked_up_again_after_an_operation_that_uses_some(warehouse):
    taken = {"location": f"file://{warehouse}/own"}
    with unchanged(), pytest.raises(LocationTaken) as met:
        commit(
            [
                declare_at(0, "beside"),
                namespace_operations.CreateNamespace(namespace=("own",), properties=taken),
                declare_at(1, "own"),
            ],
            actor=SYSTEM,
        )
    assert met.value.operation == 2


@pytest.mark.parametrize("privilege", [Privilege.BROWSE, Privilege.CREATE])
def test_a_location_requires_create_on_its_namespace(privilege, warehouse):
    namespace = make_namespace("located", properties={"location": f"file://{warehouse}/located"})
    principal = Principal.objects.create(name="etl", kind="service")
    principal.grants.create(
        mask=closure(Privilege.CREATE).value, namespace=Namespace.objects.named(("ns",)).get()
    )
    principal.grants.create(mask=closure(privilege).value, namespace=namespace)
    actor = access.of_row(principal)
    batch = [declare_at(n, f"located/{n}") for n in range(3)]
    if privilege == Privilege.CREATE:
        assert len(commit(batch, actor=actor).results) == 3
        return
    with unchanged(), pytest.raises(LocationTaken) as met:
        commit([declare_at(9), *batch], actor=actor)
    assert met.value.operation == 1


# --- staged manifests -------------------------------------------------------------------------


def staged(table: Table, version: int, size: int = 7) -> Operation:
    path = f"{table.location}/_versions/one.manifest-x"
    return version_operations.CreateVersion(
        table=table.identifier,
        version=version,
        manifest_path=path if version % 2 else path.lstrip("/"),
        manifest_size=size,
    )


MANIFEST = manifest(1)


@pytest.fixture
def table(warehouse) -> Table:
    """A declared table with the staged manifest of its first version."""
    commit([declare(0)], actor=SYSTEM)
    row = Table.objects.select_related("namespace").get()
    directory = Path(row.location) / "_versions"
    directory.mkdir(parents=True)
    (directory / "one.manifest-x").write_bytes(MANIFEST)
    return row


def test_a_staged_file_may_occur_once_in_a_batch(table):
    with pytest.raises(InvalidManifestPath) as met:
        commit([staged(table, 1), staged(table, 2)], actor=SYSTEM)
    assert met.value.operation == 1
    assert "is the manifest of version 1, not of version 2" in met.value.message
    assert not TableVersion.objects.exists()


def test_a_staged_file_of_another_version_is_refused(table, monkeypatch):
    monkeypatch.setattr(
        version_operations.versions, "move", lambda rows: None
    )  # it is not moved yet
    commit([staged(table, 1)], actor=SYSTEM)
    with pytest.raises(InvalidManifestPath) as met:
        commit([staged(table, 2)], actor=SYSTEM)
    assert met.value.operation == 0
    with pytest.raises(VersionAlreadyExists):
        commit([staged(table, 1)], actor=SYSTEM)
    assert TableVersion.objects.count() == 1


def test_the_manifest_size_is_read_from_the_file(table):
    (row,) = commit([staged(table, 1, size=7)], actor=SYSTEM).results
    assert row.manifest_size == len(MANIFEST)
    assert TableVersion.objects.get().manifest_size == len(MANIFEST)


def test_an_error_index_is_not_reused(table):
    with pytest.raises(CatalogError) as met:
        commit([create(0, 1), create(5, 1)], actor=SYSTEM)
    assert met.value.operation == 1


# --- more parameters than a statement may have ------------------------------------------------


def test_bulk_inserts_are_divided_among_statements():
    columns = len(Table._meta.concrete_fields)
    size = connection.ops.bulk_batch_size(Table._meta.concrete_fields, [])
    assert 65_535 - columns < size * columns <= 65_535


def test_locations_are_one_parameter(warehouse):
    commit([declare_at(1)], actor=SYSTEM)
    location = f"{warehouse}/own/1"
    texts = [location, *(f"/nowhere/{number}" for number in range(70_000))]
    held = Table.objects.filter(location__in=namespace_locations.any_of(texts))
    assert list(held.values_list("location", flat=True)) == [location]
