"""Routes, names and schemas agree with the published client, the specification and the served
document."""

import inspect
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from drf_spectacular.validation import validate_schema
from lance_namespace_urllib3_client import ApiClient, Configuration, models
from lance_namespace_urllib3_client.api.materialized_view_api import MaterializedViewApi
from lance_namespace_urllib3_client.api.namespace_api import NamespaceApi
from lance_namespace_urllib3_client.api.table_api import TableApi
from lance_namespace_urllib3_client.api.transaction_api import TransactionApi
from lance_namespace_urllib3_client.exceptions import ApiException

from catalog.access import SYSTEM
from catalog.services.access import api_keys
from tests.api.client import Lance
from tests.api.lance.test_coverage import operations

pytestmark = pytest.mark.xdist_group("documents")  # the document is generated once

OPERATIONS = sorted(operations())
every_operation = pytest.mark.parametrize("operation", OPERATIONS)


# --- the document at /schema/lance ----------------------------------------------------------------


@pytest.fixture(scope="module")
def document(django_db_setup) -> dict[str, Any]:
    response = Lance().call("GET", "/schema/lance", headers={"accept": "application/json"})
    assert response.status_code == 200
    return response.json()


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
        if method in {"get", "post", "put", "delete", "patch"}
    }


def resolve(document: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        step: Any = document
        for name in node["$ref"].removeprefix("#/").split("/"):
            step = step[name]
        node = step
    return node


def json_schema(document: dict[str, Any], node: dict[str, Any] | None) -> dict[str, Any] | None:
    content = resolve(document, node or {}).get("content", {}).get("application/json")
    return resolve(document, content["schema"]) if content else None


def success(described: dict[str, Any]) -> dict[str, Any]:
    """The successful answer of an operation."""
    (answer,) = (
        answer for status, answer in described["responses"].items() if str(status)[0] == "2"
    )
    return answer


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


def test_the_document_has_exactly_the_served_operations(document):
    assert sorted(by_operation(document)) == OPERATIONS


def test_the_document_and_its_page_need_no_key(db, settings):
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": plain,
    }  # static files are not collected in tests
    page = Lance().call("GET", "/docs")
    assert page.status_code == 200
    assert b'src="/docs?script="' in page.content
    assert b"/schema/lance" in Lance().call("GET", "/docs?script=").content


# --- the published client -------------------------------------------------------------------------


def published(operation: str) -> tuple[type, str]:
    """The client's class and method of an operation."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
    for api in (NamespaceApi, TableApi, TransactionApi, MaterializedViewApi):
        if hasattr(api, name):
            return api, name
    raise AssertionError(f"the published client has no {name}")


def request_of(operation: str) -> dict[str, Any]:
    """The client's HTTP request for an operation, with every parameter given."""
    api, name = published(operation)
    sent: dict[str, Any] = {}

    class Capture:
        def param_serialize(self, **parts: Any) -> None:
            sent.update(parts)

        def select_header_accept(self, accepts: list[str]) -> str:
            return accepts[0]

        select_header_content_type = select_header_accept

    serialize = getattr(api(Capture()), f"_{name}_serialize")
    arguments = {
        # A text would be interpreted as the name of a file with Arrow data.
        parameter: None if parameter.startswith("_") else b"x" if parameter == "body" else "x"
        for parameter in inspect.signature(serialize).parameters
    }
    serialize(**arguments)
    return sent


WITH_KEY = {
    "CreateTable",
    "InsertIntoTable",
    "MergeInsertIntoTable",
    "UpdateTable",
    "DeleteFromTable",
}
"""Writes of rows, which accept a key in addition to the specification."""


@every_operation
def test_the_client_calls_the_served_routes(document, operation):
    wire = request_of(operation)
    method, path, described = by_operation(document)[operation]
    assert (method, path) == (wire["method"], wire["resource_path"])
    parameters = {(p["name"], p["in"]) for p in described["parameters"]}
    headers = {("Idempotency-Key", "header")} if operation in WITH_KEY else set()
    assert parameters == headers | {(name, "path") for name in wire["path_params"]} | {
        (name, "query") for name, _ in wire["query_params"]
    }
    assert ("requestBody" in described) == (wire["body"] is not None)


