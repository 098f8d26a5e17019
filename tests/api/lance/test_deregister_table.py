import pytest

from catalog.models import AuditEvent, Job, TableState
from tests.api.client import Lance
from tests.factories import files, make_namespace, make_table, make_version, relative, stage

pytestmark = pytest.mark.operation("DeregisterTable")


def test_removes_the_table_and_keeps_its_data(lance: Lance):
    table = make_table("ws", "t", properties={"k": "v"})
    make_version(("ws", "t"), 1, relative(stage(table, 1)))
    before = files(table.location)
    assert list(before) == ["_versions/18446744073709551614.manifest"]
    answer = lance.post("/v1/table/ws$t/deregister", {"id": ["ws", "t"]})
    assert answer == {
        "id": ["ws", "t"],
        "location": table.location,
        "properties": {"k": "v"},
        "transaction_id": answer["transaction_id"],
    }
    assert files(table.location) == before
    assert Job.objects.count() == 0
    table.refresh_from_db()
    assert table.state == TableState.DROPPED
    assert table.versions.count() == 1  # the ledger is kept for a later registration
    lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/describe", {})
    facts = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    assert facts["status"] == "Succeeded"
    event = AuditEvent.objects.get(action="table.deregister")
    assert (event.target, event.before) == ("ws.t", {"location": table.location})


def test_a_declared_table(lance: Lance):
    make_table("ws", "t")
    lance.post("/v1/table/ws$t/deregister")
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": []}


def test_missing(lance: Lance):
    make_namespace("ws")
    lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/deregister", {})
    lance.refused(404, 1, "Namespace 'x' does not exist", "/v1/table/x$t/deregister", {})


def test_twice(lance: Lance):
    make_table("ws", "t")
    lance.post("/v1/table/ws$t/deregister", {})
    lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/deregister", {})


def test_body_id_must_be_the_path_id(lance: Lance):
    make_table("ws", "t")
    make_table("ws", "u")
    lance.refused(400, 13, "'u'", "/v1/table/ws$t/deregister", {"id": ["ws", "u"]})


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    reader.refused(403, 15, "may not manage 'ws.t'", "/v1/table/ws$t/deregister", {})
