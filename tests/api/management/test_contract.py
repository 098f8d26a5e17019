"""Our own document, against what is served."""

from typing import Any

import pytest
from drf_spectacular.validation import validate_schema

from api.management import urls
from tests.api.management.client import Management
from tests.api.management.examples import EXAMPLES, make_catalog, spell
from tests.api.management.test_coverage import operations


@pytest.fixture(scope="module")
def document(django_db_setup) -> dict[str, Any]:
    response = Management().call(
        "GET", "/schema/management", headers={"accept": "application/json"}
    )
    assert response.status_code == 200
    return response.json()


def resolve(document: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in part:
        step: Any = document
        for name in part["$ref"].removeprefix("#/").split("/"):
            step = step[name]
        part = step
    return part


def by_operation(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        described["operationId"]: described
        for item in document["paths"].values()
        for described in item.values()
    }


def test_the_document_is_valid_openapi_3_1(document):
    assert document["openapi"].startswith("3.1")
    validate_schema(document)


def test_the_document_has_what_is_served(document):
    assert set(by_operation(document)) == set(operations())
    assert set(document["paths"]) == {f"/management/v1/{path}" for path in urls.ROUTES}


def test_every_reference_leads_somewhere(document):
    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                resolve(document, part)
            for inner in part.values():
                walk(inner)
        elif isinstance(part, list):
            for inner in part:
                walk(inner)

    walk(document)


@pytest.mark.parametrize("operation", sorted(operations()))
def test_answers_have_the_properties_that_the_document_tells(
    document, management: Management, operation
):
    known = make_catalog()
    example = EXAMPLES[operation]
    described = by_operation(document)[operation]
    response = management.call(example.method, spell(example.path, known), example.body)
    answer = described["responses"][str(response.status_code)]
    if operations()[operation].media:
        assert response["content-type"] in answer["content"]
    elif response.status_code != 204:
        schema = resolve(document, answer["content"]["application/json"]["schema"])
        assert set(schema["properties"]) == set(schema["required"]) == set(response.json())
    view = operations()[operation]
    named = {one["name"] for one in described["parameters"] if one["in"] == "query"}
    assert set(view.query) <= named <= {*view.query, "delimiter"}
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


def test_the_document_needs_no_key_and_has_a_page(db, settings):
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}  # nothing is collected here
    page = Management().call("GET", "/docs/management")
    assert page.status_code == 200
    assert b'src="/docs/management?script="' in page.content
    assert b"/schema/management" in Management().call("GET", "/docs/management?script=").content
