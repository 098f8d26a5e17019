"""The OpenAPI document describes the updates and requirements that the parsers of commits accept."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.iceberg import commits
from catalog.errors import InvalidMetadata, RequirementFailed
from catalog.formats.iceberg.metadata import requirements, updates
from catalog.formats.iceberg.views import documents as view_documents
from catalog.formats.iceberg.views import updates as view_updates
from tests.api.iceberg.client import Iceberg
from tests.catalog.formats.iceberg import examples
from tests.catalog.formats.iceberg.views import test_documents as views

pytestmark = pytest.mark.xdist_group("documents")  # the document is generated once

OLD_NAMES = {"add-partition-spec"}
"""Names of older clients, which are accepted and not described."""
TABLE = examples.written(2, version=3)
VIEW = views.view()

TABLE_UPDATES: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": examples.UUID},
    {"action": "upgrade-format-version", "format-version": 3},
    {"action": "add-schema", "schema": examples.schema(), "last-column-id": 7},
    {"action": "set-current-schema", "schema-id": 0},
    {"action": "add-spec", "spec": examples.spec()},
    {"action": "set-default-spec", "spec-id": 0},
    {"action": "add-sort-order", "sort-order": examples.order()},
    {"action": "set-default-sort-order", "sort-order-id": 1},
    {"action": "add-snapshot", "snapshot": examples.snapshot(3, 2, version=3)},
    examples.ref(
        1,
        "dev",
        **{"max-ref-age-ms": 1, "max-snapshot-age-ms": 1, "min-snapshots-to-keep": 1},
    ),
    {"action": "remove-snapshots", "snapshot-ids": [1]},
    {"action": "remove-snapshot-ref", "ref-name": "dev"},
    {"action": "set-location", "location": "s3://bucket/elsewhere"},
    {"action": "set-properties", "updates": {"owner": "bob"}},
    {"action": "remove-properties", "removals": ["owner"]},
    {"action": "set-statistics", "statistics": examples.statistics(1), "snapshot-id": 1},
    {"action": "remove-statistics", "snapshot-id": 1},
    {
        "action": "set-partition-statistics",
        "partition-statistics": examples.partition_statistics(1),
    },
    {"action": "remove-partition-statistics", "snapshot-id": 1},
    {"action": "remove-partition-specs", "spec-ids": []},
    {"action": "remove-schemas", "schema-ids": []},
    {"action": "add-encryption-key", "encryption-key": examples.encryption_key()},
    {"action": "remove-encryption-key", "key-id": "k"},
]
VIEW_UPDATES: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": examples.UUID},
    {"action": "upgrade-format-version", "format-version": 1},
    {"action": "add-schema", "schema": views.WIDER, "last-column-id": 3},
    {"action": "set-location", "location": "s3://bucket/elsewhere"},
    views.properties(owner="bob"),
    {"action": "remove-properties", "removals": ["owner"]},
    views.add(2),
    views.current(1),
]
TABLE_REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": examples.UUID},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 7},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
]
VIEW_REQUIREMENTS: list[dict[str, Any]] = [{"type": "assert-view-uuid", "uuid": examples.UUID}]


def apply_to_table(update: dict[str, Any]) -> None:
    updates.apply(TABLE, [update], now_ms=9_000)


def apply_to_view(update: dict[str, Any]) -> None:
    view_updates.apply(VIEW, [update], now_ms=9_000)


def require_of_table(requirement: dict[str, Any]) -> None:
    requirements.check([requirement], None if requirement["type"] == "assert-create" else TABLE)


def require_of_view(requirement: dict[str, Any]) -> None:
    view_documents.check([requirement], VIEW)


KINDS = {
    "TableUpdate": (apply_to_table, TABLE_UPDATES, updates, updates.ACTIONS),
    "ViewUpdate": (apply_to_view, VIEW_UPDATES, view_updates, view_updates.ACTIONS),
    "TableRequirement": (require_of_table, TABLE_REQUIREMENTS, requirements, requirements.TYPES),
    "ViewRequirement": (require_of_view, VIEW_REQUIREMENTS, view_documents, view_documents.TYPES),
}
EXAMPLES = [(kind, example) for kind, (_, items, _, _) in KINDS.items() for example in items]
every_example = pytest.mark.parametrize(
    ("kind", "example"),
    EXAMPLES,
    ids=[f"{kind}-{next(iter(item.values()))}" for kind, item in EXAMPLES],
)


class Recorder(dict[str, Any]):
    """An object that records the names that are looked up."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.names: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


