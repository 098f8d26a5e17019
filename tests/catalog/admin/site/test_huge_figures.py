"""Figures in files that clients wrote, whose sums PostgreSQL cannot store as a number."""

from pathlib import Path

import pytest
from django.utils import timezone

from catalog.access import SYSTEM
from catalog.models import Job, JobStatus, Table
from catalog.services.maintenance import job_control, measurements
from tests.catalog.formats.iceberg.scans.test_planning import SIMPLE
from tests.catalog.formats.iceberg.written import Written
from tests.catalog.services.iceberg.test_scans import register

pytestmark = pytest.mark.django_db
HUGE = 2**62
PAGES = ("/admin/", "/admin/catalog/table/?o=-rows", "/admin/catalog/tablehealth/")


@pytest.fixture
def measured(warehouse: Path) -> list[Table]:
    """Tables whose owners have written that their files have more rows and bytes than there are."""
    figures = {"record_count": HUGE, "file_size_in_bytes": HUGE}
    for name in ("a", "b"):
        made = Written(warehouse / name, SIMPLE)
        row = {"id": 1, "day": None, "name": None}
        made.commit([made.file([row], **figures) for _ in range(4)])
        made.document["next-row-id"] = 0
        register(made, "ws", name)
        measurements.measure(actor=SYSTEM, table=("ws", name))
    return list(Table.objects.all())


@pytest.mark.parametrize("page", PAGES)
def test_pages_sum_up_huge_figures(measured, browser, page):
    assert browser.get(page).status_code == 200
    for table in measured:
        path = f"/admin/catalog/table/{table.pk}/change/?tab=maintenance"
        assert browser.get(path).status_code == 200


def test_maintenance_is_summed_up_with_huge_figures(measured):
    before, after = {"files": 2**63 - 1}, {"files": 1}
    for table in measured:
        Job.objects.create(
            table=table,
            kind="compact",
            status=JobStatus.SUCCEEDED,
            finished_at=timezone.now(),
            result={"before": before, "after": after, "files": 2**63 - 1, "bytes": 2**63 - 1},
        )
    total = job_control.summarize(actor=SYSTEM).total
    assert total.files_merged == total.files_removed == total.bytes_reclaimed == 2**63 - 1
