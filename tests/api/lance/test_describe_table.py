from pathlib import Path

import pytest

from catalog.models import Table, TableFormat
from tests.api.client import Lance, spell
from tests.factories import make_table, make_version, unchanged

pytestmark = pytest.mark.operation("DescribeTable")


def test_tells_where_it_lies(lance: Lance):
    table = make_table("ws", "t", properties={"k": "größe"})
    with unchanged():
        found = lance.post("/v1/table/ws$t/describe", {"id": ["ws", "t"]})
    assert found == {
        "location": table.location,
        "properties": {"k": "größe"},
        "managed_versioning": True,
    }


@pytest.mark.parametrize("way", ["query", "body"])
def test_check_declared(lance: Lance, way):
    make_table("ws", "t")

    def is_only_declared() -> bool:
        if way == "query":
            found = lance.post("/v1/table/ws$t/describe?check_declared=true")
        else:
            found = lance.post("/v1/table/ws$t/describe", {"check_declared": True})
        return found["is_only_declared"]

    assert is_only_declared() is True
    make_version(("ws", "t"), 1)
    assert is_only_declared() is False


def test_is_only_declared_is_not_told_unasked(lance: Lance):
    make_table("ws", "t")
    for query in ("", "?check_declared=false", "?check_declared="):
        assert "is_only_declared" not in lance.post(f"/v1/table/ws$t/describe{query}")


def test_with_table_uri(lance: Lance, warehouse: Path):
    make_table("ws", "t", location="a b/größe")
    for found in (
        lance.post("/v1/table/ws$t/describe?with_table_uri=true"),
        lance.post("/v1/table/ws$t/describe", {"with_table_uri": True}),
    ):
        assert found["location"] == f"{warehouse}/a b/größe"
        assert found["table_uri"] == f"file://{warehouse}/a%20b/gr%C3%B6%C3%9Fe"
    assert "table_uri" not in lance.post("/v1/table/ws$t/describe?with_table_uri=false")


def test_as_the_client_calls_it(lance: Lance):
    table = make_table("ws", "a b")
    found = lance.post(
        "/v1/table/ws%24a+b/describe?delimiter=%24&with_table_uri=false&check_declared=false",
        {"id": ["ws", "a b"], "vend_credentials": True},
    )
    assert found["location"] == table.location


@pytest.mark.parametrize("delimiter", [".", "::", "/"])
def test_delimiters(lance: Lance, delimiter):
    table = make_table("a", "b", "t")
    path = spell("a", "b", "t", delimiter=delimiter)
    found = lance.post(f"/v1/table/{path}/describe?delimiter={spell(delimiter)}")
    assert found["location"] == table.location


def test_at_a_version(lance: Lance):
    table = make_table("ws", "t")
    make_version(("ws", "t"), 1)
    make_version(("ws", "t"), 5, branch="dev")
    assert lance.post("/v1/table/ws$t/describe", {"version": 1})["location"] == table.location
    lance.post("/v1/table/ws$t/describe", {"version": 5, "branch": "dev"})
    lance.refused(404, 11, "no version 5", "/v1/table/ws$t/describe", {"version": 5})


def test_at_a_branch(lance: Lance):
    make_table("ws", "t")
    make_version(("ws", "t"), 1, branch="dev")
    lance.post("/v1/table/ws$t/describe", {"branch": "dev"})
    lance.post("/v1/table/ws$t/describe", {"branch": "main"})
    lance.refused(404, 22, "no branch 'x'", "/v1/table/ws$t/describe", {"branch": "x"})


def test_at_a_tag(lance: Lance):
    make_table("ws", "t")
    lance.refused(406, 0, "tags", "/v1/table/ws$t/describe", {"tag": "v1"})
    lance.refused(400, 13, "tag", "/v1/table/ws$t/describe", {"tag": "v1", "version": 1})
    lance.refused(400, 13, "tag", "/v1/table/ws$t/describe", {"tag": "v1", "branch": "dev"})


def test_detailed_metadata_is_not_served(lance: Lance):
    make_table("ws", "t")
    path = "/v1/table/ws$t/describe"
    lance.refused(406, 0, "detailed metadata", path, {"load_detailed_metadata": True})
    lance.refused(406, 0, "detailed metadata", f"{path}?load_detailed_metadata=true")
    lance.post(f"{path}?load_detailed_metadata=false", {"load_detailed_metadata": False})


def test_a_flag_that_is_none(lance: Lance):
    make_table("ws", "t")
    lance.refused(400, 13, "'with_table_uri'", "/v1/table/ws$t/describe?with_table_uri=maybe")


def test_missing(lance: Lance):
    make_table("ws", "t")
    lance.refused(404, 4, "Table 'ws.u' does not exist", "/v1/table/ws$u/describe", {})
    lance.refused(404, 1, "Namespace 'x' does not exist", "/v1/table/x$t/describe", {})
    lance.refused(404, 4, "Table 'u' does not exist", "/v1/table/u/describe", {})


def test_a_table_of_another_format(lance: Lance):
    make_table("ws", "t")
    Table.objects.update(format=TableFormat.ICEBERG)
    response = lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/describe", {})
    assert "iceberg" in response.json()["detail"]


def test_body_id_must_be_the_path_id(lance: Lance):
    make_table("ws", "t")
    make_table("ws", "u")
    lance.refused(400, 13, "['ws', 'u']", "/v1/table/ws$t/describe", {"id": ["ws", "u"]})


@pytest.mark.parametrize(
    "body", [{"version": "1"}, {"version": -1}, {"version": 1.5}, {"check_declared": "yes"}]
)
def test_wrong_types(lance: Lance, body):
    make_table("ws", "t")
    lance.refused(400, 13, next(iter(body)), "/v1/table/ws$t/describe", body)


def test_read_only_key(reader: Lance):
    table = make_table("ws", "t")
    assert reader.post("/v1/table/ws$t/describe")["location"] == table.location
