"""Summaries, descriptions, tags and examples in the OpenAPI documents of both protocols."""

import re
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator

from api.iceberg.document import IcebergSchemaGenerator
from api.lance.document import LanceSchemaGenerator
from api.lancedb.document import LanceDBSchemaGenerator
from api.openapi import ProtocolSchemaGenerator, examples_of

GENERATORS = {
    "lance": LanceSchemaGenerator,
    "lancedb": LanceDBSchemaGenerator,
    "iceberg": IcebergSchemaGenerator,
}
pytestmark = [pytest.mark.xdist_group("documents"), pytest.mark.parametrize("protocol", GENERATORS)]


@pytest.fixture(scope="module")
def documents(django_db_setup) -> dict[str, Any]:
    client = Client(headers={"accept": "application/json"})
    return {protocol: client.get(f"/schema/{protocol}").json() for protocol in GENERATORS}


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def routed(protocol: str) -> list[Any]:
    generator: ProtocolSchemaGenerator = GENERATORS[protocol]()
    return [operation for _, operation in generator.routes()]


def test_every_operation_has_a_summary_and_a_description(documents, protocol):
    for operation in operations(documents[protocol]):
        name, summary = operation["operationId"], operation["summary"]
        assert re.fullmatch(r"[A-Z][^\n]{8,90}[^.\s]", summary), name
        assert len(operation["description"]) > 20, name
        assert operation["description"] != summary, name


def test_no_two_operations_have_the_same_summary(documents, protocol):
    summaries = [operation["summary"] for operation in operations(documents[protocol])]
    assert len(summaries) == len(set(summaries))


def test_texts_are_the_docstrings_of_the_views(documents, protocol):
    described = {
        operation["operationId"].lower(): operation for operation in operations(documents[protocol])
    }
    for view in routed(protocol):
        text = " ".join(view.__doc__.split())
        operation = described[view.__name__.lower()]
        both = f"{operation['summary']}. {operation['description']}"
        assert " ".join(both.split()) == text, view.__name__


def test_every_tag_is_declared_and_used(documents, protocol):
    declared = {tag["name"]: tag["description"] for tag in documents[protocol]["tags"]}
    used = [operation["tags"] for operation in operations(documents[protocol])]
    assert {name for tags in used for name in tags} == set(declared)
    assert all(len(tags) == 1 for tags in used)
    assert all(re.fullmatch(r"[A-Z].{15,}\.", text) for text in declared.values()), declared


def test_every_parameter_is_described(documents, protocol):
    for operation in operations(documents[protocol]):
        for parameter in operation["parameters"]:
            assert parameter.get("description"), (operation["operationId"], parameter["name"])


def test_there_is_a_server_and_every_scheme_is_declared(documents, protocol):
    document = documents[protocol]
    assert document["servers"] == [{"url": "/", "description": "This server"}]
    schemes = document["components"]["securitySchemes"]
    assert all(scheme["description"] for scheme in schemes.values())
    used = {
        name
        for operation in operations(document)
        for names in operation["security"]
        for name in names
    }
    assert used == set(schemes)


def test_every_message_has_an_example_that_matches_its_schema(documents, protocol):
    document = documents[protocol]
    in_document, missing = set(), []
    for operation in operations(document):
        messages = {"request": operation.get("requestBody", {})}
        messages["answer"] = next(
            response for status, response in operation["responses"].items() if status[0] == "2"
        )
        for kind, message in messages.items():
            for media, content in message.get("content", {}).items():
                if "json" in media and "example" not in content:
                    missing.append((operation["operationId"], kind))
                if "example" in content:
                    in_document.add((operation["operationId"].lower(), kind))
                    schema = {**content["schema"], "components": document["components"]}
                    Draft202012Validator(schema).validate(content["example"])
    examples = examples_of(GENERATORS[protocol].__module__)
    assert in_document == {
        (name.lower(), kind) for name, kinds in examples.items() for kind in kinds
    }
    assert missing == []
