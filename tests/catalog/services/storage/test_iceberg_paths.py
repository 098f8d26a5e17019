"""No Lance table may be at a path where an Iceberg table has files outside its location, because a purge
removes the directory."""

import importlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import CatalogError, LocationTaken
from catalog.models import IcebergPath, Job, JobStatus, Table, TableState, TrashItem
from catalog.models import Principal as PrincipalRow
from catalog.privileges import Privilege, closure
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.iceberg.changes import TableChange
from catalog.services.lance.ledger import registration_operations
from catalog.services.maintenance import job_runner
from catalog.services.recovery import undrop as recovery_undrop
from catalog.services.tables import table_operations
from catalog.services.tables.namespace_operations import CreateNamespace
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    stage,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

T = ("ns", "t")
PROPERTIES = [
    "write.metadata.path",
    "write.data.path",
    "write.object-storage.path",
    "write.folder-storage.path",
]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *a, **k: None)


def update(
    *updates: dict[str, object], table: tuple[str, ...] = T, actor: Principal = SYSTEM
) -> None:
    change = TableChange(table=table, requirements=[], updates=list(updates))
    iceberg_commits.commit_table(actor=actor, change=change)


def set_property(name: str, value: str) -> dict[str, object]:
    return {"action": "set-properties", "updates": {name: value}}


def set_location(location: str) -> dict[str, object]:
    return {"action": "set-location", "location": location}


def paths(*, table: str = "t") -> list[str]:
    rows = IcebergPath.objects.filter(table__name=table).exclude(table__state=TableState.DROPPED)
    return sorted(rows.values_list("path", flat=True))


def lance_operations(
    location: str,
) -> list[registration_operations.DeclareTable | registration_operations.RegisterTable]:
    return [
        registration_operations.DeclareTable(table=("ns", "lance"), location=location),
        registration_operations.RegisterTable(table=("ns", "lance"), location=location),
    ]


def refuse(location: str | Path, path: str | Path, kind: str = "table") -> None:
    for operation in lance_operations(str(location)):
        with unchanged(), pytest.raises(LocationTaken) as caught:
            commit([operation], actor=SYSTEM)
        assert caught.value.message == f"Location '{location}' belongs to {kind} 'ns.t' ({path})"


@pytest.mark.parametrize("name", PROPERTIES)
def test_lance_tables_may_not_overlap_iceberg_paths(warehouse, name):
    make_iceberg_table(*T, properties={name: f"file://{warehouse}/shared/data/"})
    path = f"{warehouse}/shared/data"
    refuse(path, path)
    refuse(f"{warehouse}/shared", path)
    make_table("ns", "inside", location=f"{path}/inside")
    make_table("ns", "beside", location=f"{path}2")


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_commit_records_its_paths(warehouse, name):
    make_iceberg_table(*T)
    update(set_property("a", "b"))
    assert paths() == []
    update(set_property(name, f"{warehouse}/shared"))
    refuse(warehouse / "shared", warehouse / "shared")


def test_a_staged_creation_records_its_paths(warehouse):
    make_namespace("ns")
    requirements = [{"type": "assert-create"}]
    staged = iceberg_commits.create_table(
        actor=SYSTEM,
        table=T,
        schema={"type": "struct", "fields": []},
        properties={"write.data.path": f"{warehouse}/shared"},
        stage=True,
    ).document
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": staged["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        set_location(staged["location"]),
        {"action": "set-properties", "updates": staged["properties"]},
    ]
    change = TableChange(table=T, requirements=requirements, updates=updates)
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    assert paths() == [f"{warehouse}/shared"]


def test_former_path_properties_remain_recorded(warehouse):
    make_iceberg_table(*T, properties={"write.data.path": f"{warehouse}/first"})
    update(set_property("write.data.path", f"{warehouse}/second"))
    update({"action": "remove-properties", "removals": ["write.data.path"]})
    for name in ("first", "second"):
        refuse(warehouse / name, warehouse / name)


