"""Jobs whose requester loses the right to start them before they run."""

import os
from pathlib import Path
from typing import Any

import pytest

from catalog import access
from catalog.models import Grant, Job, JobStatus, Principal, Table
from catalog.privileges import Privilege, closure
from catalog.services.maintenance import job_runner, scheduler
from tests.access.protocols import give
from tests.factories import files, make_iceberg_table, make_lance_table, make_root

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
T = ("ns", "t")


class NoSpark:
    def __call__(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        raise AssertionError("no Spark is to be started")


@pytest.fixture
def ada(monkeypatch: pytest.MonkeyPatch) -> Principal:
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_root()
    row: Principal = Principal.objects.create(name="user:ada", kind="user")
    return row


@pytest.mark.parametrize("is_dry_run", [True, False])
@pytest.mark.parametrize("make", [make_lance_table, lambda name: make_iceberg_table(*name)])
def test_orphans_stay(ada, make, is_dry_run):
    """They would be removed before the first commit, which checks the right."""
    make(T)
    table = Table.objects.get()
    give(ada, Privilege.ALL, table)
    orphan = Path(table.location, "data", "left.lance")
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"rows")
    os.utime(orphan, (1, 1))
    before = files(table.location)
    job = scheduler.start(
        actor=access.on_behalf_of("user:ada"), table=T, kind="remove_orphans", is_dry_run=is_dry_run
    )
    Grant.objects.filter(principal=ada).update(mask=closure(Privilege.READ).value)
    job_runner.run_job(job.pk, spark=NoSpark())
    job.refresh_from_db()
    assert (job.status, job.attempts, job.result) == (JobStatus.FAILED, 1, None)
    assert "MAINTAIN" in job.error.upper()
    assert files(table.location) == before
    assert Job.objects.count() == 1
