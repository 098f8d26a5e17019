import gzip
import json
from pathlib import Path

import pytest

from catalog.models import AuditEvent, Namespace, StagedFile, Table, TableVersion
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import ICEBERG_SCHEMA, files, make_namespace, make_table

pytestmark = [pytest.mark.operation("createTable"), pytest.mark.django_db]

BODY = {"name": "events", "schema": ICEBERG_SCHEMA}


@pytest.fixture(autouse=True)
def _namespace(db) -> None:
    make_namespace("ns")


def local(location: str) -> Path:
    assert location.startswith("file:///")
    return Path(location.removeprefix("file://"))


def test_the_answer_is_the_written_metadata(iceberg: Iceberg, warehouse: Path):
    created = iceberg.post("namespaces/ns/tables", BODY)
    assert set(created) == {"metadata-location", "metadata", "config"}
    path = local(created["metadata-location"])
    assert json.loads(path.read_bytes()) == created["metadata"]
    assert path.name.startswith("00000-")
    assert path.parent.parent.parent == warehouse
    assert f"file://{path.parent.parent}" == created["metadata"]["location"]
    assert created["metadata"]["format-version"] == 2
    row = Table.objects.get()
    assert (row.format, row.kind, row.state) == ("iceberg", "table", "live")
    assert row.location == str(path.parent.parent)
    version = TableVersion.objects.get()
    assert (version.version, version.manifest_path) == (0, created["metadata-location"])
    assert AuditEvent.objects.latest("pk").action == "table.create"
    assert not StagedFile.objects.exists()


def test_all_options_of_a_creation(iceberg: Iceberg, warehouse: Path):
    created = iceberg.post(
        "namespaces/ns/tables",
        {
            **BODY,
            "location": f"file://{warehouse}/mine",
            "partition-spec": {
                "spec-id": 0,
                "fields": [
                    {"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[4]"}
                ],
            },
            "write-order": {
                "order-id": 1,
                "fields": [
                    {
                        "source-id": 1,
                        "transform": "identity",
                        "direction": "asc",
                        "null-order": "nulls-first",
                    }
                ],
            },
            "properties": {"format-version": "3", "write.metadata.compression-codec": "gzip"},
        },
    )
    metadata = created["metadata"]
    assert metadata["location"] == f"file://{warehouse}/mine"
    assert metadata["format-version"] == 3
    assert metadata["properties"] == {"write.metadata.compression-codec": "gzip"}
    assert metadata["partition-specs"][0]["fields"][0]["transform"] == "bucket[4]"
    assert metadata["sort-orders"][-1]["fields"][0]["direction"] == "asc"
    path = local(created["metadata-location"])
    assert path.name.endswith(".gz.metadata.json")
    assert json.loads(gzip.decompress(path.read_bytes())) == metadata


def test_a_staged_table_is_not_visible(iceberg: Iceberg, warehouse: Path):
    staged = iceberg.post("namespaces/ns/tables", {**BODY, "stage-create": True})
    assert staged["metadata-location"] is None
    assert staged["metadata"]["current-schema-id"] == 0
    assert not Table.objects.exists()
    assert files(warehouse) == {}
    iceberg.refused(404, "NoSuchTableException", "ns.events", "GET namespaces/ns/tables/events")


def test_a_staged_table_has_a_directory_for_manifests(iceberg: Iceberg, warehouse: Path):
    # DuckDB writes them before it commits, and does not create the directory.
    staged = iceberg.post("namespaces/ns/tables", {**BODY, "stage-create": True})
    chosen = f"file://{warehouse}/chosen"
    iceberg.post(
        "namespaces/ns/tables",
        {**BODY, "stage-create": True, "properties": {"write.metadata.path": chosen}},
    )
    assert (local(staged["metadata"]["location"]) / "metadata").is_dir()
    assert local(chosen).is_dir()
    assert files(warehouse) == {}


def test_a_namespace_may_set_the_location_of_its_tables(iceberg: Iceberg, warehouse: Path):
    make_namespace("there", properties={"location": f"file://{warehouse}/there"})
    created = iceberg.post("namespaces/there/tables", BODY)
    assert created["metadata"]["location"].startswith(f"file://{warehouse}/there/events-")


