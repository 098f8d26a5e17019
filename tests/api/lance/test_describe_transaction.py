import uuid

import pytest

from catalog.models import TableVersion
from tests.api.client import Lance, spell
from tests.factories import (
    make_namespace,
    make_table,
    make_version,
    manifest,
    relative,
    stage,
    unchanged,
)

pytestmark = pytest.mark.operation("DescribeTransaction")


def test_every_returned_transaction_id_can_be_described(lance: Lance):
    ids = {
        "CreateNamespace": lance.post("/v1/namespace/ws/create")["transaction_id"],
        "DeclareTable": lance.post("/v1/table/ws$t/declare")["transaction_id"],
        "CreateTableVersion": lance.post(
            "/v1/table/ws$t/version/create", {"version": 1, "manifest_path": "x/1"}
        )["transaction_id"],
        "DeleteTableVersions": lance.post(
            "/v1/table/ws$t/version/delete", {"ranges": [{"start_version": 0, "end_version": 1}]}
        )["transaction_id"],
        "RenameTable": lance.post("/v1/table/ws$t/rename", {"new_table_name": "u"})[
            "transaction_id"
        ],
        "DeregisterTable": lance.post("/v1/table/ws$u/deregister")["transaction_id"],
        "RegisterTable": lance.post("/v1/table/ws$v/register", {"location": "mine"})[
            "transaction_id"
        ],
        "DropTable": lance.post("/v1/table/ws$v/drop")["transaction_id"],
        "DropNamespace": None,
    }
    make_table("ws", "w")
    ids["DropNamespace"] = lance.post("/v1/namespace/ws/drop", {"behavior": "Cascade"})[
        "transaction_id"
    ][0]
    assert len(set(ids.values())) == 9
    for operation, transaction_id in ids.items():
        with unchanged():
            facts = lance.post(f"/v1/transaction/{transaction_id}/describe", {})
        assert operation in facts["properties"]["monodon.operations"].split(",")
        assert facts["properties"]["monodon.actor"] == "tester"
        dropped = operation in {"DropTable", "DropNamespace"}
        assert facts["status"] == ("Queued" if dropped else "Succeeded")


def test_by_table_and_version(lance: Lance):
    table = make_table("ws", "a b")
    body = {"version": 7, "manifest_path": relative(stage(table, 7))}
    lance.post("/v1/table/ws$a+b/version/create", body)
    facts = lance.post("/v1/transaction/ws%24a+b%247/describe", {"id": ["ws", "a b", "7"]})
    row = TableVersion.objects.get()
    assert facts["status"] == "Succeeded"
    assert facts["properties"]["monodon.table"] == "ws.a b"
    assert facts["properties"]["monodon.version"] == "7"
    assert facts["properties"]["monodon.manifest_path"] == row.manifest_path


def test_by_the_largest_version(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    TableVersion.objects.update(version=2**62)  # as an earlier release accepted it
    facts = lance.post(f"/v1/transaction/ws$t${2**62}/describe")
    assert facts["properties"]["monodon.version"] == str(2**62)


@pytest.mark.parametrize("delimiter", [".", "::", "/"])
def test_by_table_and_version_with_delimiters(lance: Lance, delimiter):
    make_table("a", "b", "t")
    make_version(("a", "b", "t"), 3)
    path = spell("a", "b", "t", "3", delimiter=delimiter)
    facts = lance.post(f"/v1/transaction/{path}/describe?delimiter={spell(delimiter)}")
    assert facts["properties"]["monodon.version"] == "3"


@pytest.mark.parametrize("delimiter", ["-", "0", "7"])
def test_an_id_is_not_split_at_the_delimiter(lance: Lance, delimiter):
    answer = lance.post("/v1/namespace/ws/create")["transaction_id"]
    facts = lance.post(f"/v1/transaction/{answer}/describe?delimiter={delimiter}", {"id": [answer]})
    assert facts["status"] == "Succeeded"


def test_a_registered_version_belongs_to_the_registration(lance: Lance, warehouse):
    path = warehouse / "mine/_versions/1.manifest"
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest(1))
    answer = lance.post("/v1/table/t/register", {"location": "mine"})
    facts = lance.post("/v1/transaction/t$1/describe")
    assert facts["properties"]["monodon.operations"] == "RegisterTable"
    assert answer["transaction_id"] == str(TableVersion.objects.get().transaction_id)


@pytest.mark.parametrize(
    "path", ["nothing", str(uuid.UUID(int=7)), "ws$t$2", "ws$t$x", "ws$x$1", "ws$t", "ws$t$-1"]
)
def test_missing(lance: Lance, path):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    error = f"Transaction '{path.replace('$', '.')}' does not exist"
    lance.refused(404, 10, error, f"/v1/transaction/{path}/describe", {})


def test_the_root_is_not_a_transaction(lance: Lance):
    lance.refused(404, 10, "Transaction '(root)' does not exist", "/v1/transaction/%24/describe")


def test_deleted_versions_and_dropped_tables(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    make_version(("ws", "t"), 2)
    ranges = [{"start_version": 1, "end_version": 2}]
    lance.post("/v1/table/ws$t/version/delete", {"ranges": ranges})
    lance.refused(404, 10, "ws.t.1", "/v1/transaction/ws$t$1/describe")
    lance.post("/v1/table/ws$t/deregister")
    lance.refused(404, 10, "ws.t.2", "/v1/transaction/ws$t$2/describe")


def test_body_id_must_be_the_path_id(lance: Lance):
    answer = lance.post("/v1/namespace/ws/create")["transaction_id"]
    lance.refused(400, 13, "['x']", f"/v1/transaction/{answer}/describe", {"id": ["x"]})


def test_read_only_key(reader: Lance):
    make_namespace("ws")
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    assert reader.post("/v1/transaction/ws$t$1/describe")["status"] == "Succeeded"
