"""Creation, commits, registration and deregistration of Iceberg tables. A refusal changes nothing."""

import gzip
import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    InvalidInput,
    InvalidLocation,
    InvalidMetadata,
    LocationTaken,
    NamespaceNotFound,
    RequirementFailed,
    ServiceUnavailable,
    TableAlreadyExists,
    TableNotFound,
    VersionAlreadyExists,
    ViewAlreadyExists,
)
from catalog.identifiers import digest
from catalog.models import (
    AuditEvent,
    IcebergMetadata,
    StagedFile,
    Table,
    TableFormat,
    TableKind,
    TableState,
    TableVersion,
    Transaction,
)
from catalog.services.engine.operation import Operation
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.lance.ledger import registration_operations, version_operations
from catalog.storage import local_files, locations
from tests.cases import shared_cases
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_table,
    make_version,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

T = ("ns", "t")
U = ("ns", "u")
CREATE = {"type": "assert-create"}


def set_property(name: str, value: str) -> dict[str, Any]:
    return {"action": "set-properties", "updates": {name: value}}


def change(table: tuple[str, ...], *updates: dict[str, Any], **changes: Any) -> TableChange:
    return TableChange(table=table, updates=list(updates), **{"requirements": [], **changes})


def commit_to(table: tuple[str, ...], *updates: dict[str, Any], **changes: Any) -> LoadedTable:
    return iceberg_commits.commit_table(actor=SYSTEM, change=change(table, *updates, **changes))


def load(table: tuple[str, ...]) -> LoadedTable:
    return iceberg_tables.load_table(actor=SYSTEM, table=table)


def make_view(*identifier: str) -> Table:
    return Table.objects.create(
        namespace=make_namespace(*identifier[:-1]),
        name=identifier[-1],
        digest=digest(identifier),
        format=TableFormat.ICEBERG,
        kind=TableKind.VIEW,
        state=TableState.LIVE,
        location=f"/views/{identifier[-1]}",
    )


def refused(error: type[CatalogError], call: Callable[[], object], where: Path) -> CatalogError:
    """Expect that a call is refused and changes no row, file or directory. Return the error."""
    before = files(where), sorted(where.rglob("*"))
    with unchanged(), pytest.raises(error) as caught:
        call()
    assert (files(where), sorted(where.rglob("*"))) == before
    assert caught.type is error
    return caught.value


def agrees(*tables: tuple[str, ...]) -> None:
    """Assert that ledger, stored answer and files agree, and that no file is recorded as pending."""
    assert not StagedFile.objects.exists()
    for table in tables:
        row = Table.objects.named(table).get()
        current = row.iceberg_metadata
        ledger = list(row.versions.order_by("version"))
        assert (current.metadata_location, current.sequence) == (
            ledger[-1].manifest_path,
            ledger[-1].version,
        )
        answer = json.loads(gzip.decompress(bytes(current.answer)))
        assert answer == {
            "metadata-location": current.metadata_location,
            "metadata": read(current.metadata_location),
            "config": {},
        }
        assert locations.iceberg_path(answer["metadata"]["location"]) == row.location


def read(location: str) -> dict[str, Any]:
    content = Path(locations.iceberg_path(location)).read_bytes()
    return json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)


# --- creating ----------------------------------------------------------------------------------


def test_a_table_is_created(warehouse):
    created = make_iceberg_table(*T, properties={"a": "b"})
    row = Table.objects.get()
    assert (row.format, row.kind, row.state) == ("iceberg", "table", "live")
    assert row.identifier == T
    assert row.location == created.location
    assert re.fullmatch(rf"{warehouse}/t-[0-9a-f]{{32}}", row.location)
    assert re.fullmatch(
        rf"file://{row.location}/metadata/00000-[0-9a-f-]{{36}}\.metadata\.json",
        created.metadata_location,
    )
    assert files(warehouse).keys() == {
        str(Path(locations.iceberg_path(created.metadata_location)).relative_to(warehouse))
    }
    agrees(T)
    version = TableVersion.objects.get()
    assert (version.version, version.manifest_path) == (0, created.metadata_location)
    assert version.manifest_size == len(next(iter(files(warehouse).values())))
    assert version.transaction == Transaction.objects.latest("created_at")
    assert AuditEvent.objects.latest("pk").action == "table.create"
    assert created.document["properties"] == {"a": "b"}
    assert created.document == load(T).document
    assert (created.pk, created.etag, created.sequence) == (row.pk, load(T).etag, 0)