def test_a_former_location_remains_recorded(warehouse):
    location = make_iceberg_table(*T, location=f"{warehouse}/first").location
    update(set_location(f"file://{warehouse}/second"))
    assert paths() == [location]
    refuse(location, location)
    update(set_location(f"file://{warehouse}/first"))
    assert paths() == [location, f"{warehouse}/second"]


def test_paths_inside_the_table_location_are_not_recorded(warehouse):
    location = make_iceberg_table(*T).location
    update(set_property("write.data.path", f"{location}/elsewhere"))
    update(set_property("write.metadata.path", f"file://{location}/other"))
    assert paths() == []


def test_a_registered_table_records_its_outside_metadata_path(warehouse):
    make_iceberg_table("ns", "u", location=f"{warehouse}/first")
    moved = f"{warehouse}/elsewhere"
    made = iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", "u"))
    Path(moved).mkdir()
    file = Path(made.metadata_location.removeprefix("file://"))
    copy = file.rename(f"{moved}/{file.name}")
    iceberg_commits.register_table(actor=SYSTEM, table=T, metadata_location=f"file://{copy}")
    assert paths() == [moved]
    refuse(moved, moved)


@pytest.mark.parametrize("place", ["", "team"])
def test_a_table_registered_from_a_root_or_namespace_does_not_keep_others_out(warehouse, place):
    make_iceberg_table("ns", "u", location=f"{warehouse}/first")
    commit(
        [CreateNamespace(namespace=("team",), properties={"location": f"{warehouse}/team/tables"})],
        actor=SYSTEM,
    )
    made = iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", "u"))
    directory = warehouse / place
    directory.mkdir(exist_ok=True)
    file = Path(made.metadata_location.removeprefix("file://"))
    copy = file.rename(directory / file.name)
    iceberg_commits.register_table(actor=SYSTEM, table=T, metadata_location=f"file://{copy}")
    assert paths() == []
    other = Principal("user:other", Privilege.CREATE | Privilege.BROWSE)
    iceberg_commits.create_table(actor=other, table=("team", "own"), schema=ICEBERG_SCHEMA)
    assert Table.objects.named(("team", "own")).exists()


def test_a_registered_table_takes_no_directory_in_the_location_of_a_hidden_namespace(warehouse):
    """The files of nobody there would become its own, to be removed by its jobs."""
    make_iceberg_table("ns", "u", location=f"{warehouse}/first")
    commit(
        [CreateNamespace(namespace=("team",), properties={"location": f"{warehouse}/team"})],
        actor=SYSTEM,
    )
    ada = PrincipalRow.objects.create(name="user:ada", kind="user")
    ada.grants.create(mask=closure(Privilege.ALL).value, namespace=make_namespace("ns"))
    made = iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", "u"))
    directory = warehouse / "team" / "exports"
    directory.mkdir(parents=True)
    file = Path(made.metadata_location.removeprefix("file://"))
    copy = file.rename(directory / file.name)
    register = partial(iceberg_commits.register_table, metadata_location=f"file://{copy}")
    register(actor=access.of_row(ada), table=T)
    assert paths() == []


def test_a_view_records_its_metadata_path(warehouse):
    make_namespace("ns")
    iceberg_views.create_view(
        actor=SYSTEM,
        view=T,
        schema={"type": "struct", "fields": []},
        view_version={
            "version-id": 1,
            "timestamp-ms": 1,
            "schema-id": 0,
            "summary": {},
            "default-namespace": [],
            "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
        },
        properties={"write.metadata.path": f"{warehouse}/shared"},
    )
    refuse(warehouse / "shared", warehouse / "shared", "view")


def test_a_dropped_table_holds_its_paths_until_it_is_purged(warehouse, settings):
    settings.MONODON_PURGE_GRACE_SECONDS = 0
    make_iceberg_table(*T, properties={"write.data.path": f"{warehouse}/shared"})
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    refuse(f"{warehouse}/shared", f"{warehouse}/shared")
    recovery_undrop.purge_now(actor=SYSTEM, item=TrashItem.objects.latest("pk").pk)
    job_runner.run_job(Job.objects.latest("pk").pk)
    make_table("ns", "lance", location=f"{warehouse}/shared")


