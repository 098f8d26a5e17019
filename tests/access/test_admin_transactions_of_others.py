"""Transactions that changed tables of several teams, on the page of a table of one of them."""

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.models import Grant, Table
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import registration_operations
from tests.access.test_admin_pages import grant, signed_in
from tests.factories import make_namespace, make_root

pytestmark = pytest.mark.usefixtures("warehouse", "_plain_static_files")
NAMES = [("secretive", "merger"), ("mine", "t"), *(("secretive", f"plan{n}") for n in range(4))]


@pytest.fixture
def page(db) -> str:
    make_root()
    for name in ("mine", "secretive"):
        make_namespace(name)
    commit([registration_operations.DeclareTable(table=name) for name in NAMES], actor=SYSTEM)
    row = Table.objects.named(("mine", "t")).get()
    return f"/admin/catalog/table/{row.pk}/change/?tab=transactions"


def test_a_table_shows_no_operations_on_tables_that_the_user_may_not_browse(page):
    client = signed_in(is_superuser=False)
    grant(Privilege.ALL, "mine")
    content = client.get(page).content.decode()
    assert "DeclareTable mine.t" in content
    assert "secretive" not in content
    assert "and 3 more" not in content


def test_somebody_who_browses_the_other_tables_sees_the_operations_on_them(page):
    client = signed_in(is_superuser=False)
    for name in ("mine", "secretive"):
        grant(Privilege.ALL, name)
    content = client.get(page).content.decode()
    assert "secretive.merger" in content
    assert "and 3 more" in content


def test_all_operations_of_an_own_transaction_are_shown(page):
    client = signed_in(is_superuser=False)
    for name in ("mine", "secretive"):
        grant(Privilege.ALL, name)
    commit(
        [registration_operations.DeclareTable(table=(name, "u")) for name in ("mine", "secretive")],
        actor=access.named("user:bob"),
    )
    row = Table.objects.named(("mine", "u")).get()
    Grant.objects.filter(namespace__name="secretive").delete()
    content = client.get(f"/admin/catalog/table/{row.pk}/change/?tab=transactions").content.decode()
    assert "secretive.u" in content