def test_a_table_is_created_below_the_location_of_its_namespace(warehouse):
    make_namespace("ns", properties={"location": f"file://{warehouse}/of ns/"})
    created = make_iceberg_table(*T)
    assert re.fullmatch(rf"{warehouse}/of ns/t-[0-9a-f]{{32}}", created.location)
    agrees(T)


@pytest.mark.parametrize("spelling", ["{}/here", "{}/here/", "file://{}/here", "file:{}/here"])
def test_a_table_is_created_at_the_requested_location(warehouse, spelling):
    location = spelling.format(warehouse)
    created = make_iceberg_table(*T, location=location)
    assert created.location == f"{warehouse}/here"
    assert created.document["location"] == location.rstrip("/")  # as the client spelled it
    assert created.metadata_location.startswith(location.rstrip("/") + "/metadata/00000-")
    agrees(T)


def test_a_staged_creation_writes_nothing(warehouse):
    make_namespace("ns")
    before = files(warehouse)
    with unchanged():
        staged = make_iceberg_table_staged()
    assert files(warehouse) == before
    assert (staged.metadata_location, staged.pk) == ("", 0)
    assert json.loads(gzip.decompress(staged.answer))["metadata-location"] is None


def make_iceberg_table_staged(**create: Any) -> LoadedTable:
    return iceberg_commits.create_table(
        actor=SYSTEM, table=T, schema=ICEBERG_SCHEMA, stage=True, **create
    )


