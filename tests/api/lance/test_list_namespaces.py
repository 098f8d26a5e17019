import pytest

from catalog.access import SYSTEM
from catalog.services.engine.commit import commit
from catalog.services.tables import namespace_operations
from tests.api.client import Lance, spell
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table

pytestmark = pytest.mark.operation("ListNamespaces")


def pages(lance: Lance, path: str, limit: int) -> list[list[str]]:
    items, token = [], None
    while True:
        query = f"?limit={limit}" + (f"&page_token={spell(token)}" if token else "")
        page = lance.get(path + query)
        items.append(page["namespaces"])
        token = page.get("page_token")
        if token is None:
            return items


def test_lists_children_only(lance: Lance):
    make_namespace("a", "x", "deep")
    make_namespace("b")
    make_table("a", "table")
    assert lance.get("/v1/namespace/%24/list") == {"namespaces": ["a", "b"]}
    assert lance.get("/v1/namespace/a/list") == {"namespaces": ["x"]}
    assert lance.get("/v1/namespace/a$x/list") == {"namespaces": ["deep"]}
    assert lance.get("/v1/namespace/a$x$deep/list") == {"namespaces": []}


def test_trailing_slash(lance: Lance):
    make_namespace("a")
    assert lance.get("/v1/namespace/$/list/?delimiter=%24") == {"namespaces": ["a"]}


def test_pages_to_the_end(lance: Lance):
    for number in range(7):
        make_namespace("ws", f"n{number}")
    assert pages(lance, "/v1/namespace/ws/list", 3) == [
        ["n0", "n1", "n2"],
        ["n3", "n4", "n5"],
        ["n6"],
    ]
    assert pages(lance, "/v1/namespace/ws/list", 7) == [[f"n{n}" for n in range(7)]]
    assert pages(lance, "/v1/namespace/ws/list", 1) == [[f"n{n}"] for n in range(7)]


def test_paging_is_stable_under_inserts_and_drops(lance: Lance):
    for name in ("b", "d", "f"):
        make_namespace(name)
    first = lance.get("/v1/namespace/$/list?limit=2")
    assert first == {"namespaces": ["b", "d"], "page_token": "d"}
    make_namespace("a")  # before the page: not seen again
    make_namespace("e")
    commit(
        [namespace_operations.DropNamespace(namespace=("d",))], actor=SYSTEM
    )  # the token's own name
    assert lance.get("/v1/namespace/$/list?limit=2&page_token=d") == {"namespaces": ["e", "f"]}


def test_tokens_of_any_name(lance: Lance):
    names = {"a b", "a/b", "ü", "🧊", "x&y=z", "100%"}
    for name in names:
        make_namespace(name)
    listed = [name for page in pages(lance, "/v1/namespace/$/list", 1) for name in page]
    assert len(listed) == 6
    assert set(listed) == names


@shared_cases("limit", ["0", "-1", "x", "1.5", "9" * 30, "²"])
def test_invalid_limits_are_refused(lance: Lance, limit):
    lance.refused(400, 13, "'limit'", f"/v1/namespace/$/list?limit={limit}", method="GET")


def test_an_empty_limit_is_none(lance: Lance):
    assert lance.get("/v1/namespace/$/list?limit=&page_token=") == {"namespaces": []}


def test_a_huge_limit_is_reduced(lance: Lance):
    make_namespace("a")
    assert lance.get("/v1/namespace/$/list?limit=999999999") == {"namespaces": ["a"]}


def test_token_with_nul(lance: Lance):
    lance.refused(400, 13, "cannot be stored", "/v1/namespace/$/list?page_token=%00", method="GET")


def test_a_missing_namespace(lance: Lance):
    lance.refused(404, 1, "Namespace 'ws' does not exist", "/v1/namespace/ws/list", method="GET")


@pytest.mark.parametrize("delimiter", [".", "::", "/", "🧊", "--"])
def test_delimiters(lance: Lance, delimiter):
    make_namespace("a b", "c", "d")
    path = spell("a b", "c", delimiter=delimiter)
    answer = lance.get(f"/v1/namespace/{path}/list?delimiter={spell(delimiter)}")
    assert answer == {"namespaces": ["d"]}
    root = lance.get(f"/v1/namespace/{spell(delimiter)}/list?delimiter={spell(delimiter)}")
    assert root == {"namespaces": ["a b"]}


def test_an_empty_delimiter(lance: Lance):
    lance.refused(400, 13, "delimiter", "/v1/namespace/a/list?delimiter=", method="GET")


def test_only_get(lance: Lance):
    response = lance.refused(405, 0, "POST is not allowed", "/v1/namespace/$/list")
    assert response["allow"] == "GET"
