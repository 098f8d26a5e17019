"""Governance documents over HTTP."""

import pytest

from api.management.serializers.base import EXAMPLES
from catalog.models import LabelDefinition
from tests.factories import make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
DOCUMENT = {"version": 1, "labels": [{"key": "pii", "values": ["yes"], "applies_to": ["table"]}]}


def test_the_example_in_the_documentation_is_applied_and_exported(management):
    make_table("prod", "users")
    management.put("governance", EXAMPLES["GovernanceDocument"])
    exported = management.get("governance")
    example = EXAMPLES["GovernanceState"]
    (tester,) = [row for row in exported["principals"] if row["name"] == "tester"]
    assert (
        exported | {"principals": [row for row in exported["principals"] if row != tester]}
        == example
    )


@pytest.mark.operation("GetGovernance")
@pytest.mark.operation("PlanGovernance")
@pytest.mark.operation("ApplyGovernance")
def test_a_document_is_planned_applied_and_exported(management):
    make_root()
    with unchanged():
        planned = management.post("governance/plan", DOCUMENT)["changes"]
    assert [(change["target"], change["field"]) for change in planned] == [("pii", "label")]
    assert management.put("governance", DOCUMENT)["changes"] == planned
    assert LabelDefinition.objects.get().values == ["yes"]
    exported = management.get("governance")
    assert management.post("governance/plan", exported)["changes"] == []
    with unchanged():
        management.refused(
            400, "invalid-input", "labels.0.colour", "PUT governance",
            {"version": 1, "labels": [{"key": "pii", "colour": "plaid"}]},
        )  # fmt: skip
