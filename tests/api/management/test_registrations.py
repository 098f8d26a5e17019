"""Registering the tables below a location."""

import lance
import pyarrow as pa
import pytest

from tests.api.management.client import Management
from tests.factories import make_root, unchanged

pytestmark = pytest.mark.django_db


@pytest.fixture
def lake(db, settings, tmp_path):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    (tmp_path / "lake" / "ml").mkdir(parents=True)
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "lake" / "ml" / "users.lance"))
    return tmp_path / "lake"


@pytest.mark.operation("PlanRegistrations")
def test_a_plan_lists_tables_and_changes_nothing(management: Management, lake):
    with unchanged():
        plan = management.post("registrations/plan", {"location": str(lake)})
    assert plan == {
        "location": str(lake),
        "candidates": [
            {
                "format": "lance",
                "location": f"{lake}/ml/users.lance",
                "metadata_location": None,
                "table": ["ml", "users"],
                "status": "new",
            }
        ],
        "is_complete": True,
    }


@pytest.mark.operation("RegisterStoredTables")
def test_tables_are_registered_with_the_requested_names(management: Management, lake):
    table = {"format": "lance", "table": ["prod", "people"], "location": f"{lake}/ml/users.lance"}
    missing = {**table, "table": ["prod", "gone"], "location": "s3://other/bucket"}
    results = management.post("registrations", {"tables": [table, missing]})["results"]
    assert [result["outcome"] for result in results] == ["registered", "refused"]
    assert "s3://other/bucket" in results[1]["message"]
    again = management.post("registrations", {"tables": [table]})["results"]
    assert again == [{"table": ["prod", "people"], "outcome": "present", "message": ""}]


@pytest.mark.operation("RegisterStoredTables")
def test_one_request_has_a_limit(management: Management, lake):
    table = {"format": "lance", "table": ["prod", "t"], "location": str(lake)}
    with unchanged():
        management.refused(
            400, "invalid-input", "tables", "POST registrations", {"tables": [table] * 101}
        )
        management.refused(400, "invalid-input", "tables", "POST registrations", {"tables": []})
