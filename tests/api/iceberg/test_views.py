import gzip
import json
import threading
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest
from django.db import connection

from catalog.access import SYSTEM
from catalog.errors import Conflict, LocationTaken, ViewAlreadyExists
from catalog.models import (
    AuditEvent,
    IcebergMetadata,
    StagedFile,
    Table,
    TableVersion,
    Transaction,
    TrashItem,
)
from catalog.services.engine.batch import Batch
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.recovery import undrop
from catalog.services.tables import namespace_operations
from catalog.storage.locations import iceberg_uri
from tests.api.iceberg.client import Iceberg, spell
from tests.cases import shared_cases
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    unchanged,
)

pytestmark = pytest.mark.django_db

VIEWS = "namespaces/ns/views"
PATH = f"{VIEWS}/v"
OTHER_UUID = "8a4a0b1e-58e5-4f4c-9d0c-6f1f9f3f7a11"


def version(text="select 1", number=1, dialect="spark", **keys) -> dict:
    return {
        "version-id": number,
        "schema-id": 0,
        "timestamp-ms": 2_000 + number,
        "summary": {"engine-name": "spark"},
        "representations": [{"type": "sql", "sql": text, "dialect": dialect}],
        "default-namespace": ["ns"],
        **keys,
    }


def creation(name="v", **keys) -> dict:
    """The body of a createView."""
    made = {"name": name, "schema": ICEBERG_SCHEMA, "view-version": version(), "properties": {}}
    return {**made, **keys}


def make_view(*identifier: str, **create) -> LoadedTable:
    make_namespace(*identifier[:-1])
    made = {"schema": ICEBERG_SCHEMA, "view_version": version(), **create}
    return iceberg_views.create_view(actor=SYSTEM, view=identifier, **made)


