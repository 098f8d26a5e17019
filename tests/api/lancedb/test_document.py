"""The document at /schema/lancedb has the operations that differ from those of the Lance protocol."""

import pytest
from django.test import Client
from drf_spectacular.validation import validate_schema

from tests.api.lancedb.examples import BY_NUMBER, OPERATIONS

pytestmark = pytest.mark.xdist_group("documents")  # the document is generated once


def test_the_document(db):
    document = Client(headers={"accept": "application/json"}).get("/schema/lancedb").json()
    validate_schema(document)
    described = {
        operation["operationId"]: operation
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert set(described) == {*OPERATIONS, *BY_NUMBER} - {"DropTable", "NamespaceExists"}
    for operation in described.values():
        headers = [row["name"] for row in operation["parameters"] if row["in"] == "header"]
        assert "x-lancedb-database" in headers
