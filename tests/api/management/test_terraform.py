"""The requests of the provider in deploy/terraform are those of the OpenAPI documents.

The provider is declared in resources.json; `make engines` runs it with OpenTofu (tests/engines/terraform).
"""

import json
import re
import string
from collections.abc import Iterator
from typing import Any

import pytest

from monodon import __version__
from server.options import PROJECT
from tests.api.management.client import Management
from tests.api.management.test_contract import resolve

pytestmark = pytest.mark.xdist_group("documents")  # the documents are generated once

DIRECTORY = PROJECT / "deploy" / "terraform"
RESOURCES = json.loads((DIRECTORY / "provider" / "resources.json").read_text(encoding="utf-8"))
JSON_TYPES = {
    "string": {"string"},
    "bool": {"boolean"},
    "int": {"integer"},
    "list(string)": {"array"},
    "set(string)": {"array"},
    "map(string)": {"object"},
    "map(set(string))": {"object"},
    "dynamic": {"object"},
}
CHANGES = ("create", "activate", "update", "delete")


@pytest.fixture(scope="module")
def documents(django_db_setup) -> dict[str, Any]:
    def served(protocol: str) -> Any:
        response = Management().call(
            "GET", f"/schema/{protocol}", headers={"accept": "application/json"}
        )
        return response.json()

    return {"/management/": served("management"), "/v1/": served("iceberg")}


