from pathlib import Path

import pytest
from django.db import connection

from catalog.models import AuditEvent, Table, TableState
from tests.api.client import Lance, spell
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table

pytestmark = pytest.mark.operation("DeclareTable")


def test_reserves_a_name_and_a_location(lance: Lance, warehouse: Path):
    make_namespace("ws")
    answer = lance.post("/v1/table/ws$t/declare", {"id": ["ws", "t"], "properties": {"k": "v"}})
    assert answer["managed_versioning"] is True
    assert answer["properties"] == {"k": "v"}
    assert answer["location"].startswith(f"{warehouse}/t-")
    row = Table.objects.get()
    assert (row.state, row.location, row.owner) == (
        TableState.DECLARED,
        answer["location"],
        "tester",
    )
    assert not Path(answer["location"]).exists()  # the table is only declared
    description = lance.post(f"/v1/transaction/{answer['transaction_id']}/describe")
    assert (description["status"], description["properties"]["monodon.operations"]) == (
        "Succeeded",
        "DeclareTable",
    )


def test_declares_a_table_in_the_root(lance: Lance):
    lance.post("/v1/table/t/declare", {"id": ["t"]})
    assert lance.get("/v1/namespace/$/table/list") == {"tables": ["t"]}


def test_locations_are_never_shared_nor_reused(lance: Lance):
    locations = set()
    for _ in range(3):
        locations.add(lance.post("/v1/table/t/declare")["location"])
        lance.post("/v1/table/t/deregister", {})
    assert len(locations) == 3


def test_a_second_declare_gets_409(lance: Lance):
    make_table("ws", "t")
    lance.refused(409, 5, "Table 'ws.t' exists already", "/v1/table/ws$t/declare", {})


def test_a_missing_namespace(lance: Lance):
    lance.refused(404, 1, "Namespace 'ws' does not exist", "/v1/table/ws$t/declare", {})


def test_a_table_is_not_a_namespace(lance: Lance):
    make_table("ws", "t")
    lance.refused(404, 1, "Namespace 'ws.t' does not exist", "/v1/table/ws$t$u/declare", {})


def test_the_root_is_not_a_table(lance: Lance):
    lance.refused(400, 13, "root namespace is not a table", "/v1/table/%24/declare", {})


@pytest.mark.parametrize(
    "name",
    ["a b", "a/b", "a.b", "100%", "%41", "größe", "東京", "🦭🧊", "a+b", "a$b", "..", "x" * 255],
)
def test_any_printable_name(lance: Lance, name):
    make_namespace("ws")
    path = f"/v1/table/{spell('ws', name, delimiter='|')}"
    location = lance.post(f"{path}/declare?delimiter=|", {"id": ["ws", name]})["location"]
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": [name]}
    description = lance.post(f"{path}/describe?delimiter=|", {"id": ["ws", name]})
    assert description["location"] == location
    assert "/../" not in location
    lance.refused(409, 5, name, f"{path}/declare?delimiter=|", {"id": ["ws", name]})


@pytest.mark.parametrize(
    "spelled", ["ws%24a+b%2Fc", "ws%24a%20b%2Fc", "ws$a b/c", "ws%24a%2Bb%2Fc"]
)
def test_a_space_is_accepted_in_every_encoding(lance: Lance, spelled):
    """Clients form-encode paths, so a space becomes a plus. The body distinguishes the two."""
    make_namespace("ws")
    path = f"/v1/table/{spelled.replace(' ', '%20')}"
    lance.post(f"{path}/declare?delimiter=%24", {"id": ["ws", "a b/c"]})
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": ["a b/c"]}


@pytest.mark.parametrize("delimiter", [".", "::", "/", "🧊"])
def test_delimiters(lance: Lance, delimiter):
    make_namespace("a b", "c$d")
    path = spell("a b", "c$d", "t", delimiter=delimiter)
    lance.post(f"/v1/table/{path}/declare?delimiter={spell(delimiter)}")
    row = Table.objects.get()
    assert row.identifier == ("a b", "c$d", "t")


def test_an_explicit_location_is_used(lance: Lance, warehouse: Path):
    for number, location in enumerate(
        [f"{warehouse}/mine/1", f"file://{warehouse}/mine/2/", "mine/3", f"{warehouse}//mine/./4"],
        start=1,
    ):
        answer = lance.post(f"/v1/table/t{number}/declare", {"location": location})
        assert answer["location"] == f"{warehouse}/mine/{number}"