def updates_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The updates that create a staged table, as Java's create transaction sends them."""
    return [
        {"action": "assign-uuid", "uuid": document["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": document["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": document["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": document["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": document["location"]},
        {"action": "set-properties", "updates": {"made": "at once"}},
    ]


def test_a_commit_with_assert_create_creates_a_staged_table(warehouse):
    make_namespace("ns")
    staged = make_iceberg_table_staged()
    made = commit_to(T, *updates_of(staged.document), requirements=[CREATE])
    assert made.sequence == 0
    assert made.location == staged.location
    assert load(T).document == made.document
    assert made.document["table-uuid"] == staged.document["table-uuid"]
    assert made.document["properties"] == {"made": "at once"}
    assert len(files(warehouse)) == 1
    agrees(T)
    again = [change(T, *updates_of(staged.document), requirements=[CREATE])]
    error = refused(
        RequirementFailed,
        lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=again),
        warehouse,
    )
    assert "table already exists" in str(error)


def bad_locations(warehouse: Path) -> list[str]:
    return [
        "/etc/t",
        "file:///etc/t",
        f"{warehouse}",
        f"file://{warehouse}/../t",
        f"{warehouse}/a/../../t",
        f"{warehouse}/a%2f..%2f../t/%2e%2e/",
        "s3://bucket/t",
        "gs://bucket/t",
        "abfss://container@account/t",
        "relative/t",
        "",
        "file://elsewhere/t",
        f"{warehouse}/line\nbreak",
    ]


def test_invalid_locations_are_refused(warehouse):
    make_namespace("ns")
    make_iceberg_table(*U)
    (warehouse / "out").symlink_to("/etc")
    for location in [*bad_locations(warehouse), f"{warehouse}/out/t"]:
        creations = (
            lambda: make_iceberg_table(*T, location=location),  # noqa: B023 -- called at once
            lambda: make_iceberg_table_staged(location=location),  # noqa: B023
        )
        for call in (
            *(() if location == "relative/t" else creations),  # below the location of its namespace
            lambda: commit_to(U, {"action": "set-location", "location": location}),  # noqa: B023
            lambda: iceberg_commits.register_table(
                actor=SYSTEM,
                table=T,
                metadata_location=location,  # noqa: B023
            ),
        ):
            before = files(warehouse)
            with unchanged(), pytest.raises((InvalidLocation, InvalidMetadata)):
                call()
            assert files(warehouse) == before, location


@pytest.mark.parametrize(
    "name", ["write.metadata.path", "write.data.path", "write.object-storage.path"]
)
def test_path_properties_outside_the_roots_are_refused(warehouse, name):
    make_iceberg_table(*U)
    for path in bad_locations(warehouse):
        with_it = {name: path}
        refused(InvalidLocation, lambda: make_iceberg_table(*T, properties=with_it), warehouse)  # noqa: B023
        refused(InvalidLocation, lambda: commit_to(U, set_property(name, path)), warehouse)  # noqa: B023


def test_an_existing_path_property_is_accepted(warehouse, settings):
    """Otherwise no commit to a table would succeed after the allowed roots changed."""
    other = warehouse.with_name("other")
    settings.MONODON_ALLOWED_ROOTS = [str(other)]
    make_iceberg_table(*T, properties={"write.data.path": f"{other}/data"})
    settings.MONODON_ALLOWED_ROOTS = []
    assert commit_to(T, set_property("a", "b")).sequence == 1
    agrees(T)


@pytest.mark.parametrize("where", ["{}", "{}/inside", "{}/data/deep"])
def test_locations_of_other_tables_are_refused_before_anything_is_written(warehouse, where):
    for holder in (make_table("ns", "lance"), Table.objects.get(pk=make_iceberg_table(*U).pk)):
        Path(holder.location).mkdir(exist_ok=True)
        make_iceberg_table("ns", f"mover {holder.pk}")
        location = f"file://{where.format(holder.location)}"
        mover = ("ns", f"mover {holder.pk}")
        for call in (
            lambda: make_iceberg_table(*T, location=location),  # noqa: B023
            lambda: make_iceberg_table_staged(location=location),  # noqa: B023
            lambda: commit_to(mover, {"action": "set-location", "location": location}),  # noqa: B023
        ):
            error = refused(LocationTaken, call, warehouse)
            assert str(holder) in str(error)


def test_a_location_around_other_tables_is_refused(warehouse):
    make_iceberg_table(*U, location=f"{warehouse}/around/inner")
    refused(
        LocationTaken, lambda: make_iceberg_table(*T, location=f"{warehouse}/around"), warehouse
    )


def test_existing_names_are_refused(warehouse):
    make_iceberg_table("ns", "iceberg")
    make_table("ns", "lance")
    make_view("ns", "view")
    for name, error in (
        ("iceberg", TableAlreadyExists),
        ("lance", TableAlreadyExists),
        ("view", ViewAlreadyExists),
    ):
        table = ("ns", name)
        where = load(("ns", "iceberg")).metadata_location
        refused(error, lambda: make_iceberg_table(*table), warehouse)  # noqa: B023
        refused(
            error,
            lambda: iceberg_commits.register_table(
                actor=SYSTEM,
                table=table,  # noqa: B023
                metadata_location=where,  # noqa: B023
            ),
            warehouse,
        )
        if name != "iceberg":
            refused(error, lambda: commit_to(table, requirements=[CREATE]), warehouse)  # noqa: B023


def test_a_missing_namespace_is_refused(warehouse):
    def create(**options: Any) -> LoadedTable:
        return iceberg_commits.create_table(actor=SYSTEM, table=T, schema=ICEBERG_SCHEMA, **options)

    where = make_iceberg_table("other", "t").metadata_location
    refused(NamespaceNotFound, create, warehouse)
    refused(NamespaceNotFound, lambda: create(stage=True), warehouse)
    refused(NamespaceNotFound, lambda: commit_to(T, requirements=[CREATE]), warehouse)
    refused(
        NamespaceNotFound,
        lambda: iceberg_commits.register_table(actor=SYSTEM, table=T, metadata_location=where),
        warehouse,
    )
    refused(TableNotFound, lambda: load(T), warehouse)
    refused(TableNotFound, lambda: commit_to(T, set_property("a", "b")), warehouse)


# --- committing --------------------------------------------------------------------------------


def test_a_commit_changes_metadata_ledger_and_audit_trail(warehouse):
    created = make_iceberg_table(*T)
    committed = commit_to(
        T,
        set_property("a", "b"),
        requirements=[{"type": "assert-table-uuid", "uuid": created.document["table-uuid"]}],
    )
    assert committed.sequence == 1
    assert "/metadata/00001-" in committed.metadata_location
    assert committed.document == load(T).document
    assert committed.etag == load(T).etag != created.etag
    assert committed.document["properties"] == {"a": "b"}
    assert [entry["metadata-file"] for entry in committed.document["metadata-log"]] == [
        created.metadata_location
    ]
    assert len(files(warehouse)) == 2
    agrees(T)
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target) == ("table.commit", "ns.t")
    assert event.before == {"metadata_location": created.metadata_location}
    assert event.after == {
        "metadata_location": committed.metadata_location,
        "updates": ["set-properties"],
    }
    assert Transaction.objects.latest("created_at").operations == [
        {"operation": "UpdateTable", "target": "ns.t", **event.after}
    ]


@pytest.mark.parametrize(
    "updates",
    [
        (),
        ({"action": "set-properties", "updates": {"a": "b"}},),
        ({"action": "remove-properties", "removals": ["none"]},),
        ({"action": "upgrade-format-version", "format-version": 2},),
    ],
)
def test_a_commit_that_changes_nothing_writes_nothing(warehouse, updates):
    created = make_iceberg_table(*T, properties={"a": "b"})
    before = files(warehouse)
    with unchanged():
        committed = commit_to(T, *updates)
    assert files(warehouse) == before
    assert (committed.metadata_location, committed.etag) == (
        created.metadata_location,
        created.etag,
    )
    assert committed.document == created.document


def test_a_commit_may_change_the_location(warehouse):
    make_iceberg_table(*T)
    committed = commit_to(T, {"action": "set-location", "location": f"file://{warehouse}/moved"})
    assert committed.location == f"{warehouse}/moved"
    assert Table.objects.get().location == f"{warehouse}/moved"
    assert Path(f"{warehouse}/moved/metadata").is_dir()
    agrees(T)


def test_only_a_replacement_of_an_empty_table_changes_types_freely(warehouse):
    make_iceberg_table(*T)
    columns = [{**field, "type": "string"} for field in ICEBERG_SCHEMA["fields"]]
    updates = (
        {"action": "add-schema", "schema": {"type": "struct", "fields": columns}},
        {"action": "set-current-schema", "schema-id": -1},
    )
    refused(InvalidMetadata, lambda: commit_to(T, *updates), warehouse)
    requirement = {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}
    committed = commit_to(T, *updates, requirements=[requirement])
    assert committed.document["current-schema-id"] == 1


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ({"type": "assert-table-uuid", "uuid": str(uuid.UUID(int=7))}, "UUID does not match"),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
            "branch or tag main is missing, expected 7",
        ),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 7},
            "last assigned field id changed: expected id 7 != 2",
        ),
        (CREATE, "table already exists"),
    ],
)
def test_a_failed_requirement_refuses_the_commit(warehouse, requirement, words):
    make_iceberg_table(*T)
    error = refused(
        RequirementFailed,
        lambda: commit_to(T, set_property("a", "b"), requirements=[requirement]),
        warehouse,
    )
    assert words in str(error)