def described(
    documents: dict[str, Any], method: str, template: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The document, the path and the operation that a request of the provider is described by."""
    document = next(served for prefix, served in documents.items() if template.startswith(prefix))
    shape = re.sub(r"\{\w+\}", "{}", template)
    for path, item in document["paths"].items():
        if re.sub(r"\{[\w-]+\}", "{}", path.replace("/{prefix}/", "/")) == shape:
            assert method.lower() in item, f"{method} {template}"
            return document, item, item[method.lower()]
    raise AssertionError(f"{template} is not a path of the document")


def requests(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every request of a resource with its purpose."""
    yield "read", {"method": "GET", **RESOURCES[name]["read"]}
    for purpose in CHANGES:
        if purpose in RESOURCES[name]:
            yield purpose, RESOURCES[name][purpose]


def sources(rule: Any) -> set[str]:
    """The attributes that a field of a body is made from."""
    if isinstance(rule, str):
        return {rule}
    if "object" in rule:
        return {*rule["object"].values(), rule["with"], *rule.get("if_changed", [])}
    return {text for kind, text in rule.items() if kind != "constant"}


def types(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """The JSON types that a schema permits, without null."""
    schema = resolve(document, schema)
    variants = [inner for kind in ("oneOf", "anyOf", "allOf") for inner in schema.get(kind, [])]
    named = schema.get("type", [])
    permitted = {named} if isinstance(named, str) else set(named)
    if not permitted and "enum" in schema:
        permitted = {"string" for value in schema["enum"] if isinstance(value, str)}
    return permitted.union(*(types(document, variant) for variant in variants)) - {"null"}


@pytest.mark.parametrize("name", RESOURCES)
def test_paths_and_parameters(documents, name):
    for purpose, request in requests(name):
        _, item, operation = described(documents, request["method"], request["path"])
        fields = {field for _, field, _, _ in string.Formatter().parse(request["path"]) if field}
        attributes = {*fields, *request.get("query", {}).values()}
        assert attributes <= set(RESOURCES[name]["key"]), purpose
        declared = [*item.get("parameters", []), *operation.get("parameters", [])]
        assert set(request.get("query", {})) <= {
            parameter["name"] for parameter in declared if parameter.get("in") == "query"
        }


@pytest.mark.parametrize("name", RESOURCES)
def test_bodies(documents, name):
    attributes = RESOURCES[name]["attributes"]
    for purpose, request in requests(name):
        document, _, operation = described(documents, request["method"], request["path"])
        body = request.get("body", {})
        assert ("requestBody" in operation) == bool(body), purpose
        if not body:
            continue
        schema = resolve(
            document, operation["requestBody"]["content"]["application/json"]["schema"]
        )
        assert set(schema.get("required", [])) <= set(body) <= set(schema["properties"]), purpose
        for field, rule in body.items():
            assert sources(rule) <= set(attributes), (purpose, field)
            permitted = types(document, schema["properties"][field])
            if isinstance(rule, str):
                assert JSON_TYPES[attributes[rule]["type"]] <= permitted, (purpose, field)
            elif "object" in rule:
                inner = resolve(document, schema["properties"][field])
                variants = [resolve(document, variant) for variant in inner.get("oneOf", [inner])]
                (properties,) = [
                    one_of["properties"] for one_of in variants if "properties" in one_of
                ]
                assert set(rule["object"]) <= set(properties)


@pytest.mark.parametrize("name", RESOURCES)
def test_attributes_are_read_from_answers(documents, name):
    reading, attributes = RESOURCES[name]["read"], RESOURCES[name]["attributes"]
    document, _, operation = described(documents, "GET", reading["path"])
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    schema = resolve(document, answer)
    if "first_of" in reading:
        schema = resolve(document, schema["properties"][reading["first_of"]]["items"])
    conditions = {**reading.get("absent_if", {}), **reading.get("absent_unless", {})}
    assert set(conditions) <= set(schema["properties"])
    for attribute, rule in reading["values"].items():
        field = rule if isinstance(rule, str) else rule.get("field") or next(iter(rule.values()))
        permitted = types(document, schema["properties"][field])
        expected = JSON_TYPES[attributes[attribute]["type"]]
        if isinstance(rule, dict) and "direct_labels" in rule:
            expected = {"array"}
        assert expected <= permitted, attribute


@pytest.mark.parametrize("name", RESOURCES)
def test_changes_of_attributes_reach_the_server_and_are_seen(name):
    """An attribute is part of the key, or is sent by an update and read; else it replaces."""
    resource = RESOURCES[name]
    for attribute, declared in resource["attributes"].items():
        if declared.get("computed") or attribute in {"key_secret", "key_token"}:
            continue
        if attribute in resource["key"] or declared.get("replace"):
            assert declared["required"], attribute
            assert declared["replace"], attribute
            continue
        sent = set().union(*(sources(rule) for rule in resource["update"]["body"].values()))
        assert attribute in sent, attribute
        is_local = attribute in {"key_version", "confirm"}
        assert (attribute in resource["read"]["values"]) != is_local, attribute


def test_secrets_are_not_in_the_state():
    for resource in RESOURCES.values():
        for attribute, declared in resource["attributes"].items():
            if attribute in {"key_secret", "key_token"}:
                assert declared["write_only"]
                assert declared["sensitive"]
            else:
                assert "secret" not in attribute
                assert "write_only" not in declared


def test_the_example_uses_declared_attributes():
    """OpenTofu's `validate` checks this in `make engines`."""
    blocks = [
        block
        for file in sorted(DIRECTORY.rglob("*.tf"))
        for block in re.findall(
            r'^resource "monodon_(\w+)" "\w+" \{\n(.*?)^\}',
            file.read_text(),
            re.DOTALL | re.MULTILINE,
        )
    ]
    assert len(blocks) >= 12
    for name, content in blocks:
        attributes = RESOURCES[name]["attributes"]
        assigned = set(re.findall(r"^  (\w+)\s*=", content, re.MULTILINE)) - {"for_each", "count"}
        required = {attribute for attribute, how in attributes.items() if how.get("required")}
        assert required <= assigned <= set(attributes), name


def test_versions_agree():
    program = (DIRECTORY / "provider" / "main.go").read_text(encoding="utf-8")
    assert f'const version = "{__version__}"' in program
    example = (DIRECTORY / "example" / "main.tf").read_text(encoding="utf-8")
    assert re.search(rf'version = "{re.escape(__version__)}"', example)


def test_the_page_lists_every_resource():
    text = (PROJECT / "docs" / "terraform.md").read_text(encoding="utf-8")
    for name in RESOURCES:
        assert f"`monodon_{name}`" in text, name
