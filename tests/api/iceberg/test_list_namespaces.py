from urllib.parse import quote

import pytest

from catalog.access import SYSTEM
from catalog.services.engine.commit import commit
from catalog.services.tables import namespace_operations
from tests.api.iceberg.client import Iceberg, spell
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table

pytestmark = pytest.mark.operation("listNamespaces")


def listed(*namespaces: list[str]) -> dict:
    return {"namespaces": list(namespaces), "next-page-token": None}


def pages(iceberg: Iceberg, query: str) -> list[list[str]]:
    items, token = [], ""
    while token is not None:
        page = iceberg.get(f"namespaces?pageToken={token}&{query}")
        items.append([namespace[-1] for namespace in page["namespaces"]])
        token = page["next-page-token"]
    return items


def test_lists_children_only(iceberg: Iceberg):
    make_namespace("a", "x", "deep")
    make_namespace("b")
    make_table("a", "table")
    assert iceberg.get("namespaces") == listed(["a"], ["b"])
    assert iceberg.get("namespaces?parent=") == listed(["a"], ["b"])
    assert iceberg.get("namespaces?parent=a") == listed(["a", "x"])
    assert iceberg.get("namespaces?parent=a%1Fx") == listed(["a", "x", "deep"])
    assert iceberg.get("namespaces?parent=a%1Fx%1Fdeep") == listed()


def test_of_a_warehouse(iceberg: Iceberg):
    make_namespace("prod", "ml", "x", "deep")
    make_namespace("prod", "ml", "y")
    ml = iceberg.at("prod.ml")
    assert ml.get("namespaces") == listed(["x"], ["y"])
    assert ml.get("namespaces?parent=x") == listed(["x", "deep"])


def test_all_namespaces_are_listed_without_paging(iceberg: Iceberg, monkeypatch):
    monkeypatch.setattr("api.iceberg.operation.MAX_PAGE", 2)
    for number in range(5):
        make_namespace(f"n{number}")
    assert iceberg.get("namespaces") == listed(*([f"n{n}"] for n in range(5)))
    assert pages(iceberg, "") == [["n0", "n1"], ["n2", "n3"], ["n4"]]
    assert pages(iceberg, "pageSize=99") == [["n0", "n1"], ["n2", "n3"], ["n4"]]


def test_pages_to_the_end(iceberg: Iceberg):
    for number in range(7):
        make_namespace("ws", f"n{number}")
    names = [f"n{number}" for number in range(7)]
    assert pages(iceberg, "parent=ws&pageSize=3") == [names[:3], names[3:6], names[6:]]
    assert pages(iceberg, "parent=ws&pageSize=7") == [names]
    assert pages(iceberg, "parent=ws&pageSize=1") == [[name] for name in names]


def test_paging_is_stable_under_inserts_and_drops(iceberg: Iceberg):
    for name in ("b", "d", "f"):
        make_namespace(name)
    first = iceberg.get("namespaces?pageSize=2")
    assert first["namespaces"] == [["b"], ["d"]]
    make_namespace("a")  # before the page: not seen again
    make_namespace("e")
    commit(
        [namespace_operations.DropNamespace(namespace=("d",))], actor=SYSTEM
    )  # the token's own name
    token = first["next-page-token"]
    assert iceberg.get(f"namespaces?pageSize=2&pageToken={token}") == listed(["e"], ["f"])


def test_tokens_of_any_name(iceberg: Iceberg):
    names = {"a b", "a/b", "ü", "🧊", "x&y=z", "100%"}
    for name in names:
        make_namespace(name)
    listed = [name for page in pages(iceberg, "pageSize=1") for name in page]
    assert len(listed) == 6
    assert set(listed) == names


@pytest.mark.parametrize("parent", [("a b", "c/d"), ("größe", "🧊.x"), ("100%", "%20"), ("a+b",)])
def test_parents_of_any_name(iceberg: Iceberg, parent):
    make_namespace(*parent, "child")
    path = spell(*parent)
    assert iceberg.get(f"namespaces?parent={path}") == listed([*parent, "child"])


def test_doubly_quoted_parents_are_accepted(iceberg: Iceberg):
    """PyIceberg quotes each level and then the whole. Java up to 1.8 also quotes the separator."""
    make_namespace("a b", "c/d", "child")
    for text in ("a%20b\x1fc%2Fd", "a%20b%1Fc%2Fd", "a+b%1fc%2Fd"):
        answer = iceberg.get(f"namespaces?parent={quote(text, safe='')}")
        assert answer == listed(["a b", "c/d", "child"]), text
    make_namespace("a%20b", "literal")
    assert iceberg.get("namespaces?parent=a%2520b") == listed(["a%20b", "literal"])


def test_names_are_returned_unchanged(iceberg: Iceberg):
    """Java encodes a space as a plus."""
    make_namespace("a b", "x")
    assert iceberg.get("namespaces?parent=a%2Bb") == listed(["a b", "x"])


@shared_cases("size", ["0", "-1", "x", "1.5", "9" * 30, "²"])
def test_invalid_page_sizes_are_refused(iceberg: Iceberg, size):
    request = f"GET namespaces?pageSize={size}"
    iceberg.refused(400, "BadRequestException", "'pageSize'", request)


@shared_cases("token", ["%00", "é", "a", "_w", "a b", "YQ%3D%3D%3D%3D"])
def test_invalid_tokens_are_refused(iceberg: Iceberg, token):
    make_namespace("a")
    request = f"GET namespaces?pageToken={token}"
    iceberg.refused(400, "BadRequestException", "'pageToken'", request)


def test_a_missing_parent(iceberg: Iceberg):
    make_namespace("a")
    for parent in ("b", "a%1Fb", "b%1Fa"):
        request = f"GET namespaces?parent={parent}"
        iceberg.refused(404, "NoSuchNamespaceException", "does not exist", request)
    for path, words in (
        ("/v1/nothing/namespaces", "Warehouse does not exist: nothing"),
        ("/v1/nothing/namespaces?parent=a", "Namespace does not exist: a"),
    ):
        iceberg.refused(404, "NoSuchNamespaceException", words, f"GET {path}")


@pytest.mark.parametrize("parent", ["a%1F", "%1Fa", "%1F", "a%00b", "x" * 256])
def test_invalid_parents_are_refused(iceberg: Iceberg, parent):
    iceberg.refused(400, "BadRequestException", "name", f"GET namespaces?parent={parent}")
