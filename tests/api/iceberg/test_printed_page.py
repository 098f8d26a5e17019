"""The requests of a printed API page, unchanged: at the root, without a key."""

import json
from pathlib import Path

import pytest

from tests.api.iceberg.client import Iceberg
from tests.factories import files, make_namespace

pytestmark = pytest.mark.django_db

USER_EVENTS = {
    "name": "user_events",
    "location": "s3://bucket/warehouse/analytics/user_events",
    "schema": {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": 1, "name": "event_id", "required": True, "type": "string"},
            {"id": 2, "name": "user_id", "required": True, "type": "long"},
            {"id": 3, "name": "event_type", "required": True, "type": "string"},
            {"id": 4, "name": "event_time", "required": True, "type": "timestamptz"},
            {
                "id": 5,
                "name": "properties",
                "required": False,
                "type": {
                    "type": "map",
                    "key-id": 6,
                    "key": "string",
                    "value-id": 7,
                    "value": "string",
                },
            },
        ],
    },
    "partition-spec": {
        "spec-id": 0,
        "fields": [{"source-id": 4, "field-id": 1000, "name": "event_day", "transform": "day"}],
    },
    "properties": {"format-version": "2", "write.parquet.compression-codec": "zstd"},
}
EVENTS = {
    "name": "events",
    "schema": {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": 1, "name": "id", "required": True, "type": "long"},
            {"id": 2, "name": "data", "required": False, "type": "string"},
        ],
    },
}
TABLES = "/v1/namespaces/analytics/tables"


@pytest.fixture
def curl(db, settings) -> Iceberg:
    settings.MONODON_ANONYMOUS = "admin"
    make_namespace("analytics")
    return Iceberg()


@pytest.mark.operation("createTable")
def test_create_list_load_exists(curl: Iceberg):
    assert curl.get(TABLES) == {"identifiers": [], "next-page-token": None}
    created = curl.post(TABLES, EVENTS)
    assert created["metadata"]["format-version"] == 2
    local = {key: value for key, value in USER_EVENTS.items() if key != "location"}
    created = curl.post(TABLES, local)
    assert created["metadata"]["partition-specs"][0]["fields"][0]["name"] == "event_day"
    assert created["metadata"]["properties"] == {"write.parquet.compression-codec": "zstd"}
    names = [
        entry["name"] for entry in curl.get(f"{TABLES}?pageToken=&pageSize=100")["identifiers"]
    ]
    assert names == ["events", "user_events"]
    assert curl.get(f"{TABLES}/events") == curl.get(f"{TABLES}/events?snapshots=all")
    assert curl.call("HEAD", f"{TABLES}/events").status_code == 204
    assert curl.call("HEAD", f"{TABLES}/nothing").status_code == 404


@pytest.mark.operation("createTable")
def test_an_object_store_location_is_refused(curl: Iceberg, warehouse: Path):
    curl.refused(400, "BadRequestException", "uses s3:", f"POST {TABLES}", USER_EVENTS)
    imported = {
        "name": "imported",
        "metadata-location": "s3://bucket/tables/imported/metadata/00000.metadata.json",
    }
    register = "POST /v1/namespaces/analytics/register"
    curl.refused(400, "BadRequestException", "does not serve yet", register, imported)
    assert files(warehouse) == {}


@pytest.mark.operation("updateTable")
@pytest.mark.parametrize("action", ["add-spec", "add-partition-spec"])
def test_commit(curl: Iceberg, action):
    created = curl.post(TABLES, EVENTS)["metadata"]
    added = {"id": 3, "name": "created_at", "required": True, "type": "timestamptz"}
    fields = [*EVENTS["schema"]["fields"], added]
    answer = curl.post(
        f"{TABLES}/events",
        {
            "identifier": {"namespace": ["analytics"], "name": "events"},
            "requirements": [
                {"type": "assert-current-schema-id", "current-schema-id": 0},
                {"type": "assert-table-uuid", "uuid": created["table-uuid"]},
            ],
            "updates": [
                {
                    "action": "add-schema",
                    "schema": {"type": "struct", "schema-id": 1, "fields": fields},
                },
                {"action": "set-current-schema", "schema-id": 1},
                {
                    "action": action,
                    "spec": {
                        "spec-id": 1,
                        "fields": [{"source-id": 3, "name": "day", "transform": "day"}],
                    },
                },
                {"action": "set-default-spec", "spec-id": -1},
            ],
        },
    )
    assert answer["metadata"]["current-schema-id"] == 1
    assert answer["metadata"]["default-spec-id"] == 1


@pytest.mark.operation("renameTable")
def test_rename_register_and_drop(curl: Iceberg):
    curl.post(TABLES, EVENTS)
    names = [{"namespace": ["analytics"], "name": name} for name in ("events", "user_events")]
    curl.post("/v1/tables/rename", {"source": names[0], "destination": names[1]})
    location = curl.get(f"{TABLES}/user_events")["metadata-location"]
    curl.delete(f"{TABLES}/user_events")
    imported = {"name": "imported", "metadata-location": location}
    registered = curl.post("/v1/namespaces/analytics/register", imported)
    content = Path(location.removeprefix("file://")).read_bytes()
    assert registered["metadata"] == json.loads(content)
    curl.delete(f"{TABLES}/imported?purgeRequested=true")
    assert curl.get(TABLES)["identifiers"] == []
