"""The OpenAPI document covers refusals that the specification omits."""

import json

import pytest
from django.db import transaction

from tests.access.protocols import PROTOCOLS
from tests.api.client import Lance
from tests.api.lance.examples import make_catalog
from tests.api.lance.test_coverage import operations
from tests.factories import make_table

pytestmark = pytest.mark.xdist_group("documents")  # the document is generated once

PROTOCOL = PROTOCOLS["lance"]
NEEDS_DATA = {name for name, operation in operations().items() if operation.needs_data}
_WORDS = "19 (InvalidTableState): the table was declared and has no data"


@pytest.mark.usefixtures("warehouse")
def test_operations_that_need_data_document_the_error(lance: Lance):
    """Each operation on a table that was declared and has no data."""
    make_catalog()
    make_table("ws", "declared")
    refusing = set()
    for name, example in PROTOCOL.requests.items():
        request = example.spelled("data", "declared").spelled("t", "declared")
        with transaction.atomic():
            response = lance.call(request.method, request.path, request.body, **request.options)
            transaction.set_rollback(True)
        if response.status_code == 409 and json.loads(response.content)["code"] == 19:
            refusing.add(name)
    assert refusing == NEEDS_DATA


def test_the_document_lists_the_error(client):
    document = json.loads(client.get("/schema/lance?format=json").content)
    described = {
        operation["operationId"]: operation["responses"]["409"]["description"]
        for methods in document["paths"].values()
        for operation in methods.values()
    }
    assert {name for name, text in described.items() if _WORDS in text} == NEEDS_DATA
