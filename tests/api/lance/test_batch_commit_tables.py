from pathlib import Path

import pytest

from catalog.models import AuditEvent, Table, TableState, TableVersion, Transaction
from tests.api.client import Lance
from tests.cases import shared_cases
from tests.factories import (
    files,
    final_path,
    make_namespace,
    make_table,
    make_version,
    manifest,
    relative,
    snapshot,
    stage,
)

pytestmark = pytest.mark.operation("BatchCommitTables")

COMMIT = "/v1/table/batch-commit"


def declare(name: str, **more) -> dict:
    return {"declare_table": {"id": ["ws", name], **more}}


def create(name: str, version: int, path: str | None = None, **more) -> dict:
    path = path or f"x/{name}/{version}"
    body = {"id": ["ws", name], "version": version, "manifest_path": path, **more}
    return {"create_table_version": body}


def delete(name: str, start: int = 0, end: int = -1, **more) -> dict:
    ranges = [{"start_version": start, "end_version": end}]
    return {"delete_table_versions": {"id": ["ws", name], "ranges": ranges, **more}}


def deregister(name: str) -> dict:
    return {"deregister_table": {"id": ["ws", name]}}


def batch(*operations: dict) -> dict:
    return {"operations": list(operations)}


@pytest.fixture(autouse=True)
def namespace(db):
    return make_namespace("ws")


def test_mixed_kinds_with_results_in_order(lance: Lance, warehouse: Path):
    old = make_table("ws", "old", properties={"k": "v"})
    make_table("ws", "log")
    for version in (1, 2, 3):
        make_version(("ws", "log"), version)
    answer = lance.post(
        COMMIT,
        batch(
            delete("log", 1, 3),
            declare("new", properties={"a": "b"}),
            create("log", 4, metadata={"m": "1"}),
            deregister("old"),
            create("new", 1),
        ),
    )
    transaction_id = answer["transaction_id"]
    deleted, declared, created, deregistered, first = answer["results"]
    assert deleted == {
        "delete_table_versions": {"deleted_count": 2, "transaction_id": transaction_id}
    }
    new = Table.objects.get(name="new")
    assert declared == {
        "declare_table": {
            "transaction_id": transaction_id,
            "location": new.location,
            "properties": {"a": "b"},
            "managed_versioning": True,
        }
    }
    stamp = created["create_table_version"]["version"].pop("timestamp_millis")
    assert stamp > 0
    assert created == {
        "create_table_version": {
            "transaction_id": transaction_id,
            "version": {"version": 4, "manifest_path": "x/log/4", "metadata": {"m": "1"}},
        }
    }
    assert deregistered == {
        "deregister_table": {
            "transaction_id": transaction_id,
            "id": ["ws", "old"],
            "location": old.location,
            "properties": {"k": "v"},
        }
    }
    assert first["create_table_version"]["version"]["version"] == 1
    assert new.state == TableState.LIVE
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": ["log", "new"]}
    versions = lance.post("/v1/table/ws$log/version/list")["versions"]
    assert [v["version"] for v in versions] == [3, 4]


def test_one_transaction_and_one_audit_event_each(lance: Lance):
    answer = lance.post(
        COMMIT,
        batch(declare("a"), declare("b"), create("a", 1)),
        headers={"x-lance-ctx-trace_id": "t-1", "x-request-id": "r-1"},
    )
    row = Transaction.objects.get(pk=answer["transaction_id"])
    assert [(op["operation"], op["target"]) for op in row.operations] == [
        ("DeclareTable", "ws.a"),
        ("DeclareTable", "ws.b"),
        ("CreateTableVersion", "ws.a"),
    ]
    events = AuditEvent.objects.filter(transaction_id=row.pk).order_by("pk")
    assert [(e.action, e.target, e.context, e.request_id) for e in events] == [
        ("table.declare", "ws.a", {"trace_id": "t-1"}, "r-1"),
        ("table.declare", "ws.b", {"trace_id": "t-1"}, "r-1"),
        ("version.create", "ws.a", {"trace_id": "t-1"}, "r-1"),
    ]
    facts = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    assert facts["status"] == "Succeeded"
    assert facts["properties"]["monodon.targets"] == "ws.a,ws.b"


def test_declare_and_create_with_a_staged_manifest(lance: Lance, warehouse: Path):
    location = warehouse / "mine"
    staged = location / "_versions/18446744073709551614.manifest-1"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(manifest(1, text=b"first"))
    answer = lance.post(
        COMMIT, batch(declare("t", location=str(location)), create("t", 1, relative(staged)))
    )
    path = answer["results"][1]["create_table_version"]["version"]["manifest_path"]
    assert path == relative(location / "_versions/18446744073709551614.manifest")
    assert files(location) == {
        "_versions/18446744073709551614.manifest": manifest(1, text=b"first")
    }