@pytest.mark.parametrize(
    ("updates", "requirements"),
    [
        ([{"action": "no-such-update"}], []),
        ([{}], []),
        ([set_property("a", "b")], [{"type": "no-such-requirement"}]),
        ([set_property("a", "b")], [{"type": 7}]),
        ([{"action": "set-current-schema", "schema-id": 7}], []),
    ],
)
def test_malformed_changes_are_refused(warehouse, updates, requirements):
    make_iceberg_table(*T)
    refused(InvalidMetadata, lambda: commit_to(T, *updates, requirements=requirements), warehouse)


def test_commits_to_other_objects_are_refused(warehouse):
    make_table("ns", "lance")
    make_view("ns", "view")
    for name in ("lance", "view", "none"):
        refused(TableNotFound, lambda: commit_to(("ns", name), set_property("a", "b")), warehouse)  # noqa: B023


def test_a_property_sets_the_directory_of_metadata_files(warehouse):
    own = f"file://{warehouse}/all metadata"
    make_iceberg_table(*T, properties={"write.metadata.path": f"{own}/"})
    committed = commit_to(T, set_property("a", "b"))
    assert committed.metadata_location.startswith(f"{own}/00001-")
    moved = commit_to(T, set_property("write.metadata.path", f"{own}/below"))
    assert moved.metadata_location.startswith(f"{own}/below/00002-")
    assert {name.split("/")[0] for name in files(warehouse)} == {"all metadata"}
    agrees(T)


