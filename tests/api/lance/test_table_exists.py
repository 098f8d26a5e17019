import pytest

from tests.api.client import Lance
from tests.factories import make_table, make_version, unchanged

pytestmark = pytest.mark.operation("TableExists")


def test_exists_is_an_empty_200(lance: Lance):
    make_table("ws", "t")
    with unchanged():
        response = lance.call("POST", "/v1/table/ws%24t/exists?delimiter=%24", {"id": ["ws", "t"]})
    assert (response.status_code, response.content) == (200, b"")
    assert lance.post("/v1/table/ws$t/exists/") is None


def test_missing(lance: Lance):
    make_table("ws", "t")
    lance.refused(404, 4, "Table 'ws.u' does not exist", "/v1/table/ws$u/exists", {})
    lance.refused(404, 1, "Namespace 'x' does not exist", "/v1/table/x$t/exists", {})


def test_at_a_version(lance: Lance):
    """TableExists behaves exactly like DescribeTable."""
    make_table("ws", "t")
    make_version(("ws", "t"), 3)
    assert lance.post("/v1/table/ws$t/exists", {"version": 3}) is None
    lance.refused(404, 11, "Table 'ws.t' has no version 2", "/v1/table/ws$t/exists", {"version": 2})


def test_dropped_and_deregistered(lance: Lance):
    for name, way in (("t", "drop"), ("u", "deregister")):
        make_table("ws", name)
        lance.post(f"/v1/table/ws${name}/{way}")
        lance.refused(404, 4, f"Table 'ws.{name}' does", f"/v1/table/ws${name}/exists", {})


def test_body_id_must_be_the_path_id(lance: Lance):
    make_table("ws", "t")
    lance.refused(400, 13, "['t']", "/v1/table/ws$t/exists", {"id": ["t"]})


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    assert reader.post("/v1/table/ws$t/exists") is None
