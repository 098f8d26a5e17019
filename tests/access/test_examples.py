"""The answers that the OpenAPI documents show have the form of the server's own answers."""

import json
from typing import Any

import pytest

from api.iceberg.document import IcebergSchemaGenerator
from api.lance.document import LanceSchemaGenerator
from api.openapi import examples_of
from catalog import access
from catalog.access import credentials
from catalog.models import ApiKey
from tests.access.doors import DOORS, KEY, principal
from tests.factories import make_root

pytestmark = pytest.mark.usefixtures("warehouse")
MAPS = {"properties", "branches", "tags", "metadata", "fields"}
"""Fields whose keys belong to the user."""
BARE_MAPS = {"UpdateTableSchemaMetadata"}
"""Operations whose whole answer is such a map."""


def agree(example: Any, answer: Any) -> bool:
    """Whether two JSON values have the same names and types. Members of a list are alike."""
    if isinstance(example, dict) and isinstance(answer, dict):
        return set(example) == set(answer) and all(
            name in MAPS or agree(member, answer[name]) for name, member in example.items()
        )
    if isinstance(example, list) and isinstance(answer, list):
        return not answer or all(agree(member, answer[0]) for member in example)
    return type(example) is type(answer)


GENERATORS = {"lance": LanceSchemaGenerator, "iceberg": IcebergSchemaGenerator}
ANSWERS = {
    (protocol, operation): example["answer"]
    for protocol, generator in GENERATORS.items()
    for name, example in examples_of(generator.__module__).items()
    for operation in (name, name[0].lower() + name[1:])
    if "answer" in example and operation in {*DOORS[protocol].operations} - BARE_MAPS
}


@pytest.mark.parametrize(("protocol", "operation"), ANSWERS)
def test_an_answer_is_like_its_example(protocol, operation):
    door = DOORS[protocol]
    make_root()
    row = principal("who", level="admin")
    ApiKey.objects.create(name="who", principal=row, digest=credentials.key_digest(KEY))
    words = door.prepare(operation, access.of_row(row))
    request = door.requests[operation].with_words(words)
    response = door.send(request)
    assert response.status_code == request.status
    assert agree(ANSWERS[protocol, operation], json.loads(response.content)), response.content


def test_most_operations_have_an_example_of_their_answer():
    assert len(ANSWERS) > 50


def test_agreement_notices_a_name_and_a_type_that_differ():
    assert agree({"a": [{"b": 1}], "properties": {"x": ""}}, {"a": [{"b": 2}], "properties": {}})
    assert not agree({"a": [{"b": 1}]}, {"a": [{"c": 1}]})
    assert not agree({"a": 1}, {"a": "1"})
    assert not agree({"a": 1}, {"a": 1, "b": 1})