def test_a_property_enables_compression_of_metadata_files(warehouse):
    created = make_iceberg_table(*T, properties={"write.metadata.compression-codec": "gzip"})
    assert created.metadata_location.endswith(".gz.metadata.json")
    plain = commit_to(T, set_property("write.metadata.compression-codec", "none"))
    assert plain.metadata_location.endswith(".metadata.json")
    assert not plain.metadata_location.endswith(".gz.metadata.json")
    agrees(T)
    first, second = files(warehouse).values()
    assert json.loads(gzip.decompress(first)) == created.document
    assert json.loads(second) == plain.document
    last = iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    again = iceberg_commits.register_table(
        actor=SYSTEM, table=T, metadata_location=created.metadata_location
    )
    assert again.document == created.document
    assert last.document == plain.document


@pytest.mark.parametrize("name", ["write.metadata.path", "write.data.path"])
def test_files_inside_another_table_are_refused(warehouse, name):
    """A purge of the other table would remove them."""
    lance, other = make_table("ns", "lance"), make_iceberg_table(*U)
    mine = make_iceberg_table(*T)
    for location in (lance.location, f"{lance.location}/deep/er", f"file://{other.location}/data"):
        refused(LocationTaken, lambda: commit_to(T, set_property(name, location)), warehouse)  # noqa: B023
        create = {"properties": {name: location}}
        refused(LocationTaken, lambda: make_iceberg_table("ns", "new", **create), warehouse)  # noqa: B023
    commit_to(T, set_property(name, f"{mine.location}/elsewhere"))
    commit_to(T, set_property(name, f"{warehouse}/shared"))
    make_iceberg_table("ns", "inside", location=f"{warehouse}/shared/inside")
    commit_to(U, set_property(name, f"{warehouse}/shared"))
    agrees(T)


def test_an_unwritable_file_fails_the_commit(warehouse):
    """A file has the name of the directory."""
    make_iceberg_table(*T)
    (warehouse / "occupied").write_bytes(b"a file")
    lead_there = set_property("write.metadata.path", f"file://{warehouse}/occupied/metadata")
    error = refused(InvalidLocation, lambda: commit_to(T, lead_there), warehouse)
    assert "cannot be: a link or a file is on its path" in str(error)
    refused(
        InvalidLocation,
        lambda: make_iceberg_table(*U, location=f"file://{warehouse}/occupied/u"),
        warehouse,
    )
    assert commit_to(T, set_property("a", "b")).sequence == 1


def test_a_full_disk_fails_the_commit(warehouse, monkeypatch):
    make_iceberg_table(*T)
    make_iceberg_table(*U)
    real, calls = local_files.write_new_file, []

    def write(path: str, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 2:
            Path(path).write_bytes(content[:10])
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(local_files, "write_new_file", write)
    changes = [change(T, set_property("a", "b")), change(U, set_property("a", "b"))]
    error = refused(
        ServiceUnavailable,
        lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=changes),
        warehouse,
    )
    assert "No space left on device" in str(error)
    assert len(calls) == 2


# --- several tables ----------------------------------------------------------------------------