def test_a_namespace_with_the_location_of_a_table(iceberg: Iceberg, warehouse: Path):
    """Otherwise, removing orphan files of the outer table would delete the inner table's files."""
    outer = iceberg.post("namespaces/ns/tables", BODY)["metadata"]["location"]
    before = set(warehouse.rglob("*"))
    error = "belongs to table 'ns.events'"
    body = {"namespace": ["there"], "properties": {"location": outer}}
    iceberg.refused(409, "AlreadyExistsException", error, "POST namespaces", body)
    # A table that was created before this was checked.
    make_namespace("there")
    Namespace.objects.filter(name="there").update(properties={"location": outer})
    request = "POST namespaces/there/tables"
    iceberg.refused(409, "AlreadyExistsException", error, request, BODY)
    assert set(warehouse.rglob("*")) == before


@pytest.mark.parametrize("stage", [False, True])
@pytest.mark.parametrize("properties", [{}, {"location": "file://{}/there/"}])
def test_a_relative_location(iceberg: Iceberg, warehouse: Path, properties, stage):
    """A relative location is relative to the namespace's location."""
    properties = {name: text.format(warehouse) for name, text in properties.items()}
    make_namespace("of", properties=properties)
    parent_location = iceberg.get("namespaces/of")["properties"]["location"].rstrip("/")
    body = {**BODY, "location": "of/events", "stage-create": stage}
    made = iceberg.post("namespaces/of/tables", body)
    assert made["metadata"]["location"] == f"{parent_location}/of/events"


@pytest.mark.parametrize("stage", [False, True])
def test_an_impossible_location_is_refused(iceberg: Iceberg, warehouse: Path, stage):
    (warehouse / "file").write_bytes(b"")
    (warehouse / "round").symlink_to("round")
    for location in ("x" * 300, "file/t", "round/t"):
        body = {**BODY, "location": f"file://{warehouse}/{location}", "stage-create": stage}
        request = "POST namespaces/ns/tables"
        iceberg.refused(400, "BadRequestException", "cannot be", request, body)


def test_a_taken_name_is_refused(iceberg: Iceberg, warehouse: Path):
    iceberg.post("namespaces/ns/tables", BODY)
    make_table("ns", "vectors")
    before = files(warehouse)
    for name in ("events", "vectors"):
        iceberg.refused(
            409,
            "AlreadyExistsException",
            f"Table already exists: ns.{name}",
            "POST namespaces/ns/tables",
            {**BODY, "name": name},
        )
    assert files(warehouse) == before


def test_a_missing_namespace_is_refused(iceberg: Iceberg, warehouse: Path):
    iceberg.refused(
        404,
        "NoSuchNamespaceException",
        "Namespace does not exist: none",
        "POST namespaces/none/tables",
        BODY,
    )
    assert files(warehouse) == {}


@shared_cases(
    ("change", "complaint"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "must not be empty"),
        ({"name": "a/tables/b"}, "cannot be addressed"),
        ({"schema": None}, "schema"),
        ({"schema": {"type": "struct"}}, "fields"),
        ({"schema": {"type": "struct", "fields": [{"id": "1"}]}}, "schema.fields[0]"),
        ({"properties": {"a": 1}}, "properties.a"),
        ({"properties": {"format-version": "9"}}, "9"),
        ({"partition-spec": {"fields": [{"source-id": 9}]}}, "partition"),
        ({"stage-create": "yes"}, "stage-create"),
        ({"location": "file:///etc/passwd"}, "outside the directories"),
        ({"location": "/../../etc"}, "'..'"),
        ({"location": "relative/../../path"}, "'..'"),
        ({"location": "./."}, "leads out of its namespace's location"),
        ({"location": ""}, "must not be empty"),
        ({"location": "s3://bucket/warehouse/events"}, "outside the object storage"),
        ({"properties": {"write.metadata.path": "/etc"}}, "outside the directories"),
        ({"properties": {"write.data.path": "gs://bucket/a"}}, "outside the object storage"),
    ],
)
def test_a_refused_creation_writes_nothing(iceberg: Iceberg, warehouse: Path, change, complaint):
    body = {key: value for key, value in {**BODY, **change}.items() if value is not None}
    iceberg.refused(400, "BadRequestException", complaint, "POST namespaces/ns/tables", body)
    assert files(warehouse) == {}


def test_a_location_of_another_table_is_refused(iceberg: Iceberg, warehouse: Path):
    inside = iceberg.post("namespaces/ns/tables", BODY)["metadata"]["location"] + "/inside"
    before = files(warehouse)
    iceberg.refused(
        409,
        "AlreadyExistsException",
        "belongs to table 'ns.events'",
        "POST namespaces/ns/tables",
        {**BODY, "name": "other", "location": inside},
    )
    assert files(warehouse) == before


def test_a_reader_is_refused(reader: Iceberg, warehouse: Path):
    reader.refused(403, "NotAuthorizedException", "may not", "POST namespaces/ns/tables", BODY)
    assert files(warehouse) == {}
