"""Any request is refused with a message or applied correctly, and never crashes."""

import copy
import itertools

import orjson
import pytest

from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.metadata import documents as metadata_documents
from catalog.formats.iceberg.metadata import requirements, updates
from tests.catalog.formats.iceberg.examples import (
    UUID,
    add,
    column,
    encryption_key,
    order,
    partition_statistics,
    ref,
    schema,
    spec,
    statistics,
    table,
    written,
)

MAP = {
    "type": "map", "key-id": 31, "key": "string", "value-id": 32, "value": "long",
    "value-required": True,
}  # fmt: skip
UPDATES = [
    {"action": "assign-uuid", "uuid": UUID},
    {"action": "upgrade-format-version", "format-version": 3},
    {
        "action": "add-schema",
        "schema": schema(
            {**column(8, "n", "decimal(9, 2)"), "initial-default": "1.00", "doc": "d"},
            column(30, "m", MAP),
            **{"schema-id": 1, "identifier-field-ids": [1]},
        ),
        "last-column-id": 32,
    },
    {"action": "set-current-schema", "schema-id": 0},
    {"action": "add-spec", "spec": spec((1, "bucket[8]", "bin"), **{"spec-id": 1})},
    {"action": "add-partition-spec", "spec": spec((3, "truncate[2]", "t"))},
    {"action": "set-default-spec", "spec-id": 0},
    {"action": "add-sort-order", "sort-order": order(3)},
    {"action": "set-default-sort-order", "sort-order-id": 1},
    add(9, parent=2, version=3, **{"first-row-id": 20, "key-id": "k"}),
    ref(2, "keep", **{"max-ref-age-ms": 5, "max-snapshot-age-ms": 5, "min-snapshots-to-keep": 5}),
    {"action": "remove-snapshots", "snapshot-ids": [1]},
    {"action": "remove-snapshot-ref", "ref-name": "main"},
    {"action": "set-location", "location": "s3://bucket/elsewhere"},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["owner"]},
    {"action": "set-statistics", "statistics": statistics(1), "snapshot-id": 1},
    {"action": "remove-statistics", "snapshot-id": 1},
    {"action": "set-partition-statistics", "partition-statistics": partition_statistics(1)},
    {"action": "remove-partition-statistics", "snapshot-id": 1},
    {"action": "remove-partition-specs", "spec-ids": [5]},
    {"action": "remove-schemas", "schema-ids": [5]},
    {"action": "add-encryption-key", "encryption-key": encryption_key()},
    {"action": "remove-encryption-key", "key-id": "k1"},
]
REQUIREMENTS = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": UUID},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 7},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
]
WRONG = [
    None, True, False, 1.0, -1, -2, 0, 1, 2**31, 2**63, 2**70, "", "x", "main", [], [None], [[]],
    [{}], {}, {"a": None}, {"type": "struct"}, {"type": []}, {"fields": {}}, "decimal(99,2)",
    "\ud800", "bucket[0]", "fixed[0]",
]  # fmt: skip


def deep(levels):
    """JSON with this depth of nesting."""
    value = "x"
    for _ in range(levels):
        value = {"type": "list", "element-id": 1, "element-required": True, "element": value}
    return value


def places(value, path=()):
    """The paths of all members of a JSON value."""
    if path:
        yield path
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield from places(value[key], (*path, key))


def mutated(value):
    """The value with each of its members removed, or replaced by other values."""
    bad = [*WRONG, deep(60), deep(250), deep(900)]
    for path, change in itertools.product(list(places(value)), [..., *bad]):
        changed = copy.copy(value)
        owner = changed
        for key in path[:-1]:
            owner[key] = copy.copy(owner[key])
            owner = owner[key]
        if change is ...:
            del owner[path[-1]]
        else:
            owner[path[-1]] = change
        yield changed


def outcome(call):
    try:
        return call()
    except (InvalidMetadata, RequirementFailed) as refusal:
        message = refusal.message
    assert 0 < len(message) < 500
    return None


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update["action"])
def test_mutated_updates_are_refused_or_valid(update):
    base = written(2, version=3)
    base = updates.apply(base, [ref(1, "old", "tag")], now_ms=3_000)
    before = orjson.dumps(base)
    metadata_documents.check(updates.apply(base, [update], now_ms=4_000))
    refused = 0
    for changed in mutated(update):
        result = outcome(lambda: updates.apply(base, [changed], now_ms=4_000))  # noqa: B023
        assert orjson.dumps(base) == before
        if result is None:
            refused += 1
        else:
            metadata_documents.check(metadata_documents.parse(metadata_documents.dump(result)))
    assert refused > 25


@pytest.mark.parametrize("version", [1, 2])
def test_mutated_updates_of_older_versions_are_refused_or_valid(version):
    base = written(2, version=version)
    for update in UPDATES[4:11]:
        for changed in mutated(update):
            result = outcome(lambda: updates.apply(base, [changed], now_ms=4_000))  # noqa: B023
            if result is not None:
                metadata_documents.check(result)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda value: value["type"])
def test_mutated_requirements_are_refused_or_hold(requirement):
    for document in (written(2), None):
        for changed in mutated(requirement):
            outcome(lambda: requirements.check([changed], document))  # noqa: B023
            outcome(lambda: requirements.is_create([changed]))  # noqa: B023


@pytest.mark.parametrize("argument", ["schema", "partition_spec", "write_order", "properties"])
def test_mutated_creations_are_refused_or_valid(argument):
    request = {
        "schema": UPDATES[2]["schema"],
        "partition_spec": spec((1, "bucket[8]", "bin"), (3, "identity", "name")),
        "write_order": order(3, 1),
        "properties": {"format-version": "3", "owner": "ann"},
    }
    for changed in mutated({"it": request[argument]}):
        result = outcome(
            lambda: metadata_documents.new_table(
                **{**request, argument: changed.get("it")},  # noqa: B023
                location="s3://bucket/t",
                now_ms=1_000,
            )
        )
        if result is not None:
            metadata_documents.check(metadata_documents.parse(metadata_documents.dump(result)))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_mutated_files_are_refused_or_valid(version):
    base = written(2, version=version)
    base = updates.apply(
        base,
        [
            {"action": "set-statistics", "statistics": statistics(1)},
            {"action": "set-partition-statistics", "partition-statistics": partition_statistics(1)},
        ],
        now_ms=3_000,
    )
    refused = 0
    for changed in mutated(base):
        try:
            content = orjson.dumps(changed)
        except TypeError:
            continue
        result = outcome(lambda: metadata_documents.parse(content))  # noqa: B023
        if result is None:
            refused += 1
        else:
            outcome(lambda: updates.apply(result, UPDATES[9:15], now_ms=4_000))  # noqa: B023
            metadata_documents.refs_only(result)
    assert refused > 1_000


def test_requirements_and_updates_must_be_lists():
    for value in (None, {}, "x", 1, [1], [None]):
        with pytest.raises(InvalidMetadata):
            requirements.check(value, table())
        with pytest.raises(InvalidMetadata):
            requirements.is_create(value)
        with pytest.raises(InvalidMetadata):
            updates.apply(table(), value, now_ms=1)


def test_every_update_and_requirement_is_mutated_here():
    assert {update["action"] for update in UPDATES} == updates.ACTIONS
    assert len(updates.ACTIONS) == 24
    assert len(REQUIREMENTS) == 8