def test_a_transaction_commits_to_several_tables(warehouse):
    make_iceberg_table(*T)
    make_iceberg_table(*U)
    staged = iceberg_commits.create_table(
        actor=SYSTEM, table=("ns", "new"), schema=ICEBERG_SCHEMA, stage=True
    )
    count = Transaction.objects.count()
    committed = iceberg_commits.commit_tables(
        actor=SYSTEM,
        changes=[
            change(U, set_property("a", "u")),
            change(("ns", "new"), *updates_of(staged.document), requirements=[CREATE]),
            change(T, set_property("a", "t")),
        ],
    )
    assert [loaded.identifier for loaded in committed] == [U, ("ns", "new"), T]
    assert [load(loaded.identifier).document for loaded in committed] == [
        loaded.document for loaded in committed
    ]
    agrees(T, U, ("ns", "new"))
    assert Transaction.objects.count() == count + 1
    assert len(Transaction.objects.latest("created_at").operations) == 3


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (change(U, requirements=[{"type": "assert-current-schema-id", "current-schema-id": 7}]),
         RequirementFailed),
        (change(("ns", "none"), set_property("a", "b")), TableNotFound),
        (change(U, {"action": "set-location", "location": "/etc/u"}), InvalidLocation),
        (change(U, {"action": "no-such-update"}), InvalidMetadata),
        (change(("none", "u"), requirements=[CREATE]), NamespaceNotFound),
    ],
)  # fmt: skip
def test_a_transaction_commits_all_changes_or_none(warehouse, second, error):
    make_iceberg_table(*T)
    make_iceberg_table(*U)
    changes = [change(T, set_property("a", "b")), second]
    error = refused(
        error, lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=changes), warehouse
    )
    assert error.operation == 1


def test_cached_metadata_of_tables_that_exchanged_names_is_not_confused(warehouse):
    """A process that caches the metadata of both uses each for the right table."""
    for name, value in ((T, "t"), (U, "u")):
        make_iceberg_table(*name)
        commit_to(name, set_property("a", value))  # now this process has cached the table
    aside = ("ns", "aside")
    for table, new in ((T, aside), (U, T), (aside, U)):
        iceberg_tables.rename_table(actor=SYSTEM, table=table, new=new)
    changes = [change(name, set_property("b", "b")) for name in (T, U)]
    committed = iceberg_commits.commit_tables(actor=SYSTEM, changes=changes)
    assert [loaded.document["properties"]["a"] for loaded in committed] == ["u", "t"]
    agrees(T, U)


def test_a_table_may_occur_once_in_a_transaction(warehouse):
    make_iceberg_table(*T)
    changes = [change(T, set_property("a", "b")), change(T, set_property("c", "d"))]
    refused(
        InvalidInput,
        lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=changes),
        warehouse,
    )


def both(*also: Operation) -> list[LoadedTable]:
    return iceberg_commits.commit_tables(
        actor=SYSTEM, changes=[change(T, set_property("a", "b"))], also=also
    )


def test_both_formats_in_one_transaction(warehouse):
    make_iceberg_table(*T)
    make_table("ns", "lance")
    both(
        version_operations.CreateVersion(
            table=("ns", "lance"), version=1, manifest_path="elsewhere/1.manifest"
        ),
        registration_operations.DeclareTable(table=("ns", "declared")),
    )
    last = Transaction.objects.latest("created_at")
    assert [operation["operation"] for operation in last.operations] == [
        "UpdateTable",
        "CreateTableVersion",
        "DeclareTable",
    ]
    assert {version.table.name for version in last.versions.all()} == {"t", "lance"}
    agrees(T)


def test_a_refusal_of_either_format_refuses_both(warehouse):
    make_iceberg_table(*T)
    make_table("ns", "lance")
    make_version(("ns", "lance"), 1)
    create = version_operations.CreateVersion(
        table=("ns", "lance"), version=1, manifest_path="elsewhere/again"
    )
    error = refused(VersionAlreadyExists, lambda: both(create), warehouse)
    assert error.operation == 1
    refused(
        TableAlreadyExists, lambda: both(registration_operations.DeclareTable(table=T)), warehouse
    )
    create = version_operations.CreateVersion(
        table=("ns", "lance"), version=2, manifest_path="elsewhere/2"
    )
    failing = [change(T, set_property("a", "b"), requirements=[CREATE])]
    refused(
        RequirementFailed,
        lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=failing, also=[create]),
        warehouse,
    )


def test_a_table_dropped_by_another_process_refuses_the_transaction(warehouse):
    """Another process dropped one of the tables after this one cached it."""
    make_iceberg_table(*T)
    lance = make_table("ns", "lance")
    make_version(("ns", "lance"), 1)
    make_version(("ns", "lance"), 2)  # now it is live and cached
    Table.objects.filter(pk=lance.pk).update(state="dropped")
    create = version_operations.CreateVersion(
        table=("ns", "lance"), version=3, manifest_path="elsewhere/3"
    )
    changes = [change(T, set_property("a", "c"))]
    refused(
        TableNotFound,
        lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=changes, also=[create]),
        warehouse,
    )
    agrees(T)