def replacement(text="select 2", **keys) -> list[dict]:
    return [
        {"action": "add-view-version", "view-version": version(text, 2, **keys)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def set_property(value: str) -> dict:
    return {"action": "set-properties", "updates": {"key": value}}


def local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def identifiers(answer: dict) -> list[str]:
    return [identifier["name"] for identifier in answer["identifiers"]]


# --- listViews ---------------------------------------------------------------------------------


@pytest.mark.operation("listViews")
def test_only_views_are_listed(iceberg: Iceberg, django_assert_num_queries):
    for name in ("b", "a"):
        make_view("ns", name)
    make_view("ns", "inner", "c")
    make_iceberg_table("ns", "t")
    make_table("ns", "vectors")
    iceberg_views.drop_view(actor=SYSTEM, view=make_view("ns", "gone").identifier)
    iceberg.get(VIEWS)
    with django_assert_num_queries(1):
        listed = iceberg.get(VIEWS)
    assert listed == {
        "identifiers": [{"namespace": ["ns"], "name": "a"}, {"namespace": ["ns"], "name": "b"}],
        "next-page-token": None,
    }
    assert identifiers(iceberg.get("namespaces/ns/tables")) == ["t"]
    inner = iceberg.get(f"namespaces/{spell('ns', 'inner')}/views")
    assert inner["identifiers"] == [{"namespace": ["ns", "inner"], "name": "c"}]


@pytest.mark.operation("listViews")
def test_a_list_in_pages(iceberg: Iceberg):
    for name in ("a", "b", "c"):
        make_view("ns", name)
    first = iceberg.get(f"{VIEWS}?pageToken=&pageSize=2")
    assert identifiers(first) == ["a", "b"]
    second = iceberg.get(f"{VIEWS}?pageToken={first['next-page-token']}&pageSize=2")
    assert identifiers(second) == ["c"]
    assert second["next-page-token"] is None


@pytest.mark.operation("listViews")
def test_a_list_that_is_refused(iceberg: Iceberg):
    iceberg.refused(404, "NoSuchNamespaceException", "Namespace does not exist: ns", f"GET {VIEWS}")
    make_namespace("ns")
    iceberg.refused(400, "BadRequestException", "pageSize", f"GET {VIEWS}?pageSize=0")
    assert iceberg.get(VIEWS)["identifiers"] == []


# --- createView --------------------------------------------------------------------------------


@pytest.mark.operation("createView")
def test_a_new_view(iceberg: Iceberg, warehouse: Path):
    make_namespace("ns")
    body = creation(properties={"comment": "c"}, **{"view-version": version(**{"schema-id": 3})})
    answer = iceberg.post(VIEWS, body)
    metadata = answer["metadata"]
    assert set(answer) == {"metadata-location", "metadata", "config"}
    assert metadata == {
        "view-uuid": metadata["view-uuid"],
        "format-version": 1,
        "location": metadata["location"],
        "properties": {"comment": "c"},
        "schemas": [ICEBERG_SCHEMA],
        "current-version-id": 1,
        "versions": [version()],
        "version-log": [{"timestamp-ms": 2_001, "version-id": 1}],
    }
    assert answer == iceberg.get(PATH)
    path = local(answer["metadata-location"])
    assert path.name.startswith("00000-")
    assert answer["metadata-location"].startswith(f"{metadata['location']}/metadata/")
    assert json.loads(path.read_bytes()) == metadata
    row = Table.objects.get()
    assert (row.format, row.kind, row.state) == ("iceberg", "view", "live")
    assert (row.location, row.owner) == (str(local(metadata["location"])), "tester")
    assert [v.manifest_path for v in row.versions.all()] == [answer["metadata-location"]]
    assert row.iceberg_metadata.sequence == 0
    assert len(files(warehouse)) == 1
    assert not StagedFile.objects.exists()
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target, event.actor) == ("view.create", "ns.v", "tester")
    (operations,) = Transaction.objects.latest("created_at").operations
    assert (operations["operation"], operations["target"]) == ("CreateView", "ns.v")


@pytest.mark.operation("createView")
def test_a_view_with_an_explicit_location(iceberg: Iceberg, warehouse: Path):
    make_namespace("ns")
    location = f"file://{warehouse}/here"
    properties = {"write.metadata.compression-codec": "gzip"}
    answer = iceberg.post(VIEWS, creation(location=f"{location}/", properties=properties))
    assert answer["metadata"]["location"] == location
    assert answer["metadata-location"].startswith(f"{location}/metadata/00000-")
    assert answer["metadata-location"].endswith(".gz.metadata.json")
    content = gzip.decompress(local(answer["metadata-location"]).read_bytes())
    assert json.loads(content) == answer["metadata"]
    before = files(warehouse)
    request = f"POST {VIEWS}"
    iceberg.refused(
        409, "AlreadyExistsException", "belongs to", request, creation("w", location=location)
    )
    elsewhere = creation("w", location="file:///etc/monodon")
    iceberg.refused(400, "BadRequestException", "Location", request, elsewhere)
    elsewhere = creation("w", properties={"write.metadata.path": "file:///etc"})
    iceberg.refused(400, "BadRequestException", "Location", request, elsewhere)
    assert files(warehouse) == before


@pytest.mark.operation("createView")
def test_a_taken_name_is_refused(iceberg: Iceberg, warehouse: Path):
    make_view("ns", "v")
    make_iceberg_table("ns", "t")
    make_table("ns", "vectors")
    before = files(warehouse)
    for name, words in (
        ("v", "View already exists: ns.v"),
        ("t", "Table with same name already exists: ns.t"),
        ("vectors", "Table with same name already exists: ns.vectors"),
    ):
        request = f"POST {VIEWS}"
        iceberg.refused(409, "AlreadyExistsException", words, request, creation(name))
    create = {"name": "v", "schema": ICEBERG_SCHEMA}
    iceberg.refused(
        409,
        "AlreadyExistsException",
        "View with same name already exists: ns.v",
        "POST namespaces/ns/tables",
        create,
    )
    assert files(warehouse) == before


@pytest.mark.operation("createView")
def test_a_view_in_no_namespace(iceberg: Iceberg):
    iceberg.refused(
        404, "NoSuchNamespaceException", "Namespace does not exist: ns", f"POST {VIEWS}", creation()
    )


@pytest.mark.operation("createView")
@shared_cases(
    ("changed", "words"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"schema": None}, "schema"),
        ({"schema": {"type": "struct"}}, "schema.fields is missing"),
        ({"view-version": 1}, "view-version"),
        (
            {"view-version": version(representations=[])},
            "view-version.representations must not be empty",
        ),
        (
            {"view-version": version(**{"default-namespace": "ns"})},
            "view-version.default-namespace must be an array, not a string",
        ),
        (
            {"view-version": version(**{"timestamp-ms": True})},
            "view-version.timestamp-ms must be an integer, not a boolean",
        ),
        ({"properties": {"a": 1}}, "properties"),
        ({"properties": ["a"]}, "properties"),
        ({"location": ""}, "location must not be empty"),
    ],
)
def test_a_malformed_view_is_refused(iceberg: Iceberg, warehouse: Path, changed, words):
    """Errors that Java's own catalogs report as invalid arguments have a separate type."""
    is_argument = words not in {"name", "schema", "view-version", "properties"}
    kind = "IllegalArgumentException" if is_argument else "BadRequestException"
    make_namespace("ns")
    iceberg.refused(400, kind, words, f"POST {VIEWS}", creation(**changed))
    assert files(warehouse) == {}


