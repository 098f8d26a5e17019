import pytest

from catalog.errors import Conflict, InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.metadata import requirements, updates
from tests.catalog.formats.iceberg.examples import UUID, ref, table, written


def failed(requirement, document):
    with pytest.raises(RequirementFailed) as caught:
        requirements.check([requirement], document)
    return caught.value.message


@pytest.mark.parametrize(
    ("requirement", "words"),
    [
        ({"type": "assert-create"}, "table already exists"),
        (
            {"type": "assert-table-uuid", "uuid": UUID.replace("8a", "9a")},
            f"UUID does not match: expected {UUID} != {UUID.replace('8a', '9a')}",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
            "branch main has changed: expected id 1 != 2",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "old", "snapshot-id": 2},
            "tag old has changed: expected id 2 != 1",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
            "branch main was created concurrently",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "old"},
            "tag old was created concurrently",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": 1},
            "branch or tag new is missing, expected 1",
        ),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 6},
            "last assigned field id changed: expected id 6 != 7",
        ),
        (
            {"type": "assert-current-schema-id", "current-schema-id": 1},
            "current schema changed: expected id 1 != 0",
        ),
        (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
            "last assigned partition id changed: expected id 999 != 1000",
        ),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 1},
            "default partition spec changed: expected id 1 != 0",
        ),
        (
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
            "default sort order changed: expected id 0 != 1",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["type"],
)
def test_failed_requirements_use_the_wording_that_clients_match(requirement, words):
    document = updates.apply(written(2), [ref(1, "old", "tag")], now_ms=3_000)
    assert failed(requirement, document) == f"Requirement failed: {words}"


def test_a_failed_requirement_is_a_conflict():
    assert issubclass(RequirementFailed, Conflict)


def test_requirements_that_hold_pass():
    requirements.check(
        [
            {"type": "assert-table-uuid", "uuid": UUID.upper()},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2},
            {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": None},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 7},
            {"type": "assert-current-schema-id", "current-schema-id": 0},
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
            {"type": "assert-default-spec-id", "default-spec-id": 0},
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
        ],
        written(2),
    )
    requirements.check([], table())
    requirements.check([{"type": "assert-create"}], None)


def test_a_missing_table_fails_all_requirements_but_assert_create():
    for requirement in (
        {"type": "assert-table-uuid", "uuid": UUID},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
        {"type": "assert-current-schema-id", "current-schema-id": 0},
    ):
        assert failed(requirement, None) == "Requirement failed: table does not exist"


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ({}, "requirements[1].type is missing"),
        (
            {"type": "assert-view-uuid", "uuid": UUID},
            "requirements[1].type: unknown table requirement 'assert-view-uuid'",
        ),
        ({"type": "assert-table-uuid"}, "requirements[1].uuid is missing"),
        (
            {"type": "assert-current-schema-id", "current-schema-id": None},
            "requirements[1].current-schema-id must be an integer, not null",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": True},
            "requirements[1].snapshot-id must be an integer, not a boolean",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("type", "none"),
)
def test_malformed_requirements_are_reported_before_failed_ones(requirement, message):
    with pytest.raises(InvalidMetadata) as caught:
        requirements.check([{"type": "assert-create"}, requirement], table())
    assert caught.value.message == message


def test_creations_are_recognized():
    assert requirements.is_create([{"type": "assert-create"}])
    assert not requirements.is_create([{"type": "assert-table-uuid", "uuid": UUID}])
    assert not requirements.is_create([])


def test_a_requirement_is_an_object():
    with pytest.raises(InvalidMetadata) as caught:
        requirements.check([{"type": "assert-create"}, None], None)
    assert caught.value.message == "requirements[1] must be an object, not null"
