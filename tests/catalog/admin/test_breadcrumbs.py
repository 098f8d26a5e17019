"""The path of a page: the catalog, namespaces, the object, and the tab or form."""

import pytest

from catalog.access import SYSTEM, On
from catalog.models import Namespace, Table, Transaction
from catalog.privileges import parse
from catalog.services.access import grants
from tests.catalog.admin.iceberg.test_pages import url
from tests.factories import make_iceberg_table, make_lance_table, make_namespace


def names(answer) -> list[str]:
    assert answer.status_code == 200
    assert 'aria-label="Breadcrumb"' in answer.content.decode()
    return [name for name, _ in answer.context["places"]]


@pytest.fixture
def deep(warehouse, db) -> Table:
    make_iceberg_table("eu", "sales", "a.b", "orders")
    return Table.objects.get(name="orders")


def test_a_table_follows_its_namespaces(browser, deep):
    answer = browser.get(url(deep))
    assert names(answer) == ["Catalog", "eu", "sales", "a.b", "orders"]
    for name, address in answer.context["places"]:
        assert browser.get(address).status_code == 200, name
    assert names(browser.get(url(deep, "snapshots"))) == [
        *("Catalog", "eu", "sales", "a.b", "orders", "History", "Snapshots")
    ]


def test_the_tab_leads_to_its_first_section(browser, db, warehouse):
    row = make_lance_table(("prod", "events"))
    places = browser.get(url(row, "refs")).context["places"]
    assert places[-2:] == [("History", "?tab=versions"), ("Tags and branches", "")]


def test_a_form_follows_its_object(browser, deep):
    answer = browser.get(f"/admin/catalog/table/{deep.pk}/rename/")
    assert names(answer) == ["Catalog", "eu", "sales", "a.b", "orders", "Rename"]


def test_a_namespace_follows_its_parents(browser, deep):
    answer = browser.get(f"/admin/catalog/namespace/{deep.namespace_id}/change/")
    assert names(answer) == ["Catalog", "eu", "sales", "a.b"]
    root = Namespace.objects.get(parent=None)
    assert names(browser.get(f"/admin/catalog/namespace/{root.pk}/change/")) == ["Catalog"]


def test_other_rows_follow_their_list(browser, deep):
    transaction = Transaction.objects.latest("pk")
    answer = browser.get(f"/admin/catalog/transaction/{transaction.pk}/change/")
    assert names(answer) == ["Transactions", str(transaction.pk)]


def test_users_with_a_grant_on_a_table_can_open_its_path(sign_in, deep):
    """The namespaces above the table are in its own name."""
    make_namespace("secret")
    client = sign_in()
    grants.set_grant(
        actor=SYSTEM,
        on=On.table(deep.identifier),
        principal="user:bob",
        privileges=parse(["read"]),
    )
    answer = client.get(url(deep))
    assert names(answer) == ["Catalog", "eu", "sales", "a.b", "orders"]
    for name, address in answer.context["places"]:
        page = client.get(address)
        assert page.status_code == 200, name
        assert "secret" not in page.content.decode()
