"""Jobs whose requester loses the right to start them, before they run or while they do."""

import os
from pathlib import Path
from typing import Any

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import CatalogError
from catalog.models import Grant, Job, JobStatus, Principal, Table
from catalog.privileges import Privilege, closure
from catalog.services.engine import jobs
from catalog.services.engine.commit import commit
from catalog.services.governance import annotation_operations
from catalog.services.maintenance import job_runner, scheduler
from catalog.services.recovery import rule_operations
from catalog.services.tables import table_operations
from tests.access.protocols import give
from tests.factories import (
    files,
    make_iceberg_table,
    make_lance_table,
    make_namespace,
    make_root,
    unchanged,
)

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


def _set_owner(name: str) -> None:
    operation = annotation_operations.SetOwner(target=T, is_table=True, owner=name)
    commit([operation], actor=SYSTEM)


def _lose_grant(ada: Principal) -> None:
    Grant.objects.filter(principal=ada).update(mask=closure(Privilege.READ).value)


def _lose_ownership(ada: Principal) -> None:
    Principal.objects.create(name="user:bob", kind="user")
    _set_owner("user:bob")


def _deactivate(ada: Principal) -> None:
    Principal.objects.filter(pk=ada.pk).update(is_active=False)


def _move(ada: Principal) -> None:
    make_namespace("elsewhere")
    commit([table_operations.RenameTable(table=T, new=("elsewhere", "t"))], actor=SYSTEM)


@pytest.mark.parametrize(
    ("lose", "is_owner"),
    [
        (_lose_grant, False),
        (_move, False),
        (_deactivate, False),
        (_deactivate, True),
        (_lose_ownership, True),
    ],
)
def test_a_running_job_stops_without_the_rights_of_its_requester(ada, lose, is_owner):
    """It would commit and remove for hours with the principal that it looked up when it began."""
    make_lance_table(T)
    table = Table.objects.select_related("namespace").get()
    if is_owner:
        _set_owner(ada.name)
    else:
        give(ada, Privilege.ALL, table.namespace)
    started = scheduler.start(actor=access.on_behalf_of(ada.name), table=T, kind="clean_up")
    job = jobs.take(started.pk)
    assert job is not None
    heartbeat, actor = jobs.LeaseHeartbeat(job), jobs.principal(job)

    def protect(is_protected: bool) -> None:
        operation = rule_operations.SetProtection(
            identifier=jobs.identify(job), is_namespace=False, is_protected=is_protected
        )
        commit([operation], actor=actor)

    protect(True)
    heartbeat._beat()
    heartbeat.report(1)
    lose(ada)
    with unchanged(), pytest.raises(CatalogError):
        protect(False)
    heartbeat._beat()
    with pytest.raises(CatalogError):
        heartbeat.report(2)
