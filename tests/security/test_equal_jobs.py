"""Requests that equal a waiting job: it is returned only to its principal, with the right to start it."""

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import CatalogError, NotFound
from catalog.models import Grant, Job, JobStatus, Principal, Table
from catalog.privileges import Privilege, closure
from catalog.services.engine.commit import commit
from catalog.services.maintenance import scheduler
from catalog.services.tables.table_operations import DeregisterTable
from tests.access.protocols import give
from tests.factories import make_lance_table, make_root, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
T = ("ns", "t")


@pytest.fixture
def ada(monkeypatch) -> Principal:
    """A principal whose job `compact` waits."""
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)
    make_root()
    make_lance_table(T)
    row: Principal = Principal.objects.create(name="user:ada", kind="user")
    give(row, Privilege.ALL, Table.objects.get())
    start("user:ada")
    return row


def start(name: str) -> Job:
    return scheduler.start(actor=access.on_behalf_of(name), table=T, kind="compact")


def test_the_same_principal_gets_the_waiting_job(ada):
    assert start("user:ada").pk == Job.objects.get().pk


@pytest.mark.parametrize("privilege", [Privilege.BROWSE, Privilege.READ])
def test_after_its_rights_were_reduced_it_gets_a_refusal(ada, privilege):
    Grant.objects.filter(principal=ada).update(mask=closure(privilege).value)
    with unchanged(), pytest.raises(CatalogError):
        start("user:ada")


def test_after_its_rights_were_revoked_the_table_is_unknown(ada):
    Grant.objects.all().delete()
    with unchanged(), pytest.raises(NotFound):
        start("user:ada")


def test_another_principal_gets_a_job_of_its_own(ada):
    row = Principal.objects.create(name="user:eve", kind="user")
    Grant.objects.create(
        principal=row, table=Table.objects.get(), mask=closure(Privilege.ALL).value
    )
    assert start("user:eve").pk != Job.objects.order_by("pk")[0].pk


def test_a_job_of_a_table_that_was_replaced_is_not_returned(ada):
    first = Job.objects.get()
    commit([DeregisterTable(table=T)], actor=SYSTEM)
    make_lance_table(T)
    give(ada, Privilege.ALL, Table.objects.present().get())
    assert start("user:ada").pk != first.pk
    first.refresh_from_db()
    assert first.status == JobStatus.CANCELED
