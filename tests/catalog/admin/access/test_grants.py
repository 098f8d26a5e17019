"""Grants in the admin: visibility of pages, setting a grant, and the preview of a removal."""

import re
from datetime import timedelta

import pytest
from django.contrib import admin
from django.test import Client
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, On
from catalog.models import (
    AuditEvent,
    Grant,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
    Table,
)
from catalog.privileges import Privilege, closure
from catalog.services.access import grants
from catalog.services.engine import audit_records
from catalog.services.iceberg import functions
from catalog.services.iceberg.functions import Content
from tests.access.iceberg_examples import DEFINITION
from tests.api.management import examples as management_examples
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged

NONE_IN_THE_EXAMPLES = {"materializedview"}
TABLES, NAMESPACES = "/admin/catalog/table/", "/admin/catalog/namespace/"


def url(row: Table | Namespace, action: str = "change") -> str:
    noun = "table" if isinstance(row, Table) else "namespace"
    return f"/admin/catalog/{noun}/{row.pk}/{action}/"


def text(answer) -> str:
    assert answer.status_code == 200, answer
    return answer.content.decode()


def grant(principal: str, on: On, privileges: Privilege) -> None:
    grants.set_grant(actor=SYSTEM, on=on, principal=principal, privileges=privileges)


@pytest.fixture
def row(db, warehouse) -> Table:
    Principal.objects.create(name="etl", kind=PrincipalKind.SERVICE)
    make_table("other", "secret")
    return make_table("prod", "t")


def test_lists_and_pages_contain_only_objects_that_may_be_browsed(sign_in, row):
    bob = sign_in()
    grant("user:bob", On.table(("prod", "t")), Privilege.BROWSE)
    listed = text(bob.get(TABLES))
    assert "prod.t" in listed
    assert "other.secret" not in listed
    assert row.location not in listed
    tree = text(bob.get(NAMESPACES))
    assert ">prod<" in tree.replace(" ", "").replace("\n", "")
    assert ">other<" not in tree.replace(" ", "").replace("\n", "")
    page = text(bob.get(url(row)))
    assert "You may browse this table, but not read it." in page
    assert row.location not in page
    hidden = Table.objects.get(name="secret")
    absent = url(hidden).replace(str(hidden.pk), "987654")
    answers = [bob.get(path) for path in (url(hidden), absent)]
    assert [answer.status_code for answer in answers] == [404, 404]
    for action in ("drop", "rename", "grant", "policy", "compact"):
        with unchanged():
            assert bob.post(url(row, action), {"name": "u"}).status_code == 403
            assert bob.post(url(hidden, action)).status_code in {403, 404}
    namespace = row.namespace
    passing = text(bob.get(url(namespace)))
    assert "Properties" not in passing
    assert ">t<" in passing.replace(" ", "").replace("\n", "")


@pytest.mark.parametrize(
    ("privilege", "offered"),
    [
        (Privilege.READ, set()),
        (Privilege.GRANT, {"grant"}),
        (Privilege.MAINTAIN, {"policy"}),
        (Privilege.MANAGE, {"policy", "repair", "rename", "deregister", "drop"}),
        (Privilege.ALL, {"grant", "policy", "repair", "rename", "deregister", "drop"}),
    ],
)
def test_buttons_depend_on_the_privileges_on_the_row(sign_in, row, privilege, offered):
    bob = sign_in()
    grant("user:bob", On.table(("prod", "t")), privilege)
    page = text(bob.get(url(row)))
    buttons = {
        action
        for action in ("grant", "policy", "repair", "rename", "deregister", "drop")
        if url(row, action) in page
    }
    assert buttons == offered
    may_see = bool(privilege & (Privilege.GRANT | Privilege.MANAGE))
    assert ("tab=access" in page) == may_see


