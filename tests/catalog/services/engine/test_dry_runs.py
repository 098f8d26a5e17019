import pytest
from django.db import transaction

from catalog.access import SYSTEM
from catalog.errors import TableNotFound
from catalog.models import Table, Transaction
from catalog.services.engine.transactions import rehearsal
from catalog.services.recovery import undrop
from tests.factories import make_lance_table, make_root, unchanged

pytestmark = pytest.mark.django_db(transaction=True)
USERS = ("prod", "users")


@pytest.fixture(autouse=True)
def _table():
    make_root()
    make_lance_table(USERS)


def protect(table: tuple[str, ...] = USERS) -> Table:
    return undrop.set_table_protection(actor=SYSTEM, table=table, is_protected=True)


def test_a_dry_run_has_the_result_of_the_change_and_leaves_nothing():
    sent: list[str] = []
    with unchanged((Transaction,)), rehearsal(SYSTEM, is_dry_run=True):
        assert protect().is_protected
        assert Table.objects.get(name="users").is_protected
        assert SYSTEM.progress.is_dry_run
        transaction.on_commit(lambda: sent.append("sent"))
    assert sent == []
    assert not Table.objects.get(name="users").is_protected
    assert (SYSTEM.progress.is_dry_run, SYSTEM.progress.committed) == (False, False)


def test_a_dry_run_has_the_refusals_of_the_change():
    def dry_run() -> None:
        with rehearsal(SYSTEM, is_dry_run=True):
            protect()
            protect(("prod", "none"))

    with unchanged((Transaction,)), pytest.raises(TableNotFound):
        dry_run()
    assert not SYSTEM.progress.is_dry_run


def test_without_a_dry_run_the_changes_remain():
    with rehearsal(SYSTEM, is_dry_run=False):
        protect()
        assert not SYSTEM.progress.is_dry_run
    assert Table.objects.get(name="users").is_protected
