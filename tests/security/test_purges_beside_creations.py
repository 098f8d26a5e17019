"""A purge removes no file of a table that is just being created at the location of the purged one."""

import threading
from typing import Any

import pytest
from django.db import connection

from catalog.access import SYSTEM
from catalog.models import Job, JobKind, JobStatus, Table, TrashItem
from catalog.services.engine.commit import commit
from catalog.services.lance import queries as lance_queries
from catalog.services.lance.ledger import registration_operations
from catalog.services.maintenance import job_runner
from catalog.services.recovery import undrop as recovery_undrop
from catalog.services.tables import table_operations
from tests.factories import make_lance_table, make_root

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]
WAIT = 20.0


def in_thread(call: Any) -> threading.Thread:
    def run() -> None:
        try:
            call()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_purge_waits_for_a_registration_at_its_location(
    monkeypatch: pytest.MonkeyPatch, settings: Any
):
    """The registration has seen that no purge was requested. Its table is not visible to others yet."""
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    settings.MONODON_PURGE_GRACE_SECONDS = 0
    make_root()
    table = make_lance_table(("ws", "t"))
    commit([table_operations.DeregisterTable(table=("ws", "t"))], actor=SYSTEM)
    item = TrashItem.objects.latest("pk")
    is_checked, may_continue = threading.Event(), threading.Event()
    add = table_operations.NewTableOperation.add_table

    def add_later(*arguments: Any, **options: Any) -> Table:
        is_checked.set()
        assert may_continue.wait(WAIT)
        return add(*arguments, **options)

    monkeypatch.setattr(table_operations.NewTableOperation, "add_table", add_later)
    register = registration_operations.RegisterTable(table=("ws", "u"), location=table.location)
    registration = in_thread(lambda: commit([register], actor=SYSTEM))
    try:
        assert is_checked.wait(WAIT)
        recovery_undrop.purge_now(actor=SYSTEM, item=item.pk)
        job = Job.objects.get(kind=JobKind.PURGE_TABLE)
        purge = in_thread(lambda: job_runner.run_job(job.pk))
        purge.join(1)
    finally:
        may_continue.set()
        registration.join(WAIT)
    purge.join(WAIT)
    job.refresh_from_db()
    assert (job.status, job.error) == (
        JobStatus.CANCELED,
        "its files also belong to another table",
    )
    assert lance_queries.count_rows(actor=SYSTEM, table=("ws", "u")) == 3