# --- deregistration and registration -----------------------------------------------------------


def test_a_table_that_is_registered_again_keeps_its_uuid(warehouse):
    make_iceberg_table(*T)
    last = commit_to(T, set_property("a", "b"))
    before = files(warehouse)
    forgotten = iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    assert forgotten.document == last.document
    assert files(warehouse) == before
    refused(TableNotFound, lambda: load(T), warehouse)
    again = iceberg_commits.register_table(
        actor=SYSTEM, table=U, metadata_location=last.metadata_location
    )
    assert files(warehouse) == before
    assert again.document == last.document
    assert again.document["table-uuid"] == last.document["table-uuid"]
    assert (again.sequence, again.location) == (1, last.location)
    agrees(U)
    following = commit_to(U, set_property("c", "d"))
    assert following.sequence == 2
    assert following.document["properties"] == {"a": "b", "c": "d"}
    agrees(U)


def test_register_with_overwrite_replaces_the_metadata(warehouse):
    make_iceberg_table(*T)
    last = commit_to(T, set_property("a", "b"))
    other = make_iceberg_table(*U)
    iceberg_tables.unregister_table(actor=SYSTEM, table=U)
    before = files(warehouse)
    registered = iceberg_commits.register_table(
        actor=SYSTEM, table=T, metadata_location=other.metadata_location, overwrite=True
    )
    assert load(T).document == registered.document == other.document
    assert registered == load(T)
    assert files(warehouse) == before
    agrees(T)
    # Then back to the older metadata.
    first = last.document["metadata-log"][0]["metadata-file"]
    iceberg_commits.register_table(actor=SYSTEM, table=T, metadata_location=first, overwrite=True)
    assert load(T).document["properties"] == {}
    assert Table.objects.present().count() == 1
    assert files(warehouse) == before
    agrees(T)


def test_register_with_older_metadata_rolls_a_table_back(warehouse):
    """Clients use this for manual rollbacks."""
    first = make_iceberg_table(*T)
    commit_to(T, set_property("a", "b"))
    registered = iceberg_commits.register_table(
        actor=SYSTEM, table=T, metadata_location=first.metadata_location, overwrite=True
    )
    assert registered.document == first.document
    assert commit_to(T, set_property("c", "d")).sequence == 1
    agrees(T)


def test_register_does_not_overwrite_other_objects(warehouse):
    where = make_iceberg_table(*T).metadata_location
    iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    make_table("ns", "lance")
    make_view("ns", "view")
    for name, error in (("lance", TableAlreadyExists), ("view", ViewAlreadyExists)):
        before = files(warehouse)
        with unchanged(), pytest.raises(error):
            iceberg_commits.register_table(
                actor=SYSTEM, table=("ns", name), metadata_location=where, overwrite=True
            )
        assert files(warehouse) == before


@shared_cases(
    ("content", "error"),
    [
        (None, InvalidLocation),
        (b"", InvalidMetadata),
        (b"no JSON", InvalidMetadata),
        (b"[]", InvalidMetadata),
        (b"{}", InvalidMetadata),
        (b"\x1f\x8bno gzip", InvalidMetadata),
    ],
)
def test_register_refuses_invalid_metadata(warehouse, content, error):
    make_namespace("ns")
    path = warehouse / "00007-x.metadata.json"
    if content is not None:
        path.write_bytes(content)
    refused(
        error,
        lambda: iceberg_commits.register_table(
            actor=SYSTEM, table=T, metadata_location=f"file://{path}"
        ),
        warehouse,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("location", "/etc/t"),
        ("location", "s3://bucket/t"),
        ("properties", {"write.metadata.path": "/etc"}),
        ("properties", {"write.data.path": "s3://bucket/data"}),
    ],
)
def test_register_refuses_metadata_outside_the_roots(warehouse, key, value):
    created = make_iceberg_table(*T)
    iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    path = warehouse / "00007-x.metadata.json"
    path.write_text(json.dumps(created.document | {key: value}))
    refused(
        InvalidLocation,
        lambda: iceberg_commits.register_table(
            actor=SYSTEM, table=T, metadata_location=f"file://{path}"
        ),
        warehouse,
    )