# --- operations see the earlier ones of their batch ---------------------------------------------


def test_create_then_delete(lance: Lance):
    make_table("ws", "t")
    answer = lance.post(COMMIT, batch(create("t", 1), create("t", 2), delete("t", 0, 2)))
    assert answer["results"][2]["delete_table_versions"]["deleted_count"] == 1
    versions = lance.post("/v1/table/ws$t/version/list")["versions"]
    assert [v["version"] for v in versions] == [2]


def test_delete_then_create_meets_the_tombstone(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    make_version(("ws", "t"), 2)
    lance.refused(
        409,
        14,
        "Operation 1: Table 'ws.t' has version 1 already",
        COMMIT,
        batch(delete("t", 0, 2), create("t", 1)),
    )


def test_create_delete_create(lance: Lance):
    make_table("ws", "t")
    lance.refused(
        409,
        14,
        "Operation 3: Table 'ws.t' has version 1 already",
        COMMIT,
        batch(create("t", 1), create("t", 2), delete("t", 0, 2), create("t", 1)),
    )


def test_deregister_then_declare_the_same_name(lance: Lance):
    old = make_table("ws", "t")
    make_version(("ws", "t"), 1)
    answer = lance.post(COMMIT, batch(deregister("t"), declare("t"), create("t", 1)))
    new = lance.post("/v1/table/ws$t/describe")["location"]
    assert new == answer["results"][1]["declare_table"]["location"] != old.location
    old.refresh_from_db()
    assert old.state == TableState.DROPPED
    assert TableVersion.objects.filter(version=1).count() == 2


def test_declare_create_deregister_in_one(lance: Lance):
    answer = lance.post(COMMIT, batch(declare("t"), create("t", 1), deregister("t")))
    assert len(answer["results"]) == 3
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": []}
    assert Table.objects.get().state == TableState.DROPPED


def test_declare_deregister_declare(lance: Lance):
    answer = lance.post(COMMIT, batch(declare("t"), deregister("t"), declare("t"), create("t", 1)))
    assert (
        lance.post("/v1/table/ws$t/describe")["location"]
        == (answer["results"][2]["declare_table"]["location"])
    )
    assert Table.objects.count() == 2


def test_nothing_after_deregister(lance: Lance):
    make_table("ws", "t")
    for later in (create("t", 1), delete("t"), deregister("t")):
        lance.refused(
            404,
            4,
            "Operation 1: Table 'ws.t' does not exist",
            COMMIT,
            batch(deregister("t"), later),
        )


def test_create_before_declare(lance: Lance):
    lance.refused(
        404,
        4,
        "Operation 0: Table 'ws.t' does not exist",
        COMMIT,
        batch(create("t", 1), declare("t")),
    )


def test_declare_twice(lance: Lance):
    lance.refused(
        409,
        5,
        "Operation 1: Table 'ws.t' exists already",
        COMMIT,
        batch(declare("t"), declare("t")),
    )
    lance.refused(
        409,
        5,
        "Operation 1: Table 'ws.a+b' exists already",
        COMMIT,
        batch(declare("a b"), declare("a+b")),
    )


def test_the_same_version_twice(lance: Lance):
    make_table("ws", "t")
    lance.refused(
        409,
        14,
        "Operation 2: Table 'ws.t' has version 1 already",
        COMMIT,
        batch(create("t", 1), create("t", 2), create("t", 1)),
    )


def test_overlapping_locations_are_refused(lance: Lance):
    lance.refused(
        409,
        14,
        "Operation 1: Location",
        COMMIT,
        batch(declare("a", location="x/y"), declare("b", location="x/y/z")),
    )


def test_a_batch_creates_branch_versions_and_deletes_some(lance: Lance):
    make_table("ws", "t")
    answer = lance.post(
        COMMIT,
        batch(
            create("t", 1, branch="dev"),
            create("t", 2, branch="dev"),
            create("t", 1),
            delete("t", 0, 2, branch="dev"),
        ),
    )
    assert answer["results"][3]["delete_table_versions"]["deleted_count"] == 1
    versions = lance.post("/v1/table/ws$t/version/list?branch=dev")["versions"]
    assert [v["version"] for v in versions] == [2]


def test_a_staged_manifest_of_a_version_deleted_at_once(lance: Lance):
    table = make_table("ws", "t")
    staged = stage(table, 1)
    lance.post(COMMIT, batch(create("t", 1, relative(staged)), create("t", 2), delete("t", 0, 2)))
    [versions] = lance.post("/v1/table/ws$t/version/list")["versions"]
    assert versions["version"] == 2
    assert list(files(table.location).values()) == [
        manifest(1)
    ]  # records are deleted, files are kept


# --- all or nothing -----------------------------------------------------------------------------

FAILURES = [
    (409, 14, "has version 1 already", create("held", 1)),
    (409, 5, "Table 'ws.held' exists already", declare("held")),
    (404, 4, "Table 'ws.no' does not exist", create("no", 1)),
    (404, 4, "Table 'ws.no' does not exist", delete("no")),
    (404, 4, "Table 'ws.no' does not exist", deregister("no")),
    (404, 1, "Namespace 'no'", {"declare_table": {"id": ["no", "t"]}}),
    (404, 1, "Namespace 'no'", {"deregister_table": {"id": ["no", "t"]}}),
    (404, 22, "no branch 'x'", delete("held", branch="x")),
    (400, 13, "Manifest path", create("held", 2, "../x")),
    (400, 13, "Version 9223372036854775808", create("held", 2**63)),
    (400, 13, "3 to 1", delete("held", 3, 1)),
    (400, 13, "Location", declare("new", location="/etc")),
    (400, 13, "must not be empty", {"deregister_table": {"id": ["ws", ""]}}),
]


@pytest.mark.parametrize("index", [0, 2, 4])
@pytest.mark.parametrize("failure", FAILURES)
def test_any_failure_rolls_back_the_batch(lance: Lance, index, failure):
    status, code, error, failing = failure
    held = make_table("ws", "held")
    make_version(("ws", "held"), 1)
    make_table("ws", "gone")
    staged = stage(held, 7)
    good = [declare("fresh"), create("fresh", 1), create("held", 7, relative(staged))]
    good.append(deregister("gone"))
    operations = [*good[:index], failing, *good[index:]]
    response = lance.refused(status, code, error, COMMIT, batch(*operations))
    assert response.json()["error"].startswith(f"Operation {index}: ")
    assert staged.exists()
    assert not final_path(held, 7).exists()
    # Only that operation failed: without it the batch succeeds.
    assert len(lance.post(COMMIT, batch(*good))["results"]) == 4


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"drop_table": {"id": ["ws", "t"]}},
        {"declare_table": None},
        {"declare_table": {"id": ["ws", "u"]}, "deregister_table": {"id": ["ws", "t"]}},
        {**declare("u"), **create("u", 1), **delete("u"), **deregister("u")},
    ],
)
@pytest.mark.parametrize("index", [0, 1])
def test_exactly_one_field(lance: Lance, entry, index):
    make_table("ws", "t")
    operations = [declare("x"), declare("y")]
    operations.insert(index, entry)
    response = lance.refused(400, 13, "exactly one of", COMMIT, batch(*operations))
    assert response.json()["error"].startswith(f"Operation {index}: ")


