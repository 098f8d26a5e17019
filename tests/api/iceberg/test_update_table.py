import json
import os
from pathlib import Path

import pytest

from catalog.access import SYSTEM
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.models import AuditEvent, IcebergMetadata, StagedFile, Table, TableVersion
from catalog.services.iceberg import tables as iceberg_tables
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import files, make_iceberg_table, make_namespace, make_table, unchanged

pytestmark = [pytest.mark.operation("updateTable"), pytest.mark.django_db]

PATH = "namespaces/ns/tables/t"


def set_property(value: str) -> dict:
    return {"action": "set-properties", "updates": {"key": value}}


def test_a_commit(iceberg: Iceberg, warehouse: Path):
    old = make_iceberg_table("ns", "t")
    answer = iceberg.post(
        PATH,
        {
            "identifier": {"namespace": ["ns"], "name": "t"},
            "requirements": [{"type": "assert-table-uuid", "uuid": old.document["table-uuid"]}],
            "updates": [set_property("value")],
        },
    )
    assert answer["metadata"]["properties"] == {"key": "value"}
    assert answer["metadata"]["metadata-log"] == [
        {
            "metadata-file": old.metadata_location,
            "timestamp-ms": old.document["last-updated-ms"],
        }
    ]
    assert answer == iceberg.get(PATH)
    path = Path(answer["metadata-location"].removeprefix("file://"))
    assert path.name.startswith("00001-")
    assert json.loads(path.read_bytes()) == answer["metadata"]
    assert [v.version for v in TableVersion.objects.order_by("version")] == [0, 1]
    assert len(files(warehouse)) == 2
    assert not StagedFile.objects.exists()
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.target) == ("table.commit", "ns.t")
    assert event.before == {"metadata_location": old.metadata_location}
    assert event.after == {
        "metadata_location": answer["metadata-location"],
        "updates": ["set-properties"],
    }


def test_how_many_statements_it_takes(iceberg: Iceberg, django_assert_num_queries):
    make_iceberg_table("ns", "t")
    iceberg.post(PATH, {"requirements": [], "updates": [set_property("0")]})
    with django_assert_num_queries(4):  # the note, and the swap between a savepoint's two
        iceberg.post(PATH, {"requirements": [], "updates": [set_property("1")]})


def test_updates_that_change_nothing_commit_nothing(iceberg: Iceberg, warehouse: Path):
    make_iceberg_table("ns", "t", properties={"key": "same"})
    before = files(warehouse)
    answer = iceberg.post(PATH, {"requirements": [], "updates": [set_property("same")]})
    assert answer == iceberg.get(PATH)
    assert iceberg.post(PATH, {"requirements": [], "updates": []}) == answer
    assert files(warehouse) == before
    assert TableVersion.objects.count() == 1


def test_the_schema_of_the_printed_page(iceberg: Iceberg):
    """A commit as an older API page prints it."""
    table = make_iceberg_table("analytics", "events")
    answer = iceberg.post(
        "namespaces/analytics/tables/events",
        {
            "identifier": {"namespace": ["analytics"], "name": "events"},
            "requirements": [
                {"type": "assert-current-schema-id", "current-schema-id": 0},
                {"type": "assert-table-uuid", "uuid": table.document["table-uuid"]},
            ],
            "updates": [
                {
                    "action": "add-schema",
                    "schema": {
                        "type": "struct",
                        "schema-id": 1,
                        "fields": [
                            {"id": 1, "name": "id", "required": True, "type": "long"},
                            {"id": 2, "name": "data", "required": False, "type": "string"},
                            {
                                "id": 3,
                                "name": "created_at",
                                "required": True,
                                "type": "timestamptz",
                            },
                        ],
                    },
                },
                {"action": "set-current-schema", "schema-id": 1},
            ],
        },
    )
    assert answer["metadata"]["current-schema-id"] == 1
    assert answer["metadata"]["last-column-id"] == 3