# --- loadView ----------------------------------------------------------------------------------


@pytest.mark.operation("loadView")
def test_a_created_object_is_loaded(iceberg: Iceberg, django_assert_num_queries):
    view = make_view("ns", "v")
    iceberg.get(PATH)
    with django_assert_num_queries(1):
        loaded = iceberg.get(PATH)
    assert loaded == {
        "metadata-location": view.metadata_location,
        "metadata": view.document,
        "config": {},
    }
    packed = iceberg.call("GET", PATH, headers={"accept-encoding": "gzip"})
    assert packed["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.content)) == loaded


@pytest.mark.operation("loadView")
def test_tables_that_are_not_views_are_refused(iceberg: Iceberg):
    kind = "NoSuchViewException"
    iceberg.refused(404, kind, "View does not exist: ns.v", f"GET {PATH}")
    make_iceberg_table("ns", "v")
    iceberg.refused(404, kind, "A table of this name exists", f"GET {PATH}")
    make_table("ns", "vectors")
    iceberg.refused(404, kind, "its format is lance", f"GET {VIEWS}/vectors")
    make_view("ns", "w")
    iceberg.refused(
        404, "NoSuchTableException", "A view of this name exists", "GET namespaces/ns/tables/w"
    )


@pytest.mark.operation("loadView")
def test_names_of_every_kind(iceberg: Iceberg):
    view = make_view("prod", "a b", "e/f ü")
    path = f"{spell('prod', 'a b')}/views/{quote('e/f ü', safe='')}"
    assert iceberg.get(f"namespaces/{path}")["metadata"] == view.document
    path = f"{spell('a b')}/views/{quote('e/f ü', safe='')}"
    assert iceberg.at("prod").get(f"namespaces/{path}")["metadata"] == view.document


# --- viewExists --------------------------------------------------------------------------------


@pytest.mark.operation("viewExists")
def test_view_exists(iceberg: Iceberg, django_assert_num_queries):
    iceberg.refused(404, "", "", f"HEAD {PATH}")
    make_view("ns", "v")
    make_iceberg_table("ns", "t")
    make_table("ns", "vectors")
    iceberg.send("HEAD", PATH)
    with django_assert_num_queries(1):
        assert iceberg.send("HEAD", PATH) is None
    for name in ("t", "vectors", "none"):
        iceberg.refused(404, "", "", f"HEAD {VIEWS}/{name}")
    iceberg.refused(404, "", "", "HEAD namespaces/ns/tables/v")


# --- replaceView -------------------------------------------------------------------------------


@pytest.mark.operation("replaceView")
def test_a_replacement(iceberg: Iceberg, warehouse: Path):
    old = make_view("ns", "v")
    answer = iceberg.post(
        PATH,
        {
            "identifier": {"namespace": ["ns"], "name": "v"},
            "requirements": [{"type": "assert-view-uuid", "uuid": old.document["view-uuid"]}],
            "updates": [*replacement(), set_property("value")],
        },
    )
    metadata = answer["metadata"]
    assert metadata == {
        **old.document,
        "properties": {"key": "value"},
        "current-version-id": 2,
        "versions": [version(), version("select 2", 2)],
        "version-log": [
            {"timestamp-ms": 2_001, "version-id": 1},
            {"timestamp-ms": 2_002, "version-id": 2},
        ],
    }
    assert answer == iceberg.get(PATH)
    path = local(answer["metadata-location"])
    assert path.name.startswith("00001-")
    assert json.loads(path.read_bytes()) == metadata
    assert [v.version for v in TableVersion.objects.order_by("version")] == [0, 1]
    assert len(files(warehouse)) == 2
    assert not StagedFile.objects.exists()
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target) == ("view.replace", "ns.v")
    assert event.before == {"metadata_location": old.metadata_location}
    assert event.after == {
        "metadata_location": answer["metadata-location"],
        "updates": ["add-view-version", "set-current-view-version", "set-properties"],
    }


