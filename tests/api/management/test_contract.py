"""The OpenAPI document of the management API agrees with its routes and answers."""

from typing import Any

import pytest
from drf_spectacular.validation import validate_schema

from tests.api.management.client import Management
from tests.api.management.examples import EXAMPLES, make_catalog, spell
from tests.api.management.test_coverage import operations

pytestmark = pytest.mark.xdist_group("documents")  # the documents are generated once


@pytest.fixture(scope="module")
def document(django_db_setup) -> dict[str, Any]:
    response = Management().call(
        "GET", "/schema/management", headers={"accept": "application/json"}
    )
    assert response.status_code == 200
    return response.json()


"""Operations whose bodies are governance files (docs/governance-files.md)."""


def resolve(document: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        step: Any = document
        for name in node["$ref"].removeprefix("#/").split("/"):
            step = step[name]
        node = step
    return node


def by_operation(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        described["operationId"]: described
        for item in document["paths"].values()
        for described in item.values()
    }


def test_the_document_is_valid_openapi_3_1(document):
    assert document["openapi"].startswith("3.1")
    validate_schema(document)


def test_the_document_has_the_served_operations(document):
    assert set(by_operation(document)) == set(operations())
    paths = {f"/management/v1/{served.path}" for served in operations().values()}
    assert set(document["paths"]) == paths
    for name, described in by_operation(document).items():
        assert ("requestBody" in described) == (EXAMPLES[name].body is not None), name


def test_every_operation_has_a_summary_a_description_and_a_tag(document):
    assert document["servers"] == [{"url": "/", "description": "This server"}]
    assert document["info"]["description"]
    for name, described in by_operation(document).items():
        assert 5 < len(described["summary"]) < 100, name
        assert described["description"].startswith(described["summary"]), name
        assert len(described["tags"]) == 1, name
        for parameter in described.get("parameters", []):
            assert parameter["in"] == "query" or parameter["description"], name


def test_every_body_has_an_example(document):
    """Bodies of requests, and bodies of responses that are objects."""
    for name, described in by_operation(document).items():
        if "requestBody" in described:
            (content,) = described["requestBody"]["content"].values()
            assert "example" in content or content["examples"], name


def test_every_reference_resolves(document):
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                resolve(document, node)
            for inner in node.values():
                walk(inner)
        elif isinstance(node, list):
            for inner in node:
                walk(inner)

    walk(document)


@pytest.mark.parametrize("operation", sorted(operations()))
def test_answers_have_the_documented_properties(document, management: Management, operation):
    substitutes = make_catalog()
    example = EXAMPLES[operation]
    described = by_operation(document)[operation]
    response = management.call(example.method, spell(example.path, substitutes), example.body)
    answer = described["responses"][str(response.status_code)]
    if response.streaming:
        assert response["content-type"] in answer["content"]
    elif response.status_code != 204:
        schema = resolve(document, answer["content"]["application/json"]["schema"])
        assert set(schema["properties"]) == set(schema["required"]) == set(response.json())
    query = operations()[operation].query
    parameters = described.get("parameters", [])
    named = {parameter["name"] for parameter in parameters if parameter["in"] == "query"}
    assert query <= named <= {*query, "delimiter", "limit", "page_token"}
    if response.get("content-type") == "application/json":
        assert ("page_token" in named) == ("next_page_token" in response.json())
    for status in ("400", "401", "403", "404", "409", "503", "5XX"):
        content = described["responses"][status]["content"]
        problem = resolve(document, content["application/problem+json"]["schema"])
        assert set(problem["properties"]) == {
            "type",
            "title",
            "status",
            "detail",
            "instance",
            "request_id",
        }


def test_the_document_and_its_page_need_no_key(db, settings):
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": plain,
    }  # static files are not collected in tests
    page = Management().call("GET", "/docs/management")
    assert page.status_code == 200
    assert b'src="/docs/management?script="' in page.content
    assert b"/schema/management" in Management().call("GET", "/docs/management?script=").content


def test_examples_of_responses_have_all_properties(document):
    checked = 0
    for name, described in by_operation(document).items():
        for status, response in described["responses"].items():
            for content in response.get("content", {}).values():
                schema = resolve(document, content["schema"])
                if not status.startswith("2") or "properties" not in schema:
                    continue
                assert "examples" in content, name
                (example,) = content["examples"].values()
                assert set(example["value"]) == set(schema["properties"]), name
                checked += 1
    assert checked > 60


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"name": 5, "kind": "service"}, "name: Not a valid string."),
        ({"name": "a", "kind": "robot"}, "kind: Use "),
        ({"name": "a", "kind": "service", "level": None}, "level: This field may not be null."),
        ({"name": "a", "kind": "service", "admin": True}, "admin: Unknown field."),
        ({"name": True, "kind": "service"}, "name: Not a valid string."),
    ],
)
def test_values_of_another_type_are_refused(management: Management, body, text):
    management.refused(400, "invalid-input", text, "POST principals", body)


@pytest.mark.parametrize("seconds", ["60", 60.0, 60.5, True, [60]])
def test_text_in_a_number_field_is_refused(management: Management, seconds):
    make_catalog()
    request = "POST keys/known/rotate"
    text = "overlap_seconds: A valid integer is required."
    management.refused(400, "invalid-input", text, request, {"overlap_seconds": seconds})


def test_errors_name_fields_of_nested_objects(management: Management):
    make_catalog()
    request, column = "PATCH tables/ws$t/annotations", {"sensitivity": "high"}
    for body, text in (
        ({"columns": {"id": column}}, "columns.id.sensitivity: Use public, internal"),
        ({"columns": {"id": {"sense": 1}}}, "columns.id.sense: Unknown field."),
        ({"links": [{"title": "a", "url": "https://b"}, {}]}, "links.1.title: This field is"),
        ({"labels": {"known": ["a", 1]}}, "labels.known.1: Not a valid string."),
    ):
        management.refused(400, "invalid-input", text, request, body)