def test_iceberg_tables_may_share_paths(warehouse):
    first, second = f"{warehouse}/first", f"{warehouse}/second"
    shared = {"write.data.path": first, "write.metadata.path": second}
    make_iceberg_table(*T, properties=shared)
    make_iceberg_table("ns", "u", properties=shared)
    make_iceberg_table("ns", "inside", location=f"{first}/inside")
    make_iceberg_table("ns", "around", location=second)
    # It may keep a path that was recorded before another table enclosed it.
    update(set_property("a", "b"))
    assert paths() == [first, second]


@pytest.mark.parametrize("state", [JobStatus.QUEUED, JobStatus.RUNNING])
def test_no_path_is_allowed_inside_a_directory_being_purged(warehouse, state):
    lance = make_table("ns", "lance")
    stage(lance, 1)
    make_iceberg_table(*T)
    commit([table_operations.DropTable(table=("ns", "lance"))], actor=SYSTEM)
    Job.objects.update(status=state)
    before = files(warehouse)
    with unchanged(), pytest.raises(LocationTaken) as caught:
        update(set_property("write.data.path", f"{lance.location}/data"))
    assert caught.value.message == f"Location '{lance.location}' belongs to table 'ns.lance'"
    assert files(warehouse) == before
    Job.objects.update(status=JobStatus.SUCCEEDED)
    update(set_property("write.data.path", f"{lance.location}/data"))


def person(name: str, **namespaces: Privilege) -> Principal:
    row = PrincipalRow.objects.create(name=name, kind="user")
    for namespace, privilege in namespaces.items():
        row.grants.create(mask=closure(privilege).value, namespace=make_namespace(namespace))
    return access.of_row(row)


def deregistered(times: int) -> str:
    """The location of a table that was registered and deregistered."""
    made = make_iceberg_table("ns", "old")
    iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", "old"))
    for _ in range(times - 1):
        iceberg_commits.register_table(
            actor=SYSTEM, table=("ns", "old"), metadata_location=made.metadata_location
        )
        iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", "old"))
    return made.location


@pytest.mark.parametrize("inside", ["", "/data"])
def test_only_managers_of_a_deregistered_table_may_name_its_directories(warehouse, inside):
    location = deregistered(2)
    make_iceberg_table("other", "t")
    owner = person("user:owner", ns=Privilege.MANAGE, other=Privilege.MANAGE)
    stranger = person("user:stranger", ns=Privilege.WRITE, other=Privilege.MANAGE)
    before = files(warehouse)
    named = set_property("write.data.path", location + inside)
    with unchanged(), pytest.raises(LocationTaken):
        update(named, table=("other", "t"), actor=stranger)
    for operation in lance_operations(location + inside):
        with unchanged(), pytest.raises(LocationTaken):
            commit([replace(operation, table=("other", "lance"))], actor=stranger)
    assert files(warehouse) == before
    update(named, table=("other", "t"), actor=owner)
    assert paths() == [location + inside]


def test_the_cost_of_a_path_does_not_depend_on_the_number_of_deregistered_tables(warehouse):
    counts = []
    for number, times in enumerate((2, 12)):
        location = deregistered(times)
        make_iceberg_table("other", f"t{number}")
        owner = person(f"user:owner{number}", ns=Privilege.MANAGE, other=Privilege.MANAGE)
        with CaptureQueriesContext(connection) as queries:
            update(
                set_property("write.data.path", f"{location}/data"),
                table=("other", f"t{number}"),
                actor=owner,
            )
            operation = registration_operations.RegisterTable(
                table=("other", f"lance{number}"), location=location
            )
            with pytest.raises(LocationTaken):  # it has a path inside now
                commit([operation], actor=owner)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_cost_of_a_registration_does_not_depend_on_the_number_of_tables_inside(warehouse):
    counts = []
    for number, tables in enumerate((101, 110)):
        directory = warehouse / f"directory{number}"
        reader = person(f"user:reader{number}", ns=Privilege.MANAGE)
        for index in range(tables):
            table = make_table("ns", f"t{number}x{index}")
            Table.objects.filter(pk=table.pk).update(location=f"{directory}/{index}")
        operation = registration_operations.RegisterTable(
            table=("ns", f"around{number}"), location=str(directory)
        )
        with CaptureQueriesContext(connection) as queries, pytest.raises(LocationTaken):
            commit([operation], actor=reader)
        counts.append(len(queries))
    assert counts[0] == counts[1] < 10