@pytest.mark.parametrize("on_table", [True, False])
def test_a_grant_is_set_on_the_page(browser, row, on_table):
    target = row if on_table else row.namespace
    answer = browser.post(
        url(target, "grant"), {"principal": "etl", "privileges": ["write", "maintain"]}
    )
    assert answer.status_code == 302
    assert answer.headers["location"] == url(target) + "?tab=access"
    grant = Grant.objects.get()
    assert grant.privileges == closure(Privilege.WRITE | Privilege.MAINTAIN)
    assert (grant.target, grant.granted_by) == (target, "user:ada")
    assert AuditEvent.objects.latest("pk").action == "grant.set"
    page = text(browser.get(url(target) + "?tab=access"))
    for fragment in ("Direct grants", "etl", "write, maintain", f"grant on {target}"):
        assert fragment in page


def test_a_removal_previews_the_lost_access(browser, row):
    grant("etl", On.namespace(("prod",)), Privilege.WRITE)
    form = f"{url(row.namespace, 'grant')}?principal=etl&remove=1"
    assert 'value="etl"' in text(browser.get(form))
    with unchanged():
        warning = text(browser.post(form, {"principal": "etl", "privileges": []}))
    assert "etl loses write, and sight of 1 namespace and 1 table" in warning
    seen = re.search('name="confirmed" value="([^"]+)"', warning)[1]
    # Another effect than the one of the page is not confirmed.
    grant("etl", On.namespace(("prod",)), Privilege.MANAGE)
    with unchanged():
        warning = text(browser.post(form, {"principal": "etl", "confirmed": seen}))
    assert "etl loses manage" in warning
    seen = re.search('name="confirmed" value="([^"]+)"', warning)[1]
    answer = browser.post(form, {"principal": "etl", "privileges": [], "confirmed": seen})
    assert answer.status_code == 302
    assert not Grant.objects.exists()


def test_an_edited_grant_keeps_its_end(browser, row):
    grant("etl", On.table(("prod", "t")), Privilege.READ)
    end = timezone.now() + timedelta(days=2, hours=3)
    Grant.objects.update(expires_at=end)
    form = url(row, "grant")
    assert 'name="days" value="3"' in text(browser.get(f"{form}?principal=etl"))
    data = {"principal": "etl", "privileges": ["read", "maintain"], "days": "3"}
    assert browser.post(form, data).status_code == 302
    edited = Grant.objects.get()
    assert edited.privileges == closure(Privilege.READ | Privilege.MAINTAIN)
    assert edited.expires_at == end
    assert browser.post(form, data | {"days": "5"}).status_code == 302
    assert Grant.objects.get().expires_at > end + timedelta(days=2)


def test_an_invalid_grant_is_reported_as_a_message(browser, sign_in, row):
    with unchanged():
        answer = browser.post(url(row, "grant"), {"principal": "no", "privileges": ["read"]})
    assert "&#x27;no&#x27; does not exist" in text(answer)
    bob = sign_in()
    grant("user:bob", On.table(("prod", "t")), Privilege.GRANT)
    with unchanged():
        answer = bob.post(url(row, "grant"), {"principal": "etl", "privileges": ["manage"]})
    assert "does not hold" in text(answer)


def test_a_namespace_is_created_by_a_user_with_create(sign_in, db, warehouse):
    parent = make_namespace("prod")
    bob = sign_in()
    grant("user:bob", On.namespace(("prod",)), Privilege.CREATE)
    add = f"{NAMESPACES}add/?parent={parent.pk}"
    assert bob.post(add, {"name": "new", "properties": ""}).status_code == 302
    assert Namespace.objects.named(("prod", "new")).get().owner == "user:bob"
    with unchanged():
        assert bob.post(f"{NAMESPACES}add/", {"name": "x"}).status_code in {200, 403}


@pytest.fixture
def stranger(sign_in, warehouse) -> Client:
    """A user without grants, in a catalog with rows of every kind."""
    management_examples.make_catalog()
    make_iceberg_table("ws", "iceberg")
    functions.create_function(
        actor=SYSTEM, function=("ws", "f"), content=Content(definitions=[DEFINITION], doc="")
    )
    return sign_in()


