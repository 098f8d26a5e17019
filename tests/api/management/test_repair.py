import pytest

from catalog.models import TableVersion
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.ledger import versions as lance_versions
from tests.api.management.client import Management
from tests.factories import final_path, make_iceberg_table, make_lance_table, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.operation("RepairTable")]

REPAIR = "tables/ws$t/repair"


@pytest.fixture
def table():
    row = make_lance_table(("ws", "t"))
    lance_versions.settle(row)
    TableVersion.objects.create(
        table=row, version=2, manifest_path=str(final_path(row, 2)).lstrip("/")
    )
    lance_datasets.clear_caches()
    return row


def test_a_dry_run_reports(management: Management, table):
    with unchanged():
        report = management.post(REPAIR, {"dry_run": True})
    assert report == {
        "branches": [
            {
                "branch": "",
                "newest": 2,
                "fault": "version 2, the newest: its manifest is missing",
                "last_complete": 1,
                "missing": [2],
                "unlisted": [],
            }
        ],
        "published": {"": 3},
        "dry_run": True,
        "transaction_id": None,
    }


def test_a_repair_publishes_a_whole_version(management: Management, table):
    report = management.post(REPAIR, {})
    assert (report["published"], report["dry_run"]) == ({"": 3}, False)
    row = TableVersion.objects.get(version=3)
    assert str(row.transaction_id) == report["transaction_id"]
    assert final_path(table, 3).exists()
    assert management.post(REPAIR, {})["published"] == {}


def test_tables_that_cannot_be_repaired(management: Management, table):
    make_table("ws", "empty")
    make_iceberg_table("ws", "i")
    management.refused(
        409, "table-has-no-data", "has no data yet", "POST tables/ws$empty/repair", {}
    )
    management.refused(404, "table-not-found", "does not exist", "POST tables/ws$i/repair", {})
    final_path(table, 1).unlink()
    error = "has no version whose files are complete"
    management.refused(409, "invalid-table-state", error, f"POST {REPAIR}", {})
    management.refused(400, "invalid-input", "dryrun", f"POST {REPAIR}", {"dryrun": True})


def test_a_repair_requires_manage_on_the_table(reader: Management, table):
    reader.refused(403, "permission-denied", "may not", f"POST {REPAIR}", {"dry_run": True})