@every_operation
def test_schemas_have_the_properties_of_the_models(document, operation):
    view = operations()[operation]
    _, _, described = by_operation(document)[operation]
    for described_part, model in (
        (described.get("requestBody"), view.request_model if view.documents_body else None),
        (success(described), view.response_model),
    ):
        schema = json_schema(document, described_part)
        if model is None:
            assert "properties" not in (schema or {})
        else:
            assert set(schema["properties"]) == {
                field.alias or name for name, field in model.model_fields.items()
            }
            assert model is getattr(models, model.__name__)


@every_operation
def test_every_error_has_the_lance_form(document, operation):
    _, _, described = by_operation(document)[operation]
    errors = {status for status in described["responses"] if status[0] != "2"}
    assert errors >= {"400", "401", "403", "404", "503", "5XX"}
    for status in errors:
        schema = json_schema(document, described["responses"][status])
        assert set(schema["properties"]) >= {"error", "code", "detail", "instance"}


class Transport:
    """Sends the published client's requests through Django's test client."""

    def __init__(self, key: str) -> None:
        self.lance = Lance(key)

    def request(self, method, url, headers=None, body=None, post_params=None, **_: Any) -> Any:
        headers = {k: v for k, v in (headers or {}).items() if k.lower() != "content-type"}
        raw = b"" if body is None else json.dumps(body).encode()
        response = self.lance.call(
            method, url.removeprefix("http://monodon"), raw=raw, headers=headers
        )
        return SimpleNamespace(
            status=response.status_code,
            reason="",
            data=response.content,
            read=lambda: response.content,
            getheaders=lambda: dict(response.items()),
            getheader=lambda name, default=None: response.get(name, default),
            headers=dict(response.items()),
        )


@pytest.fixture
def client(db) -> ApiClient:
    _, key = api_keys.create_api_key(actor=SYSTEM, name="published")
    client = ApiClient(Configuration(host="http://monodon"))
    client.rest_client = Transport(key)
    return client