def test_a_staged_table_becomes_real(iceberg: Iceberg):
    make_namespace("ns")
    schema = {
        "type": "struct",
        "fields": [{"id": 1, "name": "a", "required": False, "type": "int"}],
    }
    staged = iceberg.post(
        "namespaces/ns/tables", {"name": "t", "schema": schema, "stage-create": True}
    )["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
        {"action": "set-properties", "updates": {"key": "value"}},
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    created = iceberg.post(PATH, body)
    assert created == iceberg.get(PATH)
    assert created["metadata"]["table-uuid"] == staged["table-uuid"]
    assert created["metadata"]["location"] == staged["location"]
    assert Table.objects.get().location == staged["location"].removeprefix("file://")
    iceberg.refused(
        409,
        "CommitFailedException",
        "Requirement failed: table already exists",
        f"POST {PATH}",
        body,
    )
    make_table("ns", "vectors")
    iceberg.refused(
        409,
        "AlreadyExistsException",
        "Table already exists: ns.vectors",
        "POST namespaces/ns/tables/vectors",
        body,
    )
    iceberg.refused(
        404,
        "NoSuchNamespaceException",
        "Namespace does not exist: none",
        "POST namespaces/none/tables/t",
        body,
    )


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        (
            {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"},
            " != 00000000-0000-0000-0000-000000000000",
        ),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5}, "Requirement failed"),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9},
            "Requirement failed: last assigned field id changed: expected id 9 != 2",
        ),
        (
            {"type": "assert-current-schema-id", "current-schema-id": 4},
            "Requirement failed: current schema changed: expected id 4 != 0",
        ),
        (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 5},
            "Requirement failed: last assigned partition id changed: expected id 5 != 999",
        ),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 3},
            "Requirement failed: default partition spec changed: expected id 3 != 0",
        ),
        (
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 2},
            "Requirement failed: default sort order changed: expected id 2 != 0",
        ),
        ({"type": "assert-create"}, "Requirement failed: table already exists"),
    ],
)
def test_a_failed_requirement(iceberg: Iceberg, warehouse: Path, requirement, message):
    make_iceberg_table("ns", "t")
    before = files(warehouse)
    body = {"requirements": [requirement], "updates": [set_property("value")]}
    iceberg.refused(409, "CommitFailedException", message, f"POST {PATH}", body)
    assert files(warehouse) == before


@shared_cases(
    ("body", "complaint"),
    [
        ({"updates": {}}, "updates"),
        ({"updates": [], "requirements": {}}, "requirements"),
        ({"updates": [1]}, "updates"),
        ({"updates": [{"action": "make-coffee"}]}, "make-coffee"),
        ({"updates": [], "requirements": [{"type": "assert-weather"}]}, "assert-weather"),
        ({"updates": [], "requirements": ["assert-create"]}, "requirements"),
        ({"updates": [{"action": "set-properties", "updates": {"a": 1}}]}, "updates"),
        ({"updates": [{"action": "set-location", "location": "/etc"}]}, "outside"),
        (
            {"updates": [{"action": "set-location", "location": "s3://bucket/t"}]},
            "outside the object storage",
        ),
        (
            {
                "updates": [
                    {"action": "set-properties", "updates": {"write.metadata.path": "/etc/x"}}
                ]
            },
            "outside",
        ),
        ({"updates": [], "identifier": {"namespace": ["ns"], "name": "u"}}, "identifier"),
        ({"updates": [], "identifier": "t"}, "identifier"),
    ],
    prepare=lambda: make_iceberg_table("ns", "t"),
)
def test_malformed_requests_are_refused(iceberg: Iceberg, warehouse: Path, body, complaint):
    before = files(warehouse)
    iceberg.refused(400, "BadRequestException", complaint, f"POST {PATH}", body)
    assert files(warehouse) == before