@pytest.mark.operation("replaceView")
def test_how_many_statements_it_takes(iceberg: Iceberg, django_assert_num_queries):
    make_view("ns", "v")
    iceberg.post(PATH, {"updates": [set_property("0")]})
    with django_assert_num_queries(5):  # read, note, and the swap between a savepoint's two
        iceberg.post(PATH, {"updates": [set_property("1")]})


@pytest.mark.operation("replaceView")
def test_updates_that_change_nothing_commit_nothing(iceberg: Iceberg, warehouse: Path):
    make_view("ns", "v", properties={"key": "same"})
    before = files(warehouse)
    with unchanged():
        answer = iceberg.post(PATH, {"requirements": [], "updates": [set_property("same")]})
        assert iceberg.post(PATH, {"updates": []}) == answer
    assert answer == iceberg.get(PATH)
    assert files(warehouse) == before


@pytest.mark.operation("replaceView")
def test_moving_a_view(iceberg: Iceberg, warehouse: Path):
    make_view("ns", "v")
    new_location = f"file://{warehouse}/there"
    moved = iceberg.post(PATH, {"updates": [{"action": "set-location", "location": new_location}]})
    assert moved["metadata-location"].startswith(f"{new_location}/metadata/00001-")
    assert Table.objects.get().location == f"{warehouse}/there"
    other = iceberg_uri(make_iceberg_table("ns", "t").location)
    for location, status, kind in (
        (f"{other}/inner", 409, "AlreadyExistsException"),
        ("file:///etc", 400, "BadRequestException"),
    ):
        body = {"updates": [{"action": "set-location", "location": location}]}
        iceberg.refused(status, kind, "Location", f"POST {PATH}", body)


@pytest.mark.operation("replaceView")
def test_a_failed_requirement(iceberg: Iceberg, warehouse: Path):
    uuid = make_view("ns", "v").document["view-uuid"]
    before = files(warehouse)
    body = {
        "requirements": [{"type": "assert-view-uuid", "uuid": OTHER_UUID}],
        "updates": replacement(),
    }
    iceberg.refused(
        409,
        "CommitFailedException",
        f"Requirement failed: UUID does not match: expected {uuid} != {OTHER_UUID}",
        f"POST {PATH}",
        body,
    )
    assert files(warehouse) == before


