"""Definitions of labels, and the privilege that changing them requires."""

import pytest

from catalog.models import AuditEvent, LabelDefinition
from tests.api.management.client import Management
from tests.factories import make_root, make_table, unchanged

PII = {
    "key": "pii",
    "description": "Of people",
    "colour": "red",
    "values": ["yes", "no"],
    "is_multiple": False,
    "applies_to": ["table", "column"],
}


@pytest.fixture(autouse=True)
def _catalog(db):
    make_root()


@pytest.mark.operation("CreateLabel")
@pytest.mark.operation("GetLabel")
def test_a_label_is_defined(management: Management, reader: Management):
    made = management.post("labels", PII, status=201)
    assert {name: made[name] for name in PII} == PII
    assert made["created_by"] == "tester"
    with unchanged():
        assert reader.get("labels/pii") == made
    event = AuditEvent.objects.get(action="label.create")
    assert (event.actor, event.target, event.after["values"]) == ("tester", "pii", ["yes", "no"])


@pytest.mark.operation("CreateLabel")
def test_omitted_fields_have_defaults(management: Management):
    made = management.post("labels", {"key": "note"}, status=201)
    assert (made["values"], made["is_multiple"]) == ([], False)
    assert (made["colour"], made["applies_to"]) == ("grey", ["namespace", "table", "column"])


@pytest.mark.operation("ListLabels")
def test_labels_are_listed_by_key(management: Management, reader: Management):
    for key in ("b", "a", "c"):
        management.post("labels", {"key": key}, status=201)
    assert [label["key"] for label in reader.get("labels")["labels"]] == ["a", "b", "c"]


@pytest.mark.operation("UpdateLabel")
def test_an_update_changes_only_its_fields(management: Management):
    management.post("labels", PII, status=201)
    label = management.send("PATCH", "labels/pii", {"values": []})
    assert {name: label[name] for name in PII} == {**PII, "values": []}
    assert label == management.get("labels/pii")


@pytest.mark.operation("DeleteLabel")
def test_a_label_is_deleted(management: Management):
    management.post("labels", PII, status=201)
    management.delete("labels/pii")
    assert not LabelDefinition.objects.exists()
    management.refused(404, "label-not-found", "'pii'", "GET labels/pii")
    management.refused(404, "label-not-found", "'pii'", "DELETE labels/pii")
    management.refused(404, "label-not-found", "'pii'", "PATCH labels/pii", {"values": []})


def test_invalid_labels_are_refused(management: Management):
    management.post("labels", PII, status=201)
    make_table("ws", "t")
    management.send("PATCH", "tables/ws$t/annotations", {"labels": {"pii": ["yes"]}})
    management.refused(409, "label-already-exists", "'pii'", "POST labels", PII)
    management.refused(409, "label-in-use", "1 assignments", "DELETE labels/pii")
    management.refused(
        409, "label-in-use", "'yes' is assigned", "PATCH labels/pii", {"values": ["no"]}
    )
    for body, text in (
        ({}, "key"),
        ({"key": "A"}, "a-z"),
        ({"key": "a", "applies_to": ["view"]}, "applies_to"),
        ({"key": "a", "colour": "pink"}, "colour"),
        ({"key": "a", "is_multiple": "yes"}, "is_multiple"),
        ({"key": "a", "multiple": True}, "multiple"),
    ):
        management.refused(400, "invalid-input", text, "POST labels", body)


def test_only_administrators_define_labels(management: Management, reader: Management):
    management.post("labels", PII, status=201)
    reader.refused(403, "permission-denied", "reader", "POST labels", {"key": "a"})
    reader.refused(403, "permission-denied", "reader", "PATCH labels/pii", {"values": []})
    reader.refused(403, "permission-denied", "reader", "DELETE labels/pii")
    Management().refused(401, "unauthenticated", "No API key", "GET labels")