admin.autodiscover()
OURS = [model for model in admin.site._registry if model._meta.app_label == "catalog"]


@shared_cases("model", OURS, ids=[model._meta.model_name for model in OURS])
def test_users_without_grants_see_no_rows(stranger, model):
    rows = list(model._default_manager.all()[:4])
    if model is Namespace:  # the existence of the root is not secret
        rows = [row for row in rows if row.path]
    assert rows or model._meta.model_name in NONE_IN_THE_EXAMPLES
    noun = f"/admin/catalog/{model._meta.model_name}/"
    listed = stranger.get(noun)
    assert listed.status_code in {200, 403}
    text_of_list = listed.content.decode()
    for row in rows:
        with unchanged():
            page = stranger.get(f"{noun}{row.pk}/change/")
        assert page.status_code == (404 if listed.status_code == 200 else 403), row
        assert f"{noun}{row.pk}/" not in text_of_list
        absent = stranger.get(f"{noun}987654321/change/")
        assert absent.status_code == page.status_code


@pytest.fixture
def team(row) -> Principal:
    """A group with 23 members, of whom the first 20 by name may read everything anyway."""
    group = Principal.objects.create(name="group:team", kind=PrincipalKind.GROUP)
    members = Principal.objects.bulk_create(
        Principal(
            name=f"user:m{number:02}",
            kind=PrincipalKind.USER,
            level=PrincipalLevel.READ if number < 20 else PrincipalLevel.GRANTED,
        )
        for number in range(23)
    )
    group.members.set(members)
    grant("group:team", On.table(("prod", "t")), Privilege.READ)
    return group


def test_a_loss_of_members_that_are_not_shown_has_to_be_confirmed(browser, row, team):
    form = {"principal": "group:team", "privileges": []}
    with unchanged():
        page = text(browser.post(url(row, "grant"), form))
    assert "user:m" not in page
    assert (
        "3 more members of the group, whose other grants were not examined, may lose read" in page
    )
    (digest,) = re.findall(r'name="confirmed" value="(\w+)"', page)
    Principal.objects.create(name="user:n", kind=PrincipalKind.USER).groups.add(team)
    with unchanged():
        assert "4 more members" in text(
            browser.post(url(row, "grant"), form | {"confirmed": digest})
        )
    Principal.objects.get(name="user:n").groups.clear()
    assert browser.post(url(row, "grant"), form | {"confirmed": digest}).status_code == 302
    assert not Grant.objects.filter(principal=team).exists()


def test_a_preview_states_how_many_members_it_leaves_out(browser, row, team):
    form = {"principal": "group:team", "privileges": ["read", "write"], "preview": ""}
    with unchanged():
        page = text(browser.post(url(row, "grant"), form))
    assert "user:m19: read now, write afterwards" in page
    assert "user:m20" not in page
    assert "the first 20 members by name were examined" in page
    assert "changes for 3 more members too" in page
    del form["preview"]
    assert browser.post(url(row, "grant"), form).status_code == 302  # nobody can lose anything


def test_a_withdrawal_shows_until_when_credentials_are_valid(browser, row):
    grant("etl", On.table(("prod", "t")), Privilege.READ)
    until = timezone.now() + timedelta(minutes=50)
    audit_records.record(
        access.Principal("etl"),
        "credentials.issue",
        "prod.t",
        table=row,
        after={"client_access": "sts", "until": until.isoformat(timespec="seconds")},
    )
    sentence = f"keep access until {until:%Y-%m-%d %H:%M:%S} UTC"
    form = {"principal": "etl", "privileges": []}
    with unchanged():
        page = text(browser.post(url(row, "grant"), form))
    assert sentence in page
    (digest,) = re.findall(r'name="confirmed" value="(\w+)"', page)
    browser.post(url(row, "grant"), form | {"confirmed": digest})
    assert sentence in text(browser.get(url(row)))
    etl = Principal.objects.get(name="etl")
    assert sentence in text(browser.get(f"/admin/catalog/principal/{etl.pk}/deactivate/"))
