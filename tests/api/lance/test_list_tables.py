import pytest

from catalog.models import Table, TableFormat
from tests.api.client import Lance, spell
from tests.factories import make_namespace, make_table, make_version

pytestmark = pytest.mark.operation("ListTables")


def pages(lance: Lance, path: str, limit: int) -> list[list[str]]:
    items, token = [], None
    while True:
        query = f"?limit={limit}" + (f"&page_token={spell(token)}" if token else "")
        page = lance.get(path + query)
        items.append(page["tables"])
        token = page.get("page_token")
        if token is None:
            return items


def test_lists_the_tables_of_one_namespace(lance: Lance):
    make_table("a", "t2")
    make_table("a", "t1")
    make_table("a", "b", "t3")
    make_table("t4")
    assert lance.get("/v1/namespace/a/table/list") == {"tables": ["t1", "t2"]}
    assert lance.get("/v1/namespace/a$b/table/list/") == {"tables": ["t3"]}
    assert lance.get("/v1/namespace/%24/table/list?delimiter=%24") == {"tables": ["t4"]}


def test_an_empty_namespace(lance: Lance):
    make_namespace("ws")
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": []}


def test_include_declared(lance: Lance):
    make_table("ws", "declared")
    make_table("ws", "live")
    make_version(("ws", "live"), 1)
    path = "/v1/namespace/ws/table/list"
    assert lance.get(path) == {"tables": ["declared", "live"]}
    assert lance.get(f"{path}?include_declared=true") == {"tables": ["declared", "live"]}
    assert lance.get(f"{path}?include_declared=false") == {"tables": ["live"]}
    assert lance.get(f"{path}?include_declared=False&limit=1") == {"tables": ["live"]}
    lance.refused(400, 13, "'include_declared'", f"{path}?include_declared=x", method="GET")


def test_dropped_and_other_formats_are_not_listed(lance: Lance):
    for name in ("a", "b", "c", "d"):
        make_table("ws", name)
    lance.post("/v1/table/ws$a/drop")
    lance.post("/v1/table/ws$b/deregister", {})
    Table.objects.filter(name="c").update(format=TableFormat.ICEBERG)
    assert lance.get("/v1/namespace/ws/table/list") == {"tables": ["d"]}


def test_pages_to_the_end(lance: Lance):
    for number in range(7):
        make_table("ws", f"t{number}")
    path = "/v1/namespace/ws/table/list"
    assert pages(lance, path, 3) == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6"]]
    assert pages(lance, path, 7) == [[f"t{n}" for n in range(7)]]
    assert pages(lance, path, 1) == [[f"t{n}"] for n in range(7)]


def test_paging_is_stable_under_inserts_and_drops(lance: Lance):
    for name in ("b", "d", "f"):
        make_table("ws", name)
    path = "/v1/namespace/ws/table/list?limit=2"
    assert lance.get(path) == {"tables": ["b", "d"], "page_token": "d"}
    make_table("ws", "a")
    make_table("ws", "e")
    lance.post("/v1/table/ws$d/deregister", {})
    assert lance.get(f"{path}&page_token=d") == {"tables": ["e", "f"]}
    assert lance.get(f"{path}&page_token=z") == {"tables": []}


def test_tokens_of_any_name(lance: Lance):
    names = {"a b", "a/b", "ü", "🧊", "x&y=z", "100%", "n" * 200}
    for name in names:
        make_table("ws", name)
    listed = [name for page in pages(lance, "/v1/namespace/ws/table/list", 1) for name in page]
    assert len(listed) == 7
    assert set(listed) == names


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5"])
def test_invalid_limits_are_refused(lance: Lance, limit):
    lance.refused(400, 13, "'limit'", f"/v1/namespace/$/table/list?limit={limit}", method="GET")


def test_a_missing_namespace(lance: Lance):
    path = "/v1/namespace/ws/table/list"
    lance.refused(404, 1, "Namespace 'ws' does not exist", path, method="GET")


def test_only_get(lance: Lance):
    response = lance.refused(405, 0, "use GET", "/v1/namespace/$/table/list")
    assert response["allow"] == "GET"


def test_read_only_key(reader: Lance):
    make_table("ws", "t")
    assert reader.get("/v1/namespace/ws/table/list") == {"tables": ["t"]}