@pytest.mark.operation("replaceView")
@shared_cases(
    ("body", "words"),
    [
        ({"updates": {}}, "updates: expected a list"),
        ({"updates": [], "requirements": 1}, "requirements: expected a list"),
        ({"updates": [{"action": "add-spec"}]}, "unknown view update 'add-spec'"),
        (
            {"updates": replacement(), "requirements": [{"type": "assert-create"}]},
            "unknown view requirement 'assert-create'",
        ),
        ({"updates": replacement(**{"schema-id": 7})}, "unknown schema: 7"),
        ({"updates": replacement(dialect="trino")}, "loss of view dialects"),
        (
            {"updates": [], "identifier": {"namespace": ["ns"], "name": "w"}},
            "The body's identifier is not the view of the path",
        ),
    ],
    prepare=lambda: make_view("ns", "v"),
)
def test_a_replacement_that_is_refused(iceberg: Iceberg, warehouse: Path, body, words):
    before = files(warehouse)
    is_argument = words.startswith(("unknown", "loss"))
    kind = "IllegalArgumentException" if is_argument else "BadRequestException"
    iceberg.refused(400, kind, words, f"POST {PATH}", body)
    assert files(warehouse) == before


@pytest.mark.operation("replaceView")
def test_only_views_are_replaced(iceberg: Iceberg):
    body = {"updates": replacement()}
    iceberg.refused(404, "NoSuchViewException", "View does not exist: ns.v", f"POST {PATH}", body)
    make_iceberg_table("ns", "v")
    iceberg.refused(404, "NoSuchViewException", "A table of this name", f"POST {PATH}", body)
    make_view("ns", "w")
    iceberg.refused(
        404,
        "NoSuchTableException",
        "A view of this name exists",
        "POST namespaces/ns/tables/w",
        {"updates": [set_property("value")]},
    )


@pytest.mark.operation("replaceView")
def test_a_conflicting_update_is_retried(iceberg: Iceberg, warehouse: Path, monkeypatch):
    """Another commit between the look and the swap: its change and this one both stand."""
    make_view("ns", "v")
    stage = metadata_files.staged
    met = []

    def staged(made):
        if not met:
            met.append(made)
            other = [{"action": "set-properties", "updates": {"other": "too"}}]
            # As another process, which does not use this process's queue.
            iceberg_views._attempt(SYSTEM, ("ns", "v"), [], other)
        return stage(made)

    monkeypatch.setattr(metadata_files, "staged", staged)
    answer = iceberg.post(PATH, {"updates": [set_property("value")]})
    assert answer["metadata"]["properties"] == {"key": "value", "other": "too"}
    assert [v.version for v in TableVersion.objects.order_by("version")] == [0, 1, 2]
    ((lost,),) = met
    assert not Path(lost.path).exists()
    assert len(files(warehouse)) == 3
    assert not StagedFile.objects.exists()


@pytest.mark.operation("replaceView")
def test_repeated_conflicts_end_in_a_refusal(iceberg: Iceberg, warehouse: Path, monkeypatch):
    make_view("ns", "v")
    before = files(warehouse)
    monkeypatch.setattr(Batch, "swap", lambda *args: False)
    monkeypatch.setattr(iceberg_commits, "_PAUSE_SECONDS", 0)
    body = {"updates": [set_property("value")]}
    words = "Cannot commit to view ns.v: others keep changing it"
    iceberg.refused(409, "CommitFailedException", words, f"POST {PATH}", body)
    assert files(warehouse) == before