@pytest.mark.parametrize("entry", [{"declare_table": {}}, {"deregister_table": {"id": []}}])
def test_an_id_is_required(lance: Lance, entry):
    lance.refused(400, 13, "Operation 1: ", COMMIT, batch(declare("x"), entry))


@shared_cases(
    ("body", "error"),
    [
        ({}, "operations"),
        ({"operations": None}, "operations"),
        ({"operations": {}}, "operations"),
        ({"operations": [declare("x"), 1]}, "operations.1"),
        (batch(declare("x"), create("x", "1")), "operations.1.create_table_version.version"),
        (batch({"create_table_version": {"version": 1}}), "operations.0.create_table_version"),
    ],
)
def test_wrong_types(lance: Lance, body, error):
    lance.refused(400, 13, error, COMMIT, body)


def test_an_empty_batch(lance: Lance):
    before = snapshot()
    assert lance.post(COMMIT, batch()) == {"results": []}
    assert snapshot() == before


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    for operation in (declare("u"), create("t", 1), delete("t"), deregister("t")):
        reader.refused(403, 15, "Operation 0: 'reader' may not ", COMMIT, batch(operation))


def test_a_hundred_operations(lance: Lance):
    operations = [op for n in range(50) for op in (declare(f"t{n}"), create(f"t{n}", 1))]
    answer = lance.post(COMMIT, batch(*operations))
    assert len(answer["results"]) == 100
    assert TableVersion.objects.count() == 50
