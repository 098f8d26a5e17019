import pytest

from tests.api.iceberg.client import Iceberg, spell
from tests.factories import make_namespace, make_table

pytestmark = pytest.mark.operation("loadNamespaceMetadata")


def test_the_properties(iceberg: Iceberg):
    make_namespace("a", "b", properties={"owner": "Ana"})
    assert iceberg.get("namespaces/a%1Fb") == {
        "namespace": ["a", "b"],
        "properties": {"owner": "Ana"},
    }
    assert iceberg.get("namespaces/a") == {"namespace": ["a"], "properties": {}}


def test_in_a_warehouse(iceberg: Iceberg):
    make_namespace("prod", "ml", "x", properties={"k": "v"})
    expected = {"namespace": ["x"], "properties": {"k": "v"}}
    assert iceberg.at("prod.ml").get("namespaces/x") == expected
    assert iceberg.get("/v1/prod%1Fml/namespaces/x") == expected


NAMES = [
    ("a b",),
    ("a.b", "c"),
    ("größe", "🧊"),
    ("a/b", "c/d"),
    ("/",),
    ("100%", "%20"),
    ("tables",),
    ("tables", "views"),
    ("namespaces", "namespaces"),
    ("properties",),
    ("properties", "x/namespaces/y"),
    ("tables/x",),
    ("..",),
    ("a",) * 40,
]


@pytest.mark.parametrize("levels", NAMES)
def test_any_name(iceberg: Iceberg, levels):
    make_namespace(*levels)
    assert iceberg.get(f"namespaces/{spell(*levels)}")["namespace"] == list(levels)


@pytest.mark.parametrize("levels", NAMES)
def test_any_warehouse(iceberg: Iceberg, levels):
    make_namespace(*levels, "x")
    warehouse = "%1F".join(spell(level) for level in levels)
    if len(levels) == 1:
        warehouse = spell(*levels)
    prefix = iceberg.get(f"config?warehouse={warehouse}")["overrides"]["prefix"]
    assert iceberg.at(prefix).get("namespaces/x") == {"namespace": ["x"], "properties": {}}


def test_a_plus_may_be_a_space(iceberg: Iceberg):
    """Java spells a space as a plus in a path too."""
    make_namespace("a b")
    assert iceberg.get("namespaces/a+b")["namespace"] == ["a b"]


@pytest.mark.parametrize("path", ["b", "a%1Fb", "b%1Fa", "a/b", "A"])
def test_a_missing_one(iceberg: Iceberg, path):
    make_table("a", "t")
    request = f"GET namespaces/{path}"
    iceberg.refused(404, "NoSuchNamespaceException", "does not exist", request)


def test_a_missing_warehouse(iceberg: Iceberg):
    make_namespace("a")
    iceberg.refused(404, "NoSuchNamespaceException", "'no.a'", "GET /v1/no/namespaces/a")


@pytest.mark.parametrize("path", ["a%1F", "%1Fa", "%1F", "a%00", "a%0Ab", "x" * 256])
def test_names_that_are_none(iceberg: Iceberg, path):
    iceberg.refused(400, "BadRequestException", "name", f"GET namespaces/{path}")


@pytest.mark.parametrize("prefix", ["a..b", "a.", "..", "~00", "x" * 256])
def test_prefixes_that_are_none(iceberg: Iceberg, prefix):
    iceberg.refused(400, "BadRequestException", "name", f"GET /v1/{prefix}/namespaces/a")