@pytest.mark.operation("replaceView")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("in_turn", [True, False])
def test_concurrent_updates_are_all_applied(warehouse: Path, monkeypatch, in_turn):
    if not in_turn:  # as those of several processes meet
        monkeypatch.setattr(iceberg_commits, "turns", lambda names: nullcontext())
    make_root()
    make_view("ns", "v")
    barrier = threading.Barrier(6)

    def write(number: int) -> None:
        try:
            barrier.wait()
            updates = [{"action": "set-properties", "updates": {str(number): "x"}}]
            iceberg_views.replace_view(
                actor=SYSTEM, view=("ns", "v"), requirements=[], updates=updates
            )
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = iceberg_tables.load_table(actor=SYSTEM, table=("ns", "v"), kind="view")
    assert loaded.document["properties"] == {str(number): "x" for number in range(6)}
    assert [v.version for v in TableVersion.objects.order_by("version")] == list(range(7))
    assert len(files(warehouse)) == 7
    assert not StagedFile.objects.exists()


# --- dropView ----------------------------------------------------------------------------------


@pytest.mark.operation("dropView")
def test_dropping_keeps_the_row_and_the_files(iceberg: Iceberg, warehouse: Path):
    view = make_view("ns", "v")
    before = files(warehouse)
    iceberg.delete(PATH)
    assert files(warehouse) == before
    row = Table.objects.get()
    assert row.state == "dropped"
    assert IcebergMetadata.objects.filter(table=row).exists()
    assert not row.jobs.exists()
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target) == ("view.drop", "ns.v")
    assert event.before == {"location": view.location}
    iceberg.refused(404, "NoSuchViewException", "View does not exist: ns.v", f"GET {PATH}")
    # Its name is free again.
    assert iceberg.post(VIEWS, creation())["metadata"]["view-uuid"] != view.document["view-uuid"]


@pytest.mark.operation("dropView")
def test_only_views_are_dropped(iceberg: Iceberg):
    kind = "NoSuchViewException"
    iceberg.refused(404, kind, "View does not exist: ns.v", f"DELETE {PATH}")
    make_iceberg_table("ns", "v")
    iceberg.refused(404, kind, "A table of this name exists", f"DELETE {PATH}")
    iceberg.refused(404, kind, "View does not exist: ns.none", f"DELETE {VIEWS}/none")
    make_view("ns", "w")
    iceberg.refused(
        404, "NoSuchTableException", "A view of this name", "DELETE namespaces/ns/tables/w"
    )


@pytest.mark.operation("dropView")
def test_a_namespace_with_a_view_is_not_empty(iceberg: Iceberg):
    make_view("ns", "v")
    iceberg.refused(409, "NamespaceNotEmptyException", "is not empty", "DELETE namespaces/ns")
    iceberg.delete(PATH)
    iceberg.delete("namespaces/ns")


# --- renameView --------------------------------------------------------------------------------


def rename(source: list[str], new: list[str]) -> dict:
    return {
        "source": {"namespace": source[:-1], "name": source[-1]},
        "destination": {"namespace": new[:-1], "name": new[-1]},
    }


@pytest.mark.operation("renameView")
def test_renaming(iceberg: Iceberg):
    view = make_view("ns", "v")
    make_namespace("other", "ns")
    assert iceberg.post("views/rename", rename(["ns", "v"], ["other", "ns", "w"])) is None
    loaded = iceberg.get("namespaces/other%1Fns/views/w")
    assert loaded["metadata-location"] == view.metadata_location
    iceberg.refused(404, "NoSuchViewException", "ns.v", f"GET {PATH}")
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target) == ("view.rename", "other.ns.w")
    assert (event.before, event.after) == ({"name": "ns.v"}, {"name": "other.ns.w"})


