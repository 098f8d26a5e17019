import pytest

from catalog.models import AuditEvent, Table
from tests.api.client import Lance
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table, make_version

pytestmark = pytest.mark.operation("RenameTable")


def test_renames_within_a_namespace(lance: Lance):
    table = make_table("ws", "t", properties={"k": "v"})
    make_version(("ws", "t"), 1)
    answer = lance.post("/v1/table/ws$t/rename", {"id": ["ws", "t"], "new_table_name": "u"})
    description = lance.post("/v1/table/ws$u/describe")
    assert (description["location"], description["properties"]) == (table.location, {"k": "v"})
    assert lance.post("/v1/table/ws$u/version/describe", {"version": 1})["version"]["version"] == 1
    lance.refused(404, 4, "Table 'ws.t' does not exist", "/v1/table/ws$t/describe", {})
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": ["u"]}
    status = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")["status"]
    assert status == "Succeeded"


def test_across_namespaces(lance: Lance):
    table = make_table("a", "t")
    make_namespace("b", "c")
    lance.post("/v1/table/a$t/rename", {"new_table_name": "u", "new_namespace_id": ["b", "c"]})
    assert lance.post("/v1/table/b$c$u/describe")["location"] == table.location
    assert lance.get("/v1/namespace/a/table/list") == {"tables": []}
    assert lance.get("/v1/namespace/b$c/table/list") == {"tables": ["u"]}
    event = AuditEvent.objects.get(action="table.rename")
    assert (event.before, event.after) == ({"name": "a.t"}, {"name": "b.c.u"})


def test_into_and_out_of_the_root(lance: Lance):
    make_table("a", "t")
    lance.post("/v1/table/a$t/rename", {"new_table_name": "t", "new_namespace_id": []})
    assert lance.get("/v1/table") == {"tables": ["t"]}
    lance.post("/v1/table/t/rename", {"new_table_name": "u", "new_namespace_id": ["a"]})
    assert lance.get("/v1/table") == {"tables": ["a$u"]}


def test_back_and_forth(lance: Lance):
    for old, new in (("t", "u"), ("u", "t"), ("t", "u")):
        if not Table.objects.exists():
            make_table("ws", "t")
        lance.post(f"/v1/table/ws${old}/rename", {"new_table_name": new})
    make_table("ws", "t")  # the old name is free
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": ["t", "u"]}


def test_to_a_spelling_of_the_same_name(lance: Lance):
    make_table("ws", "a b")
    lance.post("/v1/table/ws$a%20b/rename", {"id": ["ws", "a b"], "new_table_name": "a+b"})
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": ["a+b"]}


@pytest.mark.parametrize("name", ["a/b", "größe", "🧊", "100%", "x" * 255, "a$b"])
def test_to_any_name(lance: Lance, name):
    make_table("ws", "t")
    lance.post("/v1/table/ws$t/rename", {"new_table_name": name})
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": [name]}


def test_a_taken_name_is_refused(lance: Lance):
    make_table("ws", "t")
    make_table("ws", "u")
    lance.refused(
        409,
        5,
        "Table 'ws.u' exists already",
        "/v1/table/ws$t/rename",
        {"new_table_name": "u"},
    )
    lance.refused(409, 5, "Table 'ws.t' exists", "/v1/table/ws$t/rename", {"new_table_name": "t"})


def test_missing(lance: Lance):
    make_table("ws", "t")
    lance.refused(
        404, 4, "Table 'ws.x' does not exist", "/v1/table/ws$x/rename", {"new_table_name": "u"}
    )
    lance.refused(
        404, 1, "Namespace 'x' does not exist", "/v1/table/x$t/rename", {"new_table_name": "u"}
    )
    lance.refused(
        404,
        1,
        "Namespace 'y.z' does not exist",
        "/v1/table/ws$t/rename",
        {"new_table_name": "u", "new_namespace_id": ["y", "z"]},
    )


@shared_cases(
    ("body", "error"),
    [
        ({}, "new_table_name"),
        ({"new_table_name": ""}, "must not be empty"),
        ({"new_table_name": "a\0b"}, "control character"),
        ({"new_table_name": "x" * 256}, "255"),
        ({"new_table_name": "u", "new_namespace_id": [""]}, "must not be empty"),
        ({"new_table_name": "u", "new_namespace_id": "ws"}, "new_namespace_id"),
        ({"id": ["t"], "new_table_name": "u"}, "['t']"),
    ],
    prepare=lambda: make_table("ws", "t"),
)
def test_malformed_requests_are_refused(lance: Lance, body, error):
    lance.refused(400, 13, error, "/v1/table/ws$t/rename", body)


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    reader.refused(
        403, 15, "may not manage 'ws.t'", "/v1/table/ws$t/rename", {"new_table_name": "u"}
    )
