import pytest

from catalog.models import AuditEvent, Job, Namespace, Table, TableState
from tests.api.client import Lance
from tests.factories import make_namespace, make_table, unchanged

pytestmark = pytest.mark.operation("DropNamespace")


def test_drops_an_empty_namespace(lance: Lance):
    row = make_namespace("ws", properties={"a": "1"})
    assert lance.post("/v1/namespace/ws/drop", {}) == {"properties": {"a": "1"}}
    assert lance.get("/v1/namespace/$/list") == {"namespaces": []}
    row.refresh_from_db()
    assert row.dropped_at is not None  # the row is kept
    event = AuditEvent.objects.get(action="namespace.drop")
    assert (event.target, event.before) == ("ws", {"properties": {"a": "1"}})


def test_the_name_is_free_again(lance: Lance):
    make_namespace("ws", properties={"a": "1"})
    lance.post("/v1/namespace/ws/drop", {})
    lance.post("/v1/namespace/ws/create", {})
    assert lance.post("/v1/namespace/ws/describe", {}) == {"properties": {}}
    assert Namespace.objects.filter(name="ws").count() == 2


@pytest.mark.parametrize("mode", [None, "Fail", "fail", "FAIL"])
def test_fail_mode_refuses_a_missing_namespace(lance: Lance, mode):
    lance.refused(404, 1, "Namespace 'ws' does not exist", "/v1/namespace/ws/drop", {"mode": mode})


@pytest.mark.parametrize("mode", ["Skip", "skip", "SKIP"])
def test_skip_mode_accepts_a_missing_namespace(lance: Lance, mode):
    with unchanged():
        response = lance.call("POST", "/v1/namespace/ws/drop", {"mode": mode})
    assert (response.status_code, response.json()) == (200, {})  # a 204 would fail the client


def test_skip_mode_drops_an_existing_namespace(lance: Lance):
    make_namespace("ws")
    lance.post("/v1/namespace/ws/drop", {"mode": "Skip"})
    assert lance.get("/v1/namespace/$/list") == {"namespaces": []}


@pytest.mark.parametrize("behavior", [None, "Restrict", "restrict", "RESTRICT"])
def test_restrict_refuses_a_namespace_with_content(lance: Lance, behavior):
    make_table("ws", "t")
    make_table("ws", "u")
    make_namespace("ws", "inner")
    lance.refused(
        409,
        3,
        "Namespace 'ws' is not empty: it holds 2 tables and 1 namespace",
        "/v1/namespace/ws/drop",
        {"behavior": behavior},
    )


def test_restrict_ignores_dropped_tables(lance: Lance):
    make_table("ws", "t")
    lance.post("/v1/table/ws$t/deregister", {})
    lance.post("/v1/namespace/ws/drop", {"behavior": "Restrict"})
    assert Table.objects.get().state == TableState.DROPPED


@pytest.mark.parametrize("behavior", ["Cascade", "cascade", "CASCADE"])
def test_cascade_drops_all_descendants(lance: Lance, behavior):
    inside = [make_table("ws", "t"), make_table("ws", "a", "t"), make_table("ws", "a", "b", "t")]
    outside = [make_table("w", "t"), make_table("wsx", "t"), make_table("t")]
    answer = lance.post("/v1/namespace/ws/drop", {"behavior": behavior})
    assert lance.get("/v1/namespace/$/list") == {"namespaces": ["w", "wsx"]}
    assert set(Table.objects.present()) == set(outside)
    assert {job.table for job in Job.objects.all()} == set(inside)
    [transaction_id] = answer["transaction_id"]
    description = lance.post(f"/v1/transaction/{transaction_id}/describe")
    assert description["status"] == "Queued"
    assert set(description["properties"]["monodon.targets"].split(",")) == {
        "ws",
        "ws.a",
        "ws.a.b",
        "ws.t",
        "ws.a.t",
        "ws.a.b.t",
    }


def test_cascade_without_tables_starts_no_job(lance: Lance):
    make_namespace("ws", "a")
    assert lance.post("/v1/namespace/ws/drop", {"behavior": "Cascade"}) == {"properties": {}}


def test_a_name_with_the_same_prefix_is_no_descendant(lance: Lance):
    make_namespace("ws.a")
    make_namespace("ws")
    lance.post("/v1/namespace/ws/drop", {"behavior": "Cascade"})
    assert lance.get("/v1/namespace/$/list") == {"namespaces": ["ws.a"]}


@pytest.mark.parametrize("behavior", ["Restrict", "Cascade"])
def test_the_root_cannot_be_dropped(lance: Lance, behavior):
    make_table("ws", "t")
    lance.refused(
        400,
        13,
        "root namespace cannot be dropped",
        "/v1/namespace/%24/drop",
        {"behavior": behavior},
    )


def test_unknown_modes(lance: Lance):
    make_namespace("ws")
    lance.refused(400, 13, "'maybe'", "/v1/namespace/ws/drop", {"mode": "maybe"})
    lance.refused(400, 13, "'gently'", "/v1/namespace/ws/drop", {"behavior": "gently"})


def test_body_id_must_be_the_path_id(lance: Lance):
    make_namespace("ws")
    make_namespace("x")
    lance.refused(400, 13, "['x']", "/v1/namespace/ws/drop", {"id": ["x"]})


def test_read_only_key(reader: Lance):
    make_namespace("ws")
    reader.refused(403, 15, "'reader' may not manage 'ws'", "/v1/namespace/ws/drop", {})