def test_too_large_metadata_is_refused(iceberg: Iceberg, warehouse: Path, monkeypatch):
    made = make_iceberg_table("ns", "t", properties={"large": "x" * 1000})
    size = len(metadata_documents.dump(made.document))
    monkeypatch.setattr("catalog.formats.iceberg.files.MAX_BYTES", size)
    before = files(warehouse)
    body = {"requirements": [], "updates": [set_property("x" * 100)]}
    with unchanged():
        iceberg.refused(400, "BadRequestException", "are allowed", f"POST {PATH}", body)
    assert files(warehouse) == before
    less = {"action": "remove-properties", "removals": ["large"]}
    assert iceberg.post(PATH, {"requirements": [], "updates": [less]})["metadata"]


def test_a_snapshot_from_the_future(iceberg: Iceberg, warehouse: Path):
    made = make_iceberg_table("ns", "t")
    before = files(warehouse)
    snapshot = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": made.document["last-updated-ms"] + 25 * 60 * 60 * 1000,
        "manifest-list": f"file://{made.location}/metadata/1.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    body = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}]}
    with unchanged():
        iceberg.refused(400, "BadRequestException", "ahead of the server", f"POST {PATH}", body)
    assert files(warehouse) == before


def test_a_missing_table_is_refused(iceberg: Iceberg):
    make_namespace("ns")
    body = {"requirements": [], "updates": [set_property("value")]}
    iceberg.refused(404, "NoSuchTableException", "Table does not exist: ns.t", f"POST {PATH}", body)


def test_moving_a_table(iceberg: Iceberg, warehouse: Path):
    make_iceberg_table("ns", "t")
    update = {"action": "set-location", "location": f"file://{warehouse}/moved"}
    answer = iceberg.post(PATH, {"requirements": [], "updates": [update]})
    assert answer["metadata-location"].startswith(f"file://{warehouse}/moved/metadata/00001-")
    assert Table.objects.get().location == f"{warehouse}/moved"


def test_moving_a_table_into_another_is_refused(iceberg: Iceberg, warehouse: Path):
    make_iceberg_table("ns", "t")
    other = make_iceberg_table("ns", "other")
    before = files(warehouse)
    update = {"action": "set-location", "location": f"file://{other.location}/inside"}
    iceberg.refused(
        409,
        "AlreadyExistsException",
        "belongs to table 'ns.other'",
        f"POST {PATH}",
        {"requirements": [], "updates": [update]},
    )
    assert files(warehouse) == before


def test_a_busy_catalog_is_a_certain_failure(iceberg: Iceberg, warehouse: Path, monkeypatch):
    make_iceberg_table("ns", "t")
    before = files(warehouse)

    def full(path: str, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("catalog.storage.local_files.write_new_file", full)
    body = {"requirements": [], "updates": [set_property("value")]}
    response = iceberg.refused(
        409, "CommitFailedException", "No space left on device", f"POST {PATH}", body
    )
    assert response["retry-after"] == "1"
    assert files(warehouse) == before


@pytest.mark.operation("commitTransaction")
def test_two_tables_in_one_transaction(iceberg: Iceberg):
    for name in ("a", "b"):
        make_iceberg_table("ns", name)
    changes = [
        {
            "identifier": {"namespace": ["ns"], "name": name},
            "requirements": [],
            "updates": [set_property(name)],
        }
        for name in ("a", "b")
    ]
    assert iceberg.post("transactions/commit", {"table-changes": changes}) is None
    for name in ("a", "b"):
        loaded = iceberg.get(f"namespaces/ns/tables/{name}")
        assert loaded["metadata"]["properties"] == {"key": name}
    rows = TableVersion.objects.filter(version=1)
    assert len({row.transaction_id for row in rows}) == 1
    assert len(rows) == 2


@pytest.mark.operation("commitTransaction")
def test_all_or_nothing(iceberg: Iceberg, warehouse: Path):
    for name in ("a", "b"):
        make_iceberg_table("ns", name)
    before = files(warehouse)
    fails = [{"type": "assert-current-schema-id", "current-schema-id": 7}]
    changes = [
        {"identifier": {"namespace": ["ns"], "name": name}, "requirements": r, "updates": u}
        for name, r, u in (
            ("a", [], [set_property("a")]),
            ("b", fails, [set_property("b")]),
        )
    ]
    iceberg.refused(
        409,
        "CommitFailedException",
        "current schema changed",
        "POST transactions/commit",
        {"table-changes": changes},
    )
    changes[1]["requirements"] = []
    changes[1]["identifier"]["name"] = "none"
    iceberg.refused(
        404,
        "NoSuchTableException",
        "ns.none",
        "POST transactions/commit",
        {"table-changes": changes},
    )
    assert files(warehouse) == before


@pytest.mark.operation("commitTransaction")
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "table-changes"),
        ({"table-changes": None}, "table-changes"),
        ({"table-changes": ["a"]}, "table-changes.0"),
        ({"table-changes": [{"updates": []}]}, "table-changes.0.identifier"),
        (
            {
                "table-changes": [
                    {"identifier": {"namespace": ["ns"], "name": "t"}, "updates": []},
                    {"identifier": {"namespace": ["ns"], "name": "t"}, "updates": []},
                ]
            },
            "twice",
        ),
    ],
)
def test_a_malformed_transaction_is_refused(iceberg: Iceberg, body, complaint):
    make_iceberg_table("ns", "t")
    iceberg.refused(400, "BadRequestException", complaint, "POST transactions/commit", body)


