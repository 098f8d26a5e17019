import pytest

from tests.api.client import Lance, spell
from tests.factories import make_namespace, unchanged

pytestmark = pytest.mark.operation("NamespaceExists")


def test_exists_is_an_empty_200(lance: Lance):
    make_namespace("ws", "x")
    with unchanged():
        response = lance.call("POST", "/v1/namespace/ws%24x/exists", {"id": ["ws", "x"]})
    assert (response.status_code, response.content) == (200, b"")


def test_the_root_exists(lance: Lance):
    assert lance.post("/v1/namespace/%24/exists") is None


@pytest.mark.parametrize("delimiter", [".", "::", "/"])
def test_delimiters(lance: Lance, delimiter):
    make_namespace("a", "b")
    path = spell("a", "b", delimiter=delimiter)
    assert lance.post(f"/v1/namespace/{path}/exists?delimiter={spell(delimiter)}") is None


def test_missing(lance: Lance):
    lance.refused(404, 1, "Namespace 'ws' does not exist", "/v1/namespace/ws/exists", {})


def test_dropped(lance: Lance):
    make_namespace("ws")
    lance.post("/v1/namespace/ws/drop", {})
    lance.refused(404, 1, "Namespace 'ws' does not exist", "/v1/namespace/ws/exists", {})


def test_read_only_key(reader: Lance):
    make_namespace("ws")
    assert reader.post("/v1/namespace/ws/exists") is None