@pytest.mark.operation("renameView")
def test_refused_renames(iceberg: Iceberg):
    make_view("ns", "v")
    make_view("ns", "w")
    make_iceberg_table("ns", "t")
    make_table("ns", "vectors")
    for name, noun in (("w", "View"), ("t", "Table"), ("vectors", "Table"), ("v", "View")):
        iceberg.refused(
            409,
            "AlreadyExistsException",
            f"Cannot rename ns.v to ns.{name}. {noun} already exists",
            "POST views/rename",
            rename(["ns", "v"], ["ns", name]),
        )
    for source, new, kind in (
        (["ns", "v"], ["none", "v"], "NoSuchNamespaceException"),
        (["ns", "none"], ["ns", "x"], "NoSuchViewException"),
        (["none", "v"], ["ns", "x"], "NoSuchViewException"),
        (["ns", "t"], ["ns", "x"], "NoSuchViewException"),
    ):
        iceberg.refused(404, kind, "", "POST views/rename", rename(source, new))
    iceberg.refused(
        409,
        "AlreadyExistsException",
        "Cannot rename ns.t to ns.v. View already exists",
        "POST tables/rename",
        rename(["ns", "t"], ["ns", "v"]),
    )
    body = {"source": {"namespace": ["ns"], "name": "v"}}
    iceberg.refused(400, "BadRequestException", "destination", "POST views/rename", body)


# --- registerView ------------------------------------------------------------------------------


@pytest.mark.operation("registerView")
def test_registering_a_view(iceberg: Iceberg, warehouse: Path):
    view = make_view("ns", "v")
    iceberg.delete(PATH)
    before = files(warehouse)
    request = "namespaces/ns/register-view"
    body = {"name": "again", "metadata-location": view.metadata_location}
    answer = iceberg.post(request, body)
    assert answer["metadata"] == view.document
    assert answer["metadata-location"] == view.metadata_location
    assert answer == iceberg.get(f"{VIEWS}/again")
    assert files(warehouse) == before
    row = Table.objects.present().get()
    assert (row.format, row.kind, row.state) == ("iceberg", "view", "live")
    assert [v.version for v in row.versions.all()] == [0]
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target) == ("view.register", "ns.again")
    # Replacements continue from there.
    answer = iceberg.post(f"{VIEWS}/again", {"updates": replacement()})
    assert answer["metadata"]["current-version-id"] == 2
    words = "View already exists: ns.again"
    iceberg.refused(409, "AlreadyExistsException", words, f"POST {request}", body)
    make_iceberg_table("ns", "t")
    words = "Table with same name already exists: ns.t"
    body["name"] = "t"
    iceberg.refused(409, "AlreadyExistsException", words, f"POST {request}", body)
    body["name"] = "twice"
    iceberg.refused(409, "AlreadyExistsException", "belongs to", f"POST {request}", body)


@pytest.mark.operation("registerView")
def test_registering_a_dropped_view(iceberg: Iceberg, settings):
    settings.MONODON_TRASH_SECONDS = 7 * 86_400
    view = make_view("ns", "v")
    iceberg.delete(PATH)
    item = TrashItem.objects.get()
    body = {"name": "v", "metadata-location": view.metadata_location}
    answer = iceberg.post("namespaces/ns/register-view", body)
    assert answer["metadata"] == view.document
    assert iceberg.get(PATH) == answer
    # The dropped view stays in the trash, and cannot be restored over the files of the new one.
    assert TrashItem.objects.get() == item
    for new in (None, ("ns", "other")):
        with unchanged(), pytest.raises(Conflict) as refused:
            undrop.undrop(actor=SYSTEM, item=item.pk, new=new)
        taken = ViewAlreadyExists if new is None else LocationTaken
        assert type(refused.value) is taken
    iceberg.delete(PATH)
    assert undrop.undrop(actor=SYSTEM, item=item.pk).identifier == ("ns", "v")


@pytest.mark.operation("registerView")
def test_locations_of_dropped_views_stay_reserved(iceberg: Iceberg, warehouse: Path):
    make_view("ns", "v", location=f"file://{warehouse}/a/v")
    iceberg.delete(PATH)
    for location in (f"{warehouse}/a", f"{warehouse}/a/v/x"):
        body = creation("w", location=f"file://{location}")
        iceberg.refused(409, "AlreadyExistsException", "belongs to", f"POST {VIEWS}", body)