def test_register_refuses_the_files_of_an_existing_table(warehouse):
    where = make_iceberg_table(*T).metadata_location
    refused(
        LocationTaken,
        lambda: iceberg_commits.register_table(actor=SYSTEM, table=U, metadata_location=where),
        warehouse,
    )


def test_the_name_of_a_dropped_table_can_be_reused(warehouse):
    first = make_iceberg_table(*T)
    iceberg_tables.drop_table(actor=SYSTEM, table=T)
    refused(TableNotFound, lambda: commit_to(T, set_property("a", "b")), warehouse)
    second = make_iceberg_table(*T)
    assert second.location != first.location
    assert second.document["table-uuid"] != first.document["table-uuid"]
    agrees(T)


def test_a_renamed_table_accepts_commits(warehouse):
    created = make_iceberg_table(*T)
    make_namespace("other")
    iceberg_tables.rename_table(actor=SYSTEM, table=T, new=("other", "u"))
    refused(TableNotFound, lambda: commit_to(T, set_property("a", "b")), warehouse)
    committed = commit_to(("other", "u"), set_property("a", "b"))
    assert (committed.location, committed.sequence) == (created.location, 1)
    agrees(("other", "u"))


# --- statements --------------------------------------------------------------------------------


def test_load_is_one_statement(django_assert_num_queries):
    made = make_iceberg_table(*T)
    with django_assert_num_queries(1):
        loaded = load(T)
    with django_assert_num_queries(1):
        unchanged_table = iceberg_tables.load_table(actor=SYSTEM, table=T, etags=['"x"', made.etag])
    assert loaded.answer == made.answer
    assert (unchanged_table.answer, unchanged_table.etag) == (None, made.etag)


def statements(call: Callable[[], object]) -> list[str]:
    """The statements of a call, without the savepoints that replace BEGIN and COMMIT in tests."""
    with CaptureQueriesContext(
        connection,
    ) as captured:
        call()
    texts = [" ".join(query["sql"].split()) for query in captured]
    return [text for text in texts if "SAVEPOINT" not in text]


def test_a_commit_is_two_statements(warehouse):
    make_iceberg_table(*T)
    commit_to(T, set_property("a", "a"))  # now this process has cached the table
    note, swap = statements(lambda: commit_to(T, set_property("a", "b")))
    assert "INSERT INTO catalog_stagedfile" in note
    assert "m.etag =" in note
    # The table is locked before any of its rows is written; the ledger, the transaction and the
    # audit row follow.
    words = [
        "FOR NO KEY UPDATE",
        "UPDATE catalog_icebergmetadata",
        'INSERT INTO "catalog_tableversion"',
        'INSERT INTO "catalog_transaction"',
        'INSERT INTO "catalog_auditevent"',
    ]
    places = [swap.index(word) for word in words]
    assert places == sorted(places)


def test_tables_are_locked_in_a_fixed_order(warehouse):
    make_iceberg_table(*T)
    make_iceberg_table(*U)
    changes = [change(U, set_property("a", "b")), change(T, set_property("a", "b"))]
    executed = statements(lambda: iceberg_commits.commit_tables(actor=SYSTEM, changes=changes))
    locks = [index for index, text in enumerate(executed) if "FOR NO KEY UPDATE" in text]
    writes = [index for index, text in enumerate(executed) if "UPDATE catalog_icebergm" in text]
    assert (len(locks), len(writes), len(executed)) == (1, 2, 7)
    assert locks[0] < writes[0]
    assert "ORDER BY" in executed[locks[0]]


def test_a_refusal_by_a_requirement_is_one_statement(warehouse):
    make_iceberg_table(*T)

    def commit_and_fail() -> None:
        with pytest.raises(RequirementFailed):
            commit_to(T, set_property("a", "b"), requirements=[CREATE])

    assert len(statements(commit_and_fail)) == 1


def test_the_answer_for_a_large_table_is_stored_compressed():
    made = make_iceberg_table(*T, properties={f"p{n}": "x" * 100 for n in range(2000)})
    stored = bytes(IcebergMetadata.objects.get().answer)
    assert stored == made.answer
    assert len(stored) < len(metadata_files.decompress(stored)) / 10