@pytest.mark.operation("dropTable")
def test_dropping_keeps_the_files(iceberg: Iceberg, warehouse: Path):
    make_iceberg_table("ns", "t")
    before = files(warehouse)
    iceberg.delete(f"{PATH}?purgeRequested=False")
    assert files(warehouse) == before
    row = Table.objects.get()
    assert row.state == "dropped"
    assert IcebergMetadata.objects.filter(table=row).exists()
    assert not row.jobs.exists()
    iceberg.refused(404, "NoSuchTableException", "Table does not exist: ns.t", f"DELETE {PATH}")
    iceberg.refused(400, "BadRequestException", "purgeRequested", f"DELETE {PATH}?purgeRequested=x")


@pytest.mark.operation("dropTable")
def test_purging_is_a_job(iceberg: Iceberg):
    make_iceberg_table("ns", "t")
    iceberg.delete(f"{PATH}?purgeRequested=true")
    job = Table.objects.get().jobs.get()
    assert (job.kind, job.status) == ("purge_table", "queued")


@pytest.mark.operation("unregisterTable")
def test_unregistering_and_registering_again(iceberg: Iceberg, warehouse: Path):
    table = make_iceberg_table("ns", "t")
    before = files(warehouse)
    last = iceberg.post(f"{PATH}/unregister")
    assert last["metadata-location"] == table.metadata_location
    assert last["metadata"] == table.document
    iceberg.refused(404, "NoSuchTableException", "ns.t", f"POST {PATH}/unregister")
    body = {"name": "again", "metadata-location": table.metadata_location}
    again = iceberg.post("namespaces/ns/register", body)
    assert again["metadata"] == table.document
    assert again == iceberg.get("namespaces/ns/tables/again")
    assert files(warehouse) == before
    iceberg.refused(409, "AlreadyExistsException", "ns.again", "POST namespaces/ns/register", body)


@pytest.mark.operation("registerTable")
def test_registering_over_a_table(iceberg: Iceberg):
    old = make_iceberg_table("ns", "t")
    iceberg.post(PATH, {"requirements": [], "updates": [set_property("value")]})
    body = {"name": "t", "metadata-location": old.metadata_location, "overwrite": True}
    answer = iceberg.post("namespaces/ns/register", body)
    assert answer["metadata"]["properties"] == {}
    assert answer == iceberg.get(PATH)
    assert Table.objects.present().count() == 1
    # Commits continue from there.
    iceberg.post(PATH, {"requirements": [], "updates": [set_property("next")]})