def test_a_table_life_cycle_through_the_published_client(client: ApiClient, warehouse: Path):
    namespaces, tables, transactions = (
        api(client) for api in (NamespaceApi, TableApi, TransactionApi)
    )
    namespaces.create_namespace("a b", models.CreateNamespaceRequest(id=["a b"], mode="Create"))
    assert namespaces.list_namespaces("$").namespaces == ["a b"]
    assert namespaces.describe_namespace("a b", models.DescribeNamespaceRequest()).properties == {}
    namespaces.namespace_exists("a b", models.NamespaceExistsRequest())

    name = ["a b", "größe/1"]
    table = "$".join(name)
    declared = tables.declare_table(table, models.DeclareTableRequest(id=name), delimiter="$")
    assert declared.managed_versioning is True
    described = tables.describe_table(
        table, models.DescribeTableRequest(id=name), with_table_uri=True, check_declared=True
    )
    assert (described.location, described.is_only_declared) == (declared.location, True)
    assert described.table_uri.startswith("file:///")
    tables.table_exists(table, models.TableExistsRequest(id=name))
    assert tables.list_tables("a b").tables == ["größe/1"]
    assert tables.list_all_tables(limit=10).tables == [table]

    create = models.CreateTableVersionRequest(
        id=name, version=1, manifest_path="x/1", manifest_size=5, e_tag="e", metadata={"k": "v"}
    )
    created = tables.create_table_version(table, create)
    assert (created.version.version, created.version.metadata) == (1, {"k": "v"})
    description = tables.describe_table_version(
        table, models.DescribeTableVersionRequest(version=1)
    )
    assert description.version == created.version
    entry = models.CreateTableVersionEntry(id=name, version=2, manifest_path="x/2")
    batch = models.BatchCreateTableVersionsRequest(entries=[entry])
    assert tables.batch_create_table_versions(batch).versions[0].version == 2
    everything = models.BatchCommitTablesRequest(
        operations=[
            models.CommitTableOperation(declare_table=models.DeclareTableRequest(id=["b"])),
            models.CommitTableOperation(
                create_table_version=models.CreateTableVersionRequest(
                    id=["b"], version=1, manifest_path="x/1"
                )
            ),
            models.CommitTableOperation(
                delete_table_versions=models.BatchDeleteTableVersionsRequest(
                    id=name, ranges=[models.VersionRange(start_version=1, end_version=2)]
                )
            ),
            models.CommitTableOperation(deregister_table=models.DeregisterTableRequest(id=["b"])),
        ]
    )
    answer = tables.batch_commit_tables(everything)
    assert answer.results[2].delete_table_versions.deleted_count == 1
    assert answer.results[3].deregister_table.id == ["b"]
    listed = tables.list_table_versions(table, descending=True, limit=10)
    assert [version.version for version in listed.versions] == [2]
    ranges = models.BatchDeleteTableVersionsRequest(
        ranges=[models.VersionRange(start_version=0, end_version=2)]
    )
    assert tables.batch_delete_table_versions(table, ranges).deleted_count == 0

    status = transactions.describe_transaction(
        answer.transaction_id, models.DescribeTransactionRequest()
    )
    assert status.status == "Succeeded"
    put = models.AlterTransactionAction(
        setPropertyAction=models.AlterTransactionSetProperty(key="k", value="v", mode="Fail")
    )
    altered = transactions.alter_transaction(
        answer.transaction_id, models.AlterTransactionRequest(actions=[put])
    )
    assert altered.properties["k"] == "v"

    tables.rename_table(table, models.RenameTableRequest(new_table_name="c", new_namespace_id=[]))
    assert tables.deregister_table("c", models.DeregisterTableRequest()).id == ["c"]
    registered = tables.register_table(
        "d", models.RegisterTableRequest(location=declared.location, mode="Create")
    )
    assert registered.location == declared.location
    assert tables.drop_table("d").id == ["d"]
    namespaces.drop_namespace("a b", models.DropNamespaceRequest(behavior="Cascade"))
    with pytest.raises(ApiException) as refused:
        namespaces.namespace_exists("a b", models.NamespaceExistsRequest())
    assert refused.value.status == 404
    assert models.ErrorResponse.from_json(refused.value.body).code == 1


# --- the specification's file ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def specification() -> dict[str, Any]:
    directory = os.environ.get("MONODON_SPEC_DIR")
    if not directory:
        pytest.skip("MONODON_SPEC_DIR names no directory with lance-namespace.yaml")
    return yaml.safe_load((Path(directory) / "lance-namespace.yaml").read_text())


def test_the_specification_has_the_served_operations(specification):
    assert set(OPERATIONS) <= set(by_operation(specification))


@every_operation
def test_the_specification_and_the_document_agree(specification, document, operation):
    method, path, described = by_operation(document)[operation]
    expected_method, expected_path, expected = by_operation(specification)[operation]
    assert (method, path) == (expected_method, expected_path)
    expected_parameters = [
        resolve(specification, parameter) for parameter in expected["parameters"]
    ]
    headers = {("Idempotency-Key", "header")} if operation in WITH_KEY else set()
    assert {(p["name"], p["in"]) for p in described["parameters"]} == headers | {
        (p["name"], p["in"]) for p in expected_parameters
    }
    for ours, theirs in (
        (described.get("requestBody"), expected.get("requestBody")),
        (success(described), resolve(specification, success(expected))),
    ):
        schema, contract = json_schema(document, ours), json_schema(specification, theirs)
        assert (schema is None) == (contract is None)
        if schema and contract:
            assert schema.get("type") == contract.get("type", "object")
            # The client may be ahead of the specification, as with minimum_nprobes.
            assert set(schema.get("properties", ())) >= set(contract.get("properties", ()))
            assert set(schema.get("required", [])) == set(contract.get("required", []))
    answers = {str(status) for status in expected["responses"]}
    assert answers <= set(described["responses"])
