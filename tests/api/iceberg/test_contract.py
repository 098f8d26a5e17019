"""Routes, names and schemas agree with the specification and with the served document."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from drf_spectacular.validation import validate_schema

from tests.api.iceberg.client import Iceberg
from tests.api.iceberg.test_coverage import operations

pytestmark = pytest.mark.xdist_group("documents")  # the document is generated once

NOT_SERVED: set[str] = set()
"""Operations of the specification that this server does not serve."""

OPTIONAL = {"createView": {"properties"}}
"""Fields of requests that the specification requires and this server does not."""

OPERATIONS = sorted(operations())
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


def by_operation(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each operation of an OpenAPI document."""
    return {
        described["operationId"]: (
            method.upper(),
            path,
            {
                **described,
                "parameters": item.get("parameters", []) + described.get("parameters", []),
            },
        )
        for path, item in document["paths"].items()
        for method, described in item.items()
        if method in {"get", "head", "post", "put", "delete", "patch"}
    }


def resolve(document: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        step: Any = document
        for name in node["$ref"].removeprefix("#/").split("/"):
            step = step[name]
        node = step
    return node


def content_of(document: dict[str, Any], node: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The schema of each media type."""
    content = resolve(document, node or {}).get("content", {})
    return {media: resolve(document, described["schema"]) for media, described in content.items()}


def parameters(document: dict[str, Any], described: dict[str, Any]) -> set[tuple[str, str]]:
    parameters_of_operation = [
        resolve(document, parameter) for parameter in described["parameters"]
    ]
    return {(parameter["name"], parameter["in"]) for parameter in parameters_of_operation}


# --- the document at /schema/iceberg ----------------------------------------------------------------


@pytest.fixture(scope="module")
def document(django_db_setup) -> dict[str, Any]:
    response = Iceberg().call("GET", "/schema/iceberg", headers={"accept": "application/json"})
    assert response.status_code == 200
    return response.json()


def test_the_document_is_valid_openapi_3_1(document):
    assert document["openapi"].startswith("3.1")
    validate_schema(document)


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


def test_the_document_has_the_served_operations(document):
    assert sorted(by_operation(document)) == OPERATIONS


def test_the_document_agrees_with_getconfig(document, iceberg: Iceberg):
    endpoints = [f"{method} {path}" for method, path, _ in by_operation(document).values()]
    assert sorted(iceberg.get("config")["endpoints"]) == sorted(endpoints)


def test_the_document_and_its_page_need_no_key(db, settings):
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": plain,
    }  # static files are not collected in tests
    page = Iceberg().call("GET", "/docs/iceberg")
    assert page.status_code == 200
    assert b'src="/docs/iceberg?script="' in page.content
    assert b"/schema/iceberg" in Iceberg().call("GET", "/docs/iceberg?script=").content


@every_operation
def test_every_error_has_the_iceberg_form(document, operation):
    method, _, described = by_operation(document)[operation]
    errors = {status for status in described["responses"] if status[0] in "45"}
    assert errors >= {"400", "401", "5XX"}
    expected = {"error", "error_description"} if operation == "getToken" else {"error"}
    for status in errors:
        forms = content_of(document, described["responses"][status])
        if method == "HEAD":
            assert forms == {}
        else:
            assert set(forms["application/json"]["properties"]) == expected


# --- the specification's file ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def specification() -> dict[str, Any]:
    directory = os.environ.get("MONODON_SPEC_DIR")
    if not directory:
        pytest.skip("MONODON_SPEC_DIR names no directory with iceberg-rest-catalog.yaml")
    return yaml.safe_load((Path(directory) / "iceberg-rest-catalog.yaml").read_text())


def test_every_operation_of_the_specification_is_served(specification):
    served = set(by_operation(specification))
    assert len(served) == 35
    assert served - NOT_SERVED <= set(OPERATIONS)
    assert set(OPERATIONS) <= served
    assert served >= NOT_SERVED


@every_operation
def test_the_specification_and_the_document_agree(specification, document, operation):
    method, path, described = by_operation(document)[operation]
    expected_method, expected_path, expected = by_operation(specification)[operation]
    assert (method, path) == (expected_method, expected_path)

    ours, theirs = parameters(document, described), parameters(specification, expected)
    assert ours <= theirs  # optional properties may be ignored
    needed = {(name, kind) for name, kind in theirs if kind == "path" or name == "Idempotency-Key"}
    assert needed <= ours

    _agree(
        content_of(document, described.get("requestBody")),
        content_of(specification, expected.get("requestBody")),
        optional=OPTIONAL.get(operation, set()),
    )
    responses = {str(status): response for status, response in expected["responses"].items()}
    for status in set(responses) & {"200", "204"}:
        _agree(
            content_of(document, described["responses"][status]),
            content_of(specification, responses[status]),
        )
    # Gateways answer 502 and 504, not this server.
    assert set(responses) - {"304", "502", "504"} <= set(described["responses"]) | {"500", "503"}
    if "304" in described["responses"]:
        assert "304" in responses


def _agree(
    ours: dict[str, Any], theirs: dict[str, Any], *, optional: set[str] | None = None
) -> None:
    """Assert that schemas agree: those of an answer, or with ``optional`` those of a request."""
    assert set(ours) == set(theirs)
    for media, schema in ours.items():
        contract = theirs[media]
        if "properties" not in schema or "properties" not in contract:
            continue  # metadata and values with several forms stay dicts
        assert set(schema["properties"]) <= set(contract["properties"])
        required = set(schema.get("required", []))
        expected = set(contract.get("required", []))
        if optional is None:
            assert required >= expected
        else:
            assert required == expected - optional
