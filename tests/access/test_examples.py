"""The example answers of the OpenAPI documents have the form of the server's answers."""

import json
from typing import Any

import pytest

from api.iceberg.document import IcebergSchemaGenerator
from api.lance.document import LanceSchemaGenerator
from api.lancedb.document import LanceDBSchemaGenerator
from api.openapi import examples_of
from catalog.models import Principal
from tests.access.protocols import PROTOCOLS

pytestmark = pytest.mark.usefixtures("warehouse")
MAPS = {"properties", "branches", "tags", "metadata", "fields"}
"""Fields whose keys belong to the user."""
OF_OTHER_FORM = {
    ("lance", "UpdateTableSchemaMetadata"),
    ("lancedb", "UpdateTableSchemaMetadata"),
    ("lancedb", "ListTableTags"),
    ("lance", "BatchCommitTables"),
    ("lancedb", "CreateTableIndex"),
}
"""Operations whose answer is such a map, or depends on the request."""


def agree(example: Any, answer: Any) -> bool:
    """True if two JSON values have the same names and types. Members of a list have equal types."""
    if isinstance(example, dict) and isinstance(answer, dict):
        return set(example) == set(answer) and all(
            name in MAPS or agree(member, answer[name]) for name, member in example.items()
        )
    if isinstance(example, list) and isinstance(answer, list):
        return not answer or all(agree(member, answer[0]) for member in example)
    return type(example) is type(answer)


GENERATORS = {
    "lance": LanceSchemaGenerator,
    "lancedb": LanceDBSchemaGenerator,
    "iceberg": IcebergSchemaGenerator,
}
ANSWERS = {
    (protocol, operation): example["answer"]
    for protocol, generator in GENERATORS.items()
    for name, example in examples_of(generator.__module__).items()
    for operation in (name, name[0].lower() + name[1:])
    if "answer" in example
    and operation in PROTOCOLS[protocol].operations
    and (protocol, operation) not in OF_OTHER_FORM
}


@pytest.mark.parametrize(("name", "operation"), ANSWERS)
def test_an_answer_has_the_form_of_its_example(name, operation):
    protocol = PROTOCOLS[name]
    words = protocol.make_catalog(operation)
    Principal.objects.filter(name="who").update(level="admin")
    request = protocol.requests[operation].with_words(words)
    response = protocol.send(request)
    assert response.status_code == request.status
    assert agree(ANSWERS[name, operation], json.loads(response.content)), response.content


def test_most_operations_have_an_example_of_their_answer():
    assert len(ANSWERS) > 50


def test_comparison_detects_different_names_and_types():
    assert agree({"a": [{"b": 1}], "properties": {"x": ""}}, {"a": [{"b": 2}], "properties": {}})
    assert not agree({"a": [{"b": 1}]}, {"a": [{"c": 1}]})
    assert not agree({"a": 1}, {"a": "1"})
    assert not agree({"a": 1}, {"a": 1, "b": 1})
