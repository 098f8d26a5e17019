"""Plans of clean-up: the measured figures equal those of the dry run, and of the job."""

import pytest

from catalog import maintenance_actions
from catalog.models import Job, JobStatus, Table
from catalog.policies import effective
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.maintenance import iceberg_statistics, lance_actions, measurements
from catalog.services.maintenance.plans import lance_removals
from tests.catalog.services.maintenance import test_iceberg_actions as iceberg
from tests.catalog.services.maintenance import test_lance_cleanup as cleanup
from tests.factories import make_administrator

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
POLICY = effective([("p", {"keep_for": 7 * cleanup.DAY, "keep_versions": 2})])
NOW = effective([("p", {"keep_for": 0, "keep_versions": 1})])


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_administrator("ada")


def planned(statistics, policy):
    return {job.kind: job for job in maintenance_actions.plan(statistics, policy)}["clean_up"]


def test_the_plan_of_a_lance_table_is_kept():
    row = cleanup.make_versions(6)
    lance_tags.create_tag(actor=cleanup.ADA, table=cleanup.TABLE, tag="kept", version=2)
    measured = lance_actions.measure(row, POLICY)
    assert (measured.old_versions, measured.removable_is_estimate) == (3, False)
    # Each version has a manifest, a transaction and a data file of its own.
    assert measured.removable_files == 9
    proposal = planned(measured, POLICY)
    assert (proposal.files_gone, proposal.bytes_gone, proposal.is_estimate) == (
        9,
        measured.removable_bytes,
        False,
    )
    job = cleanup.run()
    assert job.status == JobStatus.SUCCEEDED, job.error
    assert (job.result["files"], job.result["bytes"]) == (9, measured.removable_bytes)
    assert lance_actions.measure(row, POLICY).removable_files == 0


@pytest.mark.parametrize("name", ["_MAX_PLANNED", "_MAX_PLANNED_BYTES"])
def test_the_plan_of_many_versions_is_an_estimate(monkeypatch, name):
    row = cleanup.make_versions(4)
    monkeypatch.setattr(lance_removals, name, 3)
    proposal = planned(lance_actions.measure(row, POLICY), POLICY)
    assert (proposal.files_gone, proposal.is_estimate) == (4, True)
    assert proposal.bytes_gone > 100


def test_the_plan_of_an_iceberg_table_equals_its_dry_run():
    iceberg.grow(3)
    row = Table.objects.get()
    measured = iceberg_statistics.measure(row, NOW)
    proposal = planned(measured, NOW)
    dry = iceberg.run("clean_up", iceberg.FakeSpark(), is_dry_run=True, keep_for=0, keep_versions=1)
    expected = dry.result["planned"]
    assert (proposal.files_gone, proposal.bytes_gone) == (expected["files"], expected["bytes"])
    assert not proposal.is_estimate


def test_the_plan_of_many_snapshots_is_an_estimate(monkeypatch):
    monkeypatch.setattr(iceberg_statistics, "_MAX_PLANNED_SNAPSHOTS", 2)
    iceberg.grow(3)
    proposal = planned(iceberg_statistics.measure(Table.objects.get(), NOW), NOW)
    # Four manifest lists expire, and two data files were replaced.
    assert (proposal.files_gone, proposal.is_estimate) == (6, True)
    assert proposal.bytes_gone > 1000


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([(True, {"before": {"orphans": 3, "bytes": 70}})], (3, 70)),
        ([(True, {"planned": {"orphan_files_count": 2, "orphan_bytes": 9}})], (2, 9)),
        ([(True, {"before": {"orphans": 3, "bytes": 70}}), (False, {})], (0, 0)),
        ([(True, {"before": {"orphans": 0, "bytes": 0}})], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_orphans_are_planned_from_the_last_dry_run(results, expected):
    row = cleanup.make_versions(1)
    for is_dry_run, result in results:
        Job.objects.create(
            table=row,
            kind="remove_orphans",
            status="succeeded",
            is_dry_run=is_dry_run,
            result=result,
        )
    plan = measurements.plan(actor=cleanup.ADA, table=cleanup.TABLE)
    files, size = expected
    figures = plan.statistics
    assert (figures.orphan_files, figures.orphan_bytes) == expected
    assert [(job.files_gone, job.bytes_gone, job.is_estimate) for job in plan.planned] == (
        [(files, size, True)] if files else []
    )
