import pytest

from tests.api.client import Lance
from tests.factories import make_namespace, unchanged

pytestmark = pytest.mark.operation("DescribeNamespace")


def test_returns_the_properties(lance: Lance):
    make_namespace("ws", properties={"größe": "🧊", "empty": ""})
    with unchanged():
        description = lance.post("/v1/namespace/ws/describe", {"id": ["ws"]})
    assert description == {"properties": {"größe": "🧊", "empty": ""}}


def test_the_root(lance: Lance):
    assert lance.post("/v1/namespace/%24/describe", {"id": []}) == {"properties": {}}
    assert lance.post("/v1/namespace/./describe?delimiter=.") == {"properties": {}}


def test_plus_and_percent_20_are_equivalent(lance: Lance):
    make_namespace("a b", properties={"k": "v"})
    for path in ("a+b", "a%20b"):
        assert lance.post(f"/v1/namespace/{path}/describe", {"id": ["a b"]}) == {
            "properties": {"k": "v"}
        }
        assert lance.post(f"/v1/namespace/{path}/describe") == {"properties": {"k": "v"}}


def test_missing(lance: Lance):
    make_namespace("ws")
    lance.refused(404, 1, "Namespace 'ws.x' does not exist", "/v1/namespace/ws$x/describe", {})


def test_names_are_case_sensitive(lance: Lance):
    make_namespace("ws")
    lance.refused(404, 1, "Namespace 'WS' does not exist", "/v1/namespace/WS/describe", {})


def test_body_id_must_be_the_path_id(lance: Lance):
    make_namespace("ws")
    lance.refused(400, 13, "['x']", "/v1/namespace/ws/describe", {"id": ["x"]})
    lance.refused(400, 13, "[]", "/v1/namespace/ws/describe", {"id": []})


def test_read_only_key(reader: Lance):
    make_namespace("ws")
    assert reader.post("/v1/namespace/ws/describe", {}) == {"properties": {}}