def name_of(item: dict[str, Any]) -> str:
    return item.get("action") or item["type"]


@pytest.fixture(scope="module")
def schemas(django_db_setup) -> dict[str, Any]:
    answer = Iceberg().call("GET", "/schema/iceberg", headers={"accept": "application/json"})
    return answer.json()["components"]["schemas"]


def described(schemas: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """The schema of each update or requirement, by its name."""
    schema = schemas[kind]
    parts = schema.get("oneOf") or [schema]
    models = [schemas[part["$ref"].rpartition("/")[2]] for part in parts]
    key = "action" if "Update" in kind else "type"
    return {model["properties"][key]["const"]: model for model in models}


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_has_every_name(schemas, kind):
    _, items, _, accepted = KINDS[kind]
    assert set(described(schemas, kind)) == accepted - OLD_NAMES == set(map(name_of, items))


@every_example
def test_the_document_has_the_fields_that_are_read(schemas, monkeypatch, kind, example):
    apply, _, module, _ = KINDS[kind]
    monkeypatch.setattr(module, "as_object", lambda value, path: value)
    read = Recorder(example)
    apply(read)
    schema = described(schemas, kind)[name_of(example)]
    assert set(schema["properties"]) == read.names == set(example)


@every_example
def test_the_document_names_the_required_fields(schemas, kind, example):
    apply = KINDS[kind][0]
    required = set(described(schemas, kind)[name_of(example)]["required"])
    key = "action" if "Update" in kind else "type"
    assert key in required
    for name in example.keys() - {key}:
        rest = {field: value for field, value in example.items() if field != name}
        if name in required:
            with pytest.raises(InvalidMetadata, match=f"{name} is missing"):
                apply(rest)
        else:
            with suppress(RequirementFailed):  # without an id, the branch must not exist
                apply(rest)


@every_example
def test_models_accept_the_examples(kind, example):
    getattr(commits, kind).model_validate(example)


def test_the_requests_refer_to_them(schemas):
    for request, prefix in (("CommitTableRequest", "Table"), ("CommitViewRequest", "View")):
        properties = schemas[request]["properties"]
        assert properties["updates"]["items"] == {"$ref": f"#/components/schemas/{prefix}Update"}
        assert f"#/components/schemas/{prefix}Requirement" in str(properties["requirements"])
    changes = schemas["CommitTransactionRequest"]["properties"]["table-changes"]
    assert changes["items"] == {"$ref": "#/components/schemas/CommitTableRequest"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_specification_has_the_same_fields(schemas, kind):
    directory = os.environ.get("MONODON_SPEC_DIR")
    if not directory:
        pytest.skip("MONODON_SPEC_DIR names no directory with iceberg-rest-catalog.yaml")
    specification = yaml.safe_load((Path(directory) / "iceberg-rest-catalog.yaml").read_text())
    theirs = specification["components"]["schemas"]
    names = theirs["BaseUpdate" if "Update" in kind else kind]["discriminator"]["mapping"]
    for name, ours in described(schemas, kind).items():
        parts = [theirs[names[name].rpartition("/")[2]]]
        parts += [theirs[part["$ref"].rpartition("/")[2]] for part in parts[0].get("allOf", [])]
        properties = {field for part in parts for field in part.get("properties", {})}
        required = {field for part in parts for field in part.get("required", [])}
        assert set(ours["properties"]) == properties
        if name == "assert-ref-snapshot-id":
            required -= {"snapshot-id"}  # absent is null, as in Java's parser
        assert set(ours["required"]) == required
