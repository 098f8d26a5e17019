"""OpenAPI documents are generated once per format."""

import pytest
from django.test import Client

import monodon
from api import documents
from api.iceberg.document import IcebergSchemaGenerator
from api.lance.document import LanceSchemaGenerator
from api.lancedb.document import LanceDBSchemaGenerator
from api.management.document import ManagementSchemaGenerator

pytestmark = [pytest.mark.xdist_group("documents"), pytest.mark.django_db]
GENERATORS = {
    "lance": LanceSchemaGenerator,
    "lancedb": LanceDBSchemaGenerator,
    "iceberg": IcebergSchemaGenerator,
    "management": ManagementSchemaGenerator,
}


@pytest.mark.parametrize("protocol", GENERATORS)
def test_a_document_is_generated_once_per_format(protocol, monkeypatch):
    calls = []
    generator = GENERATORS[protocol]
    original = generator.get_schema

    def counted(self, *args, **kwargs):
        calls.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(generator, "get_schema", counted)
    monkeypatch.setattr(documents, "_documents", {})
    client = Client()
    first = client.get(f"/schema/{protocol}")
    assert (first.status_code, first["Content-Type"]) == (200, "application/vnd.oai.openapi")
    for query in ("?version=7", "?lang=de", "?x=1", ""):
        assert client.get(f"/schema/{protocol}{query}").content == first.content
    assert len(calls) == 1
    as_json = client.get(f"/schema/{protocol}", headers={"accept": "application/json"})
    assert as_json.json()["openapi"].startswith("3.1")
    assert as_json.json()["info"]["version"] == monodon.__version__
    assert len(calls) == 2
    unchanged = client.get(f"/schema/{protocol}", headers={"if-none-match": first["ETag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    other = client.get(f"/schema/{protocol}", headers={"if-none-match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)
    assert len(calls) == 2


@pytest.mark.parametrize("protocol", GENERATORS)
def test_web_processes_generate_the_same_document(protocol, monkeypatch):
    """Otherwise the ETag depends on the process that answers."""
    answers = []
    for request_id in ("first-request", "second-request"):
        monkeypatch.setattr(documents, "_documents", {})
        answers.append(Client().get(f"/schema/{protocol}", headers={"x-request-id": request_id}))
        assert request_id.encode() not in answers[-1].content
    assert answers[0].content == answers[1].content
    assert answers[0]["ETag"] == answers[1]["ETag"]


@pytest.mark.parametrize("protocol", GENERATORS)
def test_tags_are_declared_with_descriptions(client, protocol):
    document = client.get(f"/schema/{protocol}", headers={"accept": "application/json"}).json()
    tags = {
        tag
        for operations in document["paths"].values()
        for operation in operations.values()
        for tag in operation["tags"]
    }
    assert {tag["name"] for tag in document["tags"]} == tags
    assert all(tag["description"].endswith(".") for tag in document["tags"])


@pytest.mark.django_db
@pytest.mark.parametrize("protocol", ["lance", "lancedb", "iceberg", "management"])
def test_errors_have_examples_of_their_status(client, protocol):
    document = client.get(f"/schema/{protocol}", headers={"accept": "application/json"}).json()
    examples = document["components"]["examples"]
    for operations in document["paths"].values():
        for operation in operations.values():
            name = operation["operationId"]
            for parameter in operation.get("parameters", ()) if protocol == "management" else ():
                assert parameter.get("description"), (name, parameter["name"])
            for status in ("400", "401", "403", "404", "409", "422", "500", "503", "5XX"):
                for media in operation["responses"].get(status, {}).get("content", {}).values():
                    if media["schema"]["$ref"].endswith("/OAuthError"):
                        assert "examples" not in media
                        continue
                    (reference,) = media["examples"].values()
                    value = examples[reference["$ref"].rpartition("/")[2]]["value"]
                    number = (
                        value["error"]["code"] if protocol == "iceberg" else value.get("status")
                    )
                    assert number is None or f"{number}".startswith(status.rstrip("X"))