@pytest.mark.operation("registerView")
def test_a_file_without_a_view_is_refused(iceberg: Iceberg, warehouse: Path, tmp_path: Path):
    table = make_iceberg_table("ns", "t")
    view = make_view("ns", "v").document
    path = warehouse / "w" / "metadata" / "00000-a.metadata.json"
    path.parent.mkdir(parents=True)
    body = {"name": "w", "metadata-location": f"file://{path}"}
    request = "POST namespaces/ns/register-view"
    iceberg.refused(400, "BadRequestException", "cannot be read", request, body)
    for content, words in (
        (b"", "not JSON"),
        (b"{}", "format-version is missing"),
        (b"\x1f\x8bnot gzip", "not valid gzip"),
        (orjson.dumps({**view, "versions": []}), "current-version-id 1 is not in versions"),
        (orjson.dumps({**view, "location": "file:///etc"}), "Location"),
    ):
        path.write_bytes(content)
        iceberg.refused(400, "BadRequestException", words, request, body)
    body["metadata-location"] = table.metadata_location
    iceberg.refused(400, "BadRequestException", "", request, body)
    for location in (f"{tmp_path}/secret.json", "/etc/passwd", "s3://b/v.json", "../x"):
        body["metadata-location"] = location
        iceberg.refused(400, "BadRequestException", "Location", request, body)


@pytest.mark.operation("registerView")
def test_registering_in_a_missing_namespace(iceberg: Iceberg, warehouse: Path):
    view = make_view("ns", "v")
    body = {"name": "v", "metadata-location": view.metadata_location}
    request = "POST namespaces/none/register-view"
    iceberg.refused(
        404, "NoSuchNamespaceException", "Namespace does not exist: none", request, body
    )
    request = "POST namespaces/ns/register-view"
    iceberg.refused(400, "BadRequestException", "metadata-location", request, {"name": "w"})


# --- all of them -------------------------------------------------------------------------------


def test_a_reader_is_refused(reader: Iceberg, warehouse: Path):
    view = make_view("ns", "v")
    before = files(warehouse)
    assert reader.get(PATH)["metadata"] == view.document
    assert identifiers(reader.get(VIEWS)) == ["v"]
    for request, body in (
        (f"POST {VIEWS}", creation("w")),
        (f"POST {PATH}", {"updates": replacement()}),
        (f"DELETE {PATH}", None),
        ("POST views/rename", rename(["ns", "v"], ["ns", "w"])),
        (
            "POST namespaces/ns/register-view",
            {"name": "w", "metadata-location": view.metadata_location},
        ),
    ):
        reader.refused(403, "NotAuthorizedException", "may not", request, body)
    assert files(warehouse) == before


@pytest.mark.operation("replaceView")
@pytest.mark.operation("renameView")
def test_the_same_key_changes_a_view_once(iceberg: Iceberg):
    make_view("ns", "v")
    for number, (request, body) in enumerate(
        [
            (PATH, {"updates": replacement()}),
            ("views/rename", rename(["ns", "v"], ["ns", "w"])),
        ]
    ):
        key = {"idempotency-key": f"0197a000-0000-7000-8000-00000000000{number}"}
        first = iceberg.call("POST", request, body, headers=key)
        assert first.status_code in {200, 204}
        with unchanged():
            again = iceberg.call("POST", request, body, headers=key)
        assert (again.status_code, again.content) == (first.status_code, first.content)


def test_dropping_a_namespace_drops_its_views(iceberg: Iceberg, warehouse: Path):
    make_view("ns", "v")
    before = files(warehouse)
    drop = namespace_operations.DropNamespace(namespace=("ns",), cascade=True)
    commit([drop], actor=SYSTEM)
    assert Table.objects.get().state == "dropped"
    assert files(warehouse) == before
