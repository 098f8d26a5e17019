"""Each version and snapshot has the reasons why it stays, or expires."""

import pytest

from catalog.formats.iceberg import maintenance as iceberg_maintenance
from catalog.models import Job, Table
from catalog.policies import effective
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags
from catalog.services.maintenance import lance_retention, measurements
from catalog.services.maintenance.plans import retention
from tests.catalog.services.maintenance import test_iceberg_actions as iceberg
from tests.catalog.services.maintenance import test_lance_cleanup as cleanup
from tests.factories import make_administrator

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch):
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_administrator("ada")


def test_versions_of_a_lance_table_are_explained():
    row = cleanup.make_versions(6)
    lance_tags.create_tag(actor=cleanup.ADA, table=cleanup.TABLE, tag="v1", version=2)
    lance_branches.create_branch(actor=cleanup.ADA, table=cleanup.TABLE, name="dev", from_version=3)
    Job.objects.create(
        kind="backfill_column", table=row, parameters={"read_version": 1}, status="queued"
    )
    policy = effective([("p", {"keep_for": 7 * cleanup.DAY, "keep_versions": 2})])
    explained = {
        (version.branch, version.version): version.reasons
        for version in retention.explain(row, policy)
    }
    job = Job.objects.get()
    branch_versions = [key for key in explained if key[0] == "dev"]
    for key in branch_versions:
        assert explained.pop(key)[0] == "current version of branch 'dev'"
    assert explained == {
        ("", 6): ("current version of the main branch",),
        ("", 5): ("among the 2 newest of the main branch",),
        ("", 4): (),
        ("", 3): ("branch 'dev' was created from it",),
        ("", 2): ("tag 'v1'",),
        ("", 1): (f"job {job.pk} reads it",),
    }
    # The explanation and the clean-up agree.
    assert lance_retention.old_versions(row, policy) == {"": {4}}
    long = effective([("p", {"keep_for": 60 * cleanup.DAY, "keep_versions": 2})])
    assert all(version.reasons for version in retention.explain(row, long))
    assert len(retention.explain(row, policy, limit=2)) == 2


def test_the_plan_of_an_iceberg_table_explains_its_snapshots():
    iceberg.grow(2)
    row = Table.objects.get()
    plan = measurements.plan(actor=cleanup.ADA, table=row.identifier)
    assert [version.reasons for version in plan.retention] == [
        ("current snapshot of branch 'main'",),
        ("among the 10 newest of branch 'main'",),
        ("among the 10 newest of branch 'main'",),
    ]
    (newest, *_, oldest) = plan.retention
    assert newest.as_json() == {
        "branch": "",
        "version": newest.version,
        "reasons": ["current snapshot of branch 'main'"],
        "expires": False,
    }
    now = effective([("p", {"keep_for": 0, "keep_versions": 1})])
    assert [version.as_json()["expires"] for version in retention.explain(row, now)] == [
        False,
        True,
        True,
    ]
    assert oldest.version != newest.version


def test_tags_and_branches_keep_what_they_need():
    document = {
        "current-snapshot-id": 4,
        "snapshots": [
            {"snapshot-id": number, "timestamp-ms": number, "parent-snapshot-id": parent}
            for number, parent in ((1, None), (2, 1), (3, 2), (4, 3), (5, 2), (6, None))
        ],
        "refs": {
            "main": {"snapshot-id": 4, "type": "branch"},
            "dev": {"snapshot-id": 5, "type": "branch", "min-snapshots-to-keep": 2},
            "v1": {"snapshot-id": 1, "type": "tag"},
            "gone": {"snapshot-id": 3, "type": "tag", "max-ref-age-ms": 1},
        },
    }
    reasons = iceberg_maintenance.retention(document, older_than=6, retain_last=1, now=10)
    assert reasons == {
        1: ["tag 'v1'"],
        2: ["among the 2 newest of branch 'dev'"],
        3: [],
        4: ["current snapshot of branch 'main'"],
        5: ["current snapshot of branch 'dev'"],
        6: ["on no branch, younger than the retention time"],
    }
