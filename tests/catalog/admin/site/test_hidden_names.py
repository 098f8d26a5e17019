"""No list, form or link of the admin tells a user about objects that the user may not see."""

import pytest
from django.test import Client

from catalog.access import SYSTEM, On
from catalog.models import AuditEvent, Grant, Namespace, Principal, Table, Transaction
from catalog.privileges import parse
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.tables.namespace_operations import CreateNamespace, DropNamespace
from catalog.services.tables.table_operations import RenameTable
from tests.factories import make_namespace, make_table, make_version

SECRET = "secretive"


@pytest.fixture
def bob(sign_in) -> Client:
    """A client of bob, who may browse ``open`` and create in it, and only traverse ``way``."""
    make_namespace("open")
    make_namespace("way", "in")
    make_table(SECRET, "t")
    client = sign_in()
    for path, words in ((("open",), ["create"]), (("way", "in"), ["browse"])):
        grants.set_grant(
            actor=SYSTEM,
            on=On.namespace(path),
            principal="user:bob",
            privileges=parse(words),
        )
    return client


def content(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def test_a_transaction_of_others_is_not_found_by_its_id(bob):
    commit([CreateNamespace(namespace=(SECRET, "in"))], actor=SYSTEM)
    row = Transaction.objects.latest("pk")
    assert SECRET not in content(bob, f"/admin/catalog/transaction/?q={row.pk}")
    Transaction.objects.filter(pk=row.pk).update(actor="user:bob")
    assert SECRET in content(bob, f"/admin/catalog/transaction/?q={row.pk}")
    # Its target is text: a link would reveal that a table has the name now.
    operations = [{"operation": "CreateTable", "target": f"{SECRET}.t"}]
    Transaction.objects.filter(pk=row.pk).update(operations=operations)
    page = content(bob, f"/admin/catalog/transaction/{row.pk}/change/")
    assert f"/table/{Table.objects.get(name='t').pk}/" not in page


def test_columns_that_are_not_shown_do_not_filter_a_list(bob):
    make_table("open", "shown")
    make_version(("open", "shown"), 1)
    url = "/admin/catalog/table/"
    assert "open.shown" in content(bob, url)
    for lookup in ("committed_by__startswith", "measured_score__gt", "measured__rows__gt"):
        assert bob.get(f"{url}?{lookup}=0").status_code == 400
    assert bob.get(f"{url}?nothing=0").status_code == 302
    assert bob.get(f"{url}?in=open&state=live").status_code == 200


def test_a_form_does_not_name_a_namespace_by_its_number(bob):
    url = "/admin/catalog/function/add/?parent={}"
    shown, hidden = Namespace.objects.get(name="open"), Namespace.objects.get(name=SECRET)
    assert 'value="open"' in content(bob, url.format(shown.pk))
    assert SECRET not in content(bob, url.format(hidden.pk))


def test_the_owner_of_a_traversable_namespace_is_not_shown(bob):
    Namespace.objects.filter(name__in=["way", "open"]).update(owner="user:olga")
    root = Namespace.objects.named(()).get()
    page = content(bob, f"/admin/catalog/namespace/{root.pk}/change/?tab=namespaces")
    assert page.count("user:olga") == 1  # of ``open``
    way = Namespace.objects.get(name="way")
    refused = bob.get(f"/admin/catalog/namespace/{way.pk}/drop/")
    assert (refused.status_code, "user:olga" in refused.content.decode()) == (403, False)


def test_events_of_an_earlier_namespace_of_the_name_are_not_shown(bob):
    path = ("open", "again")
    commit([CreateNamespace(namespace=path, properties={"of": SECRET})], actor=SYSTEM)
    old = Namespace.objects.named(path).get()
    commit([DropNamespace(namespace=path)], actor=SYSTEM)
    commit([CreateNamespace(namespace=path, properties={"of": "anybody"})], actor=SYSTEM)
    url = "/admin/catalog/namespace/{}/change/?tab=audit"
    page = content(bob, url.format(Namespace.objects.named(path).get().pk))
    assert ("anybody" in page, SECRET in page) == (True, False)
    page = content(bob, url.format(old.pk))
    assert ("anybody" in page, SECRET in page, "namespace.drop" in page) == (False, True, True)


def test_former_names_in_hidden_namespaces_are_not_shown(bob):
    table = make_table(SECRET, "moved")
    rename = RenameTable(table=(SECRET, "moved"), new=("open", "moved"))
    commit([rename, RenameTable(table=("open", "moved"), new=("open", "last"))], actor=SYSTEM)
    grants.set_grant(
        actor=SYSTEM,
        on=On.namespace(("open",)),
        principal="user:bob",
        privileges=parse(["read"]),
    )
    page = content(bob, f"/admin/catalog/table/{table.pk}/change/?tab=audit")
    assert ("open.moved" in page, SECRET in page) == (True, False)


def test_who_may_see_nothing_is_led_to_a_request(bob):
    hint = "There is no namespace or table yet that you may see."
    assert hint not in content(bob, "/admin/")
    Grant.objects.all().delete()
    page = content(bob, "/admin/")
    assert hint in page
    assert 'href="/admin/my-access/request/"' in page


def test_a_reader_of_everything_sees_no_changes_of_access(bob):
    Principal.objects.filter(name="user:bob").update(level="read")
    AuditEvent.objects.create(actor="user:root", action="api_key.create", target="etl")
    AuditEvent.objects.create(actor="user:root", action="table.create", target="open.t")
    page = content(bob, "/admin/")
    assert ("table.create" in page, "api_key.create" in page) == (True, False)
    Principal.objects.filter(name="user:bob").update(level="admin")
    assert "api_key.create" in content(bob, "/admin/")