@shared_cases(
    ("location", "error"),
    [
        ("/etc", "is outside"),
        ("file:///etc/passwd", "is outside"),
        ("{warehouse}", "belongs to the server"),
        ("{warehouse}/", "belongs to the server"),
        ("{warehouse}/../x", "holds '..'"),
        ("{warehouse}/%2e%2e/x", "holds '..'"),
        ("file://{warehouse}/%2e%2e/x", "holds '..'"),
        ("../x", "holds '..'"),
        ("", "is empty"),
        ("/", "is empty"),
        ("a\nb", "control character"),
        ("a\0b", "control character"),
        ("s3://bucket/t", "not allowed, except below the location of the namespace"),
        ("hdfs://host/t", "uses hdfs://"),
        ("file://host/t", "does not serve"),
        ("{warehouse}/" + "x" * 2100, "longer than"),
    ],
)
def test_invalid_locations_are_refused(lance: Lance, warehouse: Path, location, error):
    location = location.replace("{warehouse}", str(warehouse))
    lance.refused(400, 13, error, "/v1/table/t/declare", {"location": location})


def test_a_symbolic_link_out_of_the_warehouse_is_refused(
    lance: Lance, warehouse: Path, tmp_path: Path
):
    (tmp_path / "outside").mkdir()
    (warehouse / "link").symlink_to(tmp_path / "outside")
    lance.refused(400, 13, "is outside", "/v1/table/t/declare", {"location": f"{warehouse}/link/t"})


@pytest.mark.parametrize("location", ["a/b", "a/b/c", "a", "a/b/", "a//b"])
def test_an_overlapping_location_is_refused(lance: Lance, location):
    make_table("ws", "first", location="a/b")
    lance.refused(
        409, 14, "belongs to table 'ws.first'", "/v1/table/ws$t/declare", {"location": location}
    )


def test_a_sibling_location_with_the_same_prefix_is_free(lance: Lance, warehouse: Path):
    make_table("first", location="a/b")
    answer = lance.post("/v1/table/t/declare", {"location": "a/bc"})
    assert answer["location"] == f"{warehouse}/a/bc"
    wild = lance.post("/v1/table/u/declare", {"location": "a/_"})  # not a pattern
    assert wild["location"] == f"{warehouse}/a/_"


def test_further_allowed_roots(lance: Lance, tmp_path: Path, settings):
    settings.MONODON_ALLOWED_ROOTS = [str(tmp_path / "lake")]
    answer = lance.post("/v1/table/t/declare", {"location": f"{tmp_path}/lake/t"})
    assert answer["location"] == f"{tmp_path}/lake/t"


def test_vend_credentials_is_accepted(lance: Lance):
    assert "storage_options" not in lance.post("/v1/table/t/declare", {"vend_credentials": True})


def test_audited_with_context(lance: Lance):
    lance.post("/v1/table/t/declare", {}, headers={"x-lance-ctx-trace_id": "abc"})
    event = AuditEvent.objects.get(action="table.declare")
    assert event.context == {"trace_id": "abc"}
    assert event.table_uuid == Table.objects.get().uuid
    assert event.after["location"] == Table.objects.get().location


def test_unstorable_values_are_refused(lance: Lance):
    body = {"properties": {"a\0": "b"}}
    lance.refused(400, 13, "cannot be stored", "/v1/table/t/declare", body)


def test_body_id_must_be_the_path_id(lance: Lance):
    lance.refused(400, 13, "['u']", "/v1/table/t/declare", {"id": ["u"]})


def test_read_only_key(reader: Lance):
    make_namespace("ws")
    reader.refused(
        403, 15, "'reader' may not create anything in 'ws'", "/v1/table/ws$t/declare", {}
    )


def test_refusals_leave_the_statements_of_requests_prepared(lance):
    lance.post("/v1/namespace/refused/create", {})
    lance.post("/v1/table/refused$t/declare", {})
    for _ in range(4):
        assert lance.call("POST", "/v1/table/refused$t/declare", {}).status_code == 409
    statements = connection.connection._prepared._names
    names = set(statements.values())
    assert len(names) > 2
    assert lance.call("POST", "/v1/table/refused$t/declare", {}).status_code == 409
    assert names <= set(statements.values())
