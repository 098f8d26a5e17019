import pytest

from catalog.models import Table, TableFormat
from tests.api.client import Lance, spell
from tests.factories import make_table, make_version

pytestmark = pytest.mark.operation("ListAllTables")


def test_lists_the_tables_of_all_namespaces(lance: Lance):
    for identifier in (("t",), ("a", "t"), ("a", "b c", "größe")):
        make_table(*identifier)
    answer = lance.get("/v1/table")
    assert set(answer["tables"]) == {"t", "a$t", "a$b c$größe"}
    assert "page_token" not in answer
    assert lance.get("/v1/table/") == answer
    assert set(lance.get("/v1/table?delimiter=::")["tables"]) == {"t", "a::t", "a::b c::größe"}


def test_nothing(lance: Lance):
    assert lance.get("/v1/table") == {"tables": []}


def test_include_declared(lance: Lance):
    make_table("declared")
    make_table("live")
    make_version(("live",), 1)
    assert lance.get("/v1/table?include_declared=false") == {"tables": ["live"]}
    assert set(lance.get("/v1/table?include_declared=true")["tables"]) == {"declared", "live"}


def test_dropped_and_other_formats_are_not_listed(lance: Lance):
    for name in ("a", "b", "c"):
        make_table(name)
    lance.post("/v1/table/a/drop")
    Table.objects.filter(name="b").update(format=TableFormat.ICEBERG)
    assert lance.get("/v1/table") == {"tables": ["c"]}


def test_pages_to_the_end_and_stable_under_changes(lance: Lance):
    names = [f"t{number}" for number in range(5)]
    for name in names:
        make_table("ws", name)
    listed, token, rounds = [], "", 0
    while token is not None:
        page = lance.get(f"/v1/table?limit=2&page_token={spell(token) if token else ''}")
        assert len(page["tables"]) <= 2
        listed += page["tables"]
        token = page.get("page_token")
        rounds += 1
        if rounds == 1:
            # Entries of earlier pages do not occur again; new entries may occur once.
            lance.post("/v1/table/ws$t1/deregister", {})
            make_table("ws", "a")
    assert rounds == 3
    assert [name for name in listed if name != "ws$a"] == [f"ws${name}" for name in names]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "9" * 30, "%00"])
def test_invalid_tokens_are_refused(lance: Lance, token):
    lance.refused(400, 13, "token", f"/v1/table?page_token={token}", method="GET")


def test_an_invalid_limit_is_refused(lance: Lance):
    lance.refused(400, 13, "'limit'", "/v1/table?limit=0", method="GET")


def test_only_get(lance: Lance):
    response = lance.refused(405, 0, "use GET", "/v1/table", method="DELETE")
    assert response["allow"] == "GET"


def test_read_only_key(reader: Lance):
    make_table("t")
    assert reader.get("/v1/table") == {"tables": ["t"]}