@pytest.mark.operation("registerTable")
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", ""),
        (b"{}", ""),
        (b"not json", ""),
        (b"\x1f\x8bnot gzip", ""),
        (None, "cannot be read"),
    ],
)
def test_a_file_without_metadata_is_refused(iceberg: Iceberg, warehouse: Path, content, complaint):
    make_namespace("ns")
    path = warehouse / "t" / "metadata" / "00000-a.metadata.json"
    path.parent.mkdir(parents=True)
    if content is not None:
        path.write_bytes(content)
    body = {"name": "t", "metadata-location": f"file://{path}"}
    request = "POST namespaces/ns/register"
    iceberg.refused(400, "BadRequestException", complaint, request, body)


@pytest.mark.operation("registerTable")
def test_registering_a_pipe_does_not_block(iceberg: Iceberg, warehouse: Path):
    make_namespace("ns")
    os.mkfifo(warehouse / "pipe")
    body = {"name": "t", "metadata-location": f"file://{warehouse}/pipe"}
    iceberg.refused(
        400, "BadRequestException", "does not belong to table", "POST namespaces/ns/register", body
    )


@pytest.mark.operation("registerTable")
def test_a_file_outside_the_warehouse_is_not_read(iceberg: Iceberg, tmp_path: Path):
    make_namespace("ns")
    for location in (f"{tmp_path}/secret.json", "/etc/passwd", "s3://b/t.json", "../x"):
        body = {"name": "t", "metadata-location": location}
        iceberg.refused(400, "BadRequestException", "Location", "POST namespaces/ns/register", body)


@pytest.mark.operation("renameTable")
def test_renaming(iceberg: Iceberg):
    table = make_iceberg_table("ns", "t")
    make_namespace("other", "ns")
    source = {"namespace": ["ns"], "name": "t"}
    new = {"namespace": ["other", "ns"], "name": "u"}
    iceberg.post("tables/rename", {"source": source, "destination": new})
    loaded = iceberg.get("namespaces/other%1Fns/tables/u")
    assert loaded["metadata-location"] == table.metadata_location
    iceberg.refused(404, "NoSuchTableException", "ns.t", f"GET {PATH}")


@pytest.mark.operation("renameTable")
def test_refused_renames(iceberg: Iceberg):
    make_iceberg_table("ns", "t")
    make_iceberg_table("ns", "u")
    make_table("ns", "vectors")
    source = {"namespace": ["ns"], "name": "t"}
    for name in ("u", "vectors", "t"):
        iceberg.refused(
            409,
            "AlreadyExistsException",
            f"Cannot rename ns.t to ns.{name}. Table already exists",
            "POST tables/rename",
            {"source": source, "destination": {"namespace": ["ns"], "name": name}},
        )
    iceberg.refused(
        404,
        "NoSuchNamespaceException",
        "Namespace does not exist: none",
        "POST tables/rename",
        {"source": source, "destination": {"namespace": ["none"], "name": "t"}},
    )
    iceberg.refused(
        404,
        "NoSuchTableException",
        "ns.none",
        "POST tables/rename",
        {"source": {"namespace": ["ns"], "name": "none"}, "destination": source},
    )
    iceberg.refused(
        400, "BadRequestException", "destination", "POST tables/rename", {"source": source}
    )


def test_a_reader_is_refused(reader: Iceberg, warehouse: Path):
    make_iceberg_table("ns", "t")
    before = files(warehouse)
    body = {"requirements": [], "updates": [set_property("value")]}
    reader.refused(403, "NotAuthorizedException", "may not", f"POST {PATH}", body)
    reader.refused(403, "NotAuthorizedException", "may not", f"DELETE {PATH}")
    assert iceberg_tables.load_table(actor=SYSTEM, table=("ns", "t")).sequence == 0
    assert files(warehouse) == before
