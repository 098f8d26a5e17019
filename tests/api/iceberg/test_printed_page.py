"""The requests of a printed API page, unchanged: at the root, without a key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog.models import Job, JobStatus
from catalog.services.maintenance import job_runner
from tests.api.iceberg.client import Iceberg
from tests.factories import files, make_namespace
from tests.stores.fixtures import MakeProfile
from tests.stores.s3 import Moto

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


IMPORTED = {
    "name": "imported",
    "metadata-location": "s3://bucket/tables/imported/metadata/00000.metadata.json",
}
REGISTER = "/v1/namespaces/analytics/register"


@pytest.mark.operation("createTable")
def test_an_object_store_without_a_profile_is_refused(curl: Iceberg, warehouse: Path):
    outside = "is outside the object storage that may be used here"
    curl.refused(400, "BadRequestException", outside, f"POST {TABLES}", USER_EVENTS)
    curl.refused(400, "BadRequestException", outside, f"POST {REGISTER}", IMPORTED)
    assert files(warehouse) == {}


@pytest.fixture
def bucket(moto_s3: Moto, make_profile: MakeProfile) -> Iterator[Any]:
    """The bucket named "bucket" of a store, with the prefixes of the page."""
    roots = ["s3://bucket/warehouse", "s3://bucket/tables", "s3://bucket/path"]
    make_profile(name="lake", roots=roots, **moto_s3.profile_fields())
    client = moto_s3.client()
    client.create_bucket(Bucket="bucket")
    yield moto_s3
    for key in moto_s3.keys("bucket"):
        client.delete_object(Bucket="bucket", Key=key)
    client.delete_bucket(Bucket="bucket")


@pytest.mark.operation("createTable")
def test_create_load_commit_and_purge_in_a_bucket(curl: Iceberg, bucket: Any, settings):
    settings.MONODON_TRASH_SECONDS = 0
    created = curl.post(TABLES, USER_EVENTS)
    location = USER_EVENTS["location"]
    assert created["metadata"]["location"] == location
    assert created["metadata-location"].startswith(f"{location}/metadata/00000-")
    assert stored(bucket, created["metadata-location"]) == created["metadata"]
    assert curl.get(f"{TABLES}/user_events?snapshots=all")["metadata"] == created["metadata"]
    committed = curl.post(
        f"{TABLES}/user_events",
        {
            "identifier": {"namespace": ["analytics"], "name": "user_events"},
            "requirements": [
                {"type": "assert-current-schema-id", "current-schema-id": 0},
                {"type": "assert-table-uuid", "uuid": created["metadata"]["table-uuid"]},
            ],
            "updates": [{"action": "set-properties", "updates": {"owner": "ada"}}],
        },
    )
    assert committed["metadata-location"].startswith(f"{location}/metadata/00001-")
    assert stored(bucket, committed["metadata-location"]) == committed["metadata"]
    assert len(bucket.keys("bucket")) == 2
    curl.delete(f"{TABLES}/user_events?purgeRequested=true")
    run_jobs()
    assert bucket.keys("bucket") == []


@pytest.mark.operation("registerTable")
def test_register_and_rename_in_a_bucket(curl: Iceberg, bucket: Any):
    created = curl.post(TABLES, USER_EVENTS)["metadata"]
    document = {
        **created,
        "location": "s3://bucket/tables/imported",
        "table-uuid": PRINTED_UUID,
    }
    key = IMPORTED["metadata-location"].removeprefix("s3://bucket/")
    bucket.client().put_object(Bucket="bucket", Key=key, Body=json.dumps(document).encode())
    registered = curl.post(REGISTER, IMPORTED)
    assert registered["metadata-location"] == IMPORTED["metadata-location"]
    assert registered["metadata"] == document
    names = [{"namespace": ["analytics"], "name": name} for name in ("imported", "events")]
    curl.post("/v1/tables/rename", {"source": names[0], "destination": names[1]})
    assert curl.get(f"{TABLES}/events")["metadata"] == document
    missing = {"name": "t", "metadata-location": IMPORTED["metadata-location"] + "x"}
    curl.refused(400, "BadRequestException", "cannot be read", f"POST {REGISTER}", missing)


PRINTED_UUID = "550e8400-e29b-41d4-a716-446655440000"
ADDED_SCHEMA = {
    "identifier": {"namespace": ["analytics"], "name": "events"},
    "requirements": [
        {"type": "assert-current-schema-id", "current-schema-id": 0},
        {"type": "assert-table-uuid", "uuid": PRINTED_UUID},
    ],
    "updates": [
        {
            "action": "add-schema",
            "schema": {
                "type": "struct",
                "schema-id": 1,
                "fields": [
                    *EVENTS["schema"]["fields"],
                    {"id": 3, "name": "created_at", "required": True, "type": "timestamptz"},
                ],
            },
        },
        {"action": "set-current-schema", "schema-id": 1},
    ],
}


@pytest.mark.operation("registerTable")
def test_register_and_commit_below_another_prefix(curl: Iceberg, bucket: Any):
    created = curl.post(TABLES, {**EVENTS, "location": "s3://bucket/tables/events"})["metadata"]
    curl.delete(f"{TABLES}/events")
    document = {**created, "location": "s3://bucket/path/to", "table-uuid": PRINTED_UUID}
    body = json.dumps(document).encode()
    bucket.client().put_object(Bucket="bucket", Key="path/to/metadata.json", Body=body)
    request = {"name": "imported_table", "metadata-location": "s3://bucket/path/to/metadata.json"}
    assert curl.post(REGISTER, request)["metadata"] == document
    names = [{"namespace": ["analytics"], "name": name} for name in ("imported_table", "events")]
    curl.post("/v1/tables/rename", {"source": names[0], "destination": names[1]})
    answer = curl.post(f"{TABLES}/events", ADDED_SCHEMA)
    assert answer["metadata"]["current-schema-id"] == 1
    assert answer["metadata-location"].startswith("s3://bucket/path/to/metadata/00001-")
    assert stored(bucket, answer["metadata-location"]) == answer["metadata"]
    curl.refused(
        409,
        "CommitFailedException",
        "current schema changed: expected id 0",
        f"POST {TABLES}/events",
        ADDED_SCHEMA,
    )


def stored(bucket: Any, location: str) -> Any:
    key = location.removeprefix("s3://bucket/")
    return json.loads(bucket.client().get_object(Bucket="bucket", Key=key)["Body"].read())


def run_jobs() -> None:
    for pk in Job.objects.filter(status=JobStatus.QUEUED).values_list("pk", flat=True):
        job_runner.run_job(pk)


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
