import re

import pytest

from tests.api.iceberg.client import Iceberg, own, spell
from tests.cases import shared_cases
from tests.factories import ICEBERG_SCHEMA, make_namespace, make_table

pytestmark = pytest.mark.operation("loadNamespaceMetadata")


def test_the_properties(iceberg: Iceberg):
    make_namespace("a", "b", properties={"owner": "Ana"})
    assert own(iceberg.get("namespaces/a%1Fb")) == {
        "namespace": ["a", "b"],
        "properties": {"owner": "Ana"},
    }
    assert own(iceberg.get("namespaces/a")) == {"namespace": ["a"], "properties": {}}


def test_a_namespace_has_a_location(iceberg: Iceberg, warehouse):
    """Some engines cannot create tables in a namespace without a location."""
    make_namespace("a b", "c")
    answer = iceberg.get("namespaces/a%20b%1Fc")["properties"]["location"]
    assert re.fullmatch(rf"file://{warehouse}/a_b-c-[0-9a-f]{{32}}", answer)
    assert iceberg.get("namespaces/a%20b%1Fc")["properties"] == {"location": answer}


def test_a_location_is_inherited(iceberg: Iceberg, warehouse):
    make_namespace("a", properties={"location": f"file://{warehouse}/there/"})
    make_namespace("a", "b", "c")
    answer = iceberg.get("namespaces/a")["properties"]["location"]
    assert answer == f"file://{warehouse}/there/"  # as its owner spelled it
    inherited = iceberg.get("namespaces/a%1Fb%1Fc")["properties"]["location"]
    assert re.fullmatch(rf"file://{warehouse}/there/a-b-c-[0-9a-f]{{32}}", inherited)
    table = iceberg.post("namespaces/a%1Fb%1Fc/tables", {"name": "t", "schema": ICEBERG_SCHEMA})
    assert re.fullmatch(rf"{inherited}/t-[0-9a-f]{{32}}", table["metadata"]["location"])


def test_tables_are_created_where_engines_put_them(iceberg: Iceberg, warehouse):
    """Trino requests the location, appends the table's name, and stages the table."""
    make_namespace("ns")
    root = iceberg.get("namespaces/ns")["properties"]["location"]
    body = {"name": "t", "schema": ICEBERG_SCHEMA, "location": f"{root}/t-0123456789abcdef"}
    staged = iceberg.post("namespaces/ns/tables", {**body, "stage-create": True})
    assert staged["metadata"]["location"] == body["location"]
    updates = [
        {"action": "assign-uuid", "uuid": staged["metadata"]["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["metadata"]["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "set-location", "location": body["location"]},
    ]
    change = {"requirements": [{"type": "assert-create"}], "updates": updates}
    made = iceberg.post("namespaces/ns/tables/t", change)
    assert made["metadata"]["location"] == body["location"]
    assert made["metadata-location"].startswith(f"{body['location']}/metadata/00000-")


def test_in_a_warehouse(iceberg: Iceberg):
    make_namespace("prod", "ml", "x", properties={"k": "v"})
    expected = {"namespace": ["x"], "properties": {"k": "v"}}
    assert own(iceberg.at("prod.ml").get("namespaces/x")) == expected
    assert own(iceberg.get("/v1/prod%1Fml/namespaces/x")) == expected


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
    answer = own(iceberg.at(prefix).get("namespaces/x"))
    assert answer == {"namespace": ["x"], "properties": {}}


def test_a_plus_may_be_a_space(iceberg: Iceberg):
    """Java encodes a space as a plus in paths too."""
    make_namespace("a b")
    assert iceberg.get("namespaces/a+b")["namespace"] == ["a b"]


@pytest.mark.parametrize("path", ["b", "a%1Fb", "b%1Fa", "a/b", "A"])
def test_a_missing_namespace_is_refused(iceberg: Iceberg, path):
    make_table("a", "t")
    request = f"GET namespaces/{path}"
    iceberg.refused(404, "NoSuchNamespaceException", "does not exist", request)


def test_a_missing_warehouse(iceberg: Iceberg):
    make_namespace("a")
    iceberg.refused(
        404, "NoSuchNamespaceException", "Namespace does not exist: a", "GET /v1/no/namespaces/a"
    )


@shared_cases("path", ["a%1F", "%1Fa", "%1F", "a%00", "a%0Ab", "x" * 256])
def test_invalid_names_are_refused(iceberg: Iceberg, path):
    iceberg.refused(400, "BadRequestException", "name", f"GET namespaces/{path}")


@pytest.mark.parametrize("prefix", ["a..b", "a.", "..", "~00", "x" * 256])
def test_invalid_prefixes_are_refused(iceberg: Iceberg, prefix):
    iceberg.refused(400, "BadRequestException", "name", f"GET /v1/{prefix}/namespaces/a")