def test_a_lance_directory_with_an_iceberg_tables_metadata_is_not_removed(warehouse):
    lance = make_table("ns", "lance")
    stage(lance, 1)
    made = make_iceberg_table("ns", "u")
    iceberg_tables.unregister_table(actor=SYSTEM, table=("ns", "u"))
    file = Path(made.metadata_location.removeprefix("file://"))
    copy = file.rename(f"{lance.location}/{file.name}")
    iceberg_commits.register_table(actor=SYSTEM, table=T, metadata_location=str(copy))
    before = files(warehouse)
    commit([table_operations.DropTable(table=("ns", "lance"))], actor=SYSTEM)
    job = Job.objects.get()
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert (job.status, job.error) == ("canceled", "other tables refer to its files")
    assert files(warehouse) == before


def test_the_migration_records_present_paths(warehouse):
    make_iceberg_table(*T, properties={"write.data.path": f"{warehouse}/shared"})
    make_iceberg_table("ns", "plain")
    make_iceberg_table("ns", "gone", properties={"write.data.path": f"{warehouse}/gone"})
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "gone"))
    IcebergPath.objects.all().delete()
    migration = importlib.import_module("catalog.migrations.0007_fill_iceberg_paths")
    for _ in range(2):
        migration.fill(apps, None)
        assert list(IcebergPath.objects.values_list("table__name", "path")) == [
            ("t", f"{warehouse}/shared")
        ]
    migration.clear(apps, None)
    assert not IcebergPath.objects.exists()


def test_path_lookups_use_an_index():
    with connection.cursor() as cursor:
        # PostgreSQL would scan the small tables of a test.
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = IcebergPath.objects.inside("/w/1").explain()
    assert "iceberg_path_prefix" in plan, plan


def test_claims_of_paths_lock_locations_first(warehouse):
    make_iceberg_table(*T)
    with CaptureQueriesContext(connection) as made:
        update(set_property("write.data.path", f"{warehouse}/shared"))
    statements = [query["sql"] for query in made]
    [lock] = [i for i, sql in enumerate(statements) if "pg_advisory_xact_lock" in sql]
    [insert] = [i for i, sql in enumerate(statements) if 'INSERT INTO "catalog_icebergpath"' in sql]
    assert lock < insert


@pytest.mark.django_db(transaction=True)
def test_a_path_and_a_lance_table_race_for_a_directory(transactional_db, warehouse):
    make_root()
    for number in range(8):
        iceberg, lance = ("ns", f"t{number}"), ("ns", f"l{number}")
        make_iceberg_table(*iceberg)
        location, barrier = f"{warehouse}/shared{number}", Barrier(2)

        def name(iceberg=iceberg, location=location, barrier=barrier) -> str:
            barrier.wait()
            return _outcome(
                lambda: update(set_property("write.data.path", f"{location}/data"), table=iceberg)
            )

        def declare(lance=lance, location=location, barrier=barrier) -> str:
            barrier.wait()
            return _outcome(
                lambda: commit(
                    [registration_operations.DeclareTable(table=lance, location=location)],
                    actor=SYSTEM,
                )
            )

        with ThreadPoolExecutor(2) as pool:
            outcome = sorted(task.result() for task in [pool.submit(name), pool.submit(declare)])
        assert outcome == ["LocationTaken", "done"]
        assert Table.objects.filter(location=location).exists() != bool(paths(table=f"t{number}"))


def _outcome(call) -> str:
    try:
        call()
    except CatalogError as error:
        return type(error).__name__
    else:
        return "done"
    finally:
        connection.close()
