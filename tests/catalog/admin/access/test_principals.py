"""Principals, their keys and their users in the web admin."""

import re

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from catalog import access
from catalog.access import SYSTEM
from catalog.admin.cells import page_url
from catalog.errors import PrincipalAlreadyExists, Unauthenticated
from catalog.management.commands import bootstrap
from catalog.models import (
    ApiKey,
    AuditEvent,
    Grant,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
)
from catalog.privileges import Privilege
from catalog.services.access import api_keys, authentication, known_keys, principals
from tests.factories import make_namespace, unchanged

LIST = "/admin/catalog/principal/"


def principal(name: str, kind: PrincipalKind = PrincipalKind.SERVICE, **more: object) -> Principal:
    return principals.create_principal(actor=SYSTEM, name=name, kind=kind, **more)


def press(browser: Client, row: object, action: str, **form: object):
    url = page_url(row).replace("change/", f"{action}/")
    assert browser.get(url).status_code == 200
    return browser.post(url, form)


def said(browser: Client, answer) -> str:
    if answer.status_code == 302:
        return browser.get(answer["location"]).content.decode()
    return answer.content.decode()


@pytest.mark.parametrize(
    ("kind", "name", "whole"),
    [
        ("service", "etl", "etl"),
        ("group", "data", "group:data"),
        ("user", "grace", "user:grace"),
    ],
)
def test_a_principal_is_made(browser, kind, name, whole):
    form = {"kind": kind, "name": name, "level": "read", "description": "x"}
    answer = browser.post(f"{LIST}add/", form)
    row = Principal.objects.get(name=whole)
    assert answer["location"] == page_url(row)
    assert (row.kind, row.level, row.description) == (kind, "read", "x")
    event = AuditEvent.objects.get(action="principal.create", target=whole)
    assert (event.actor, event.interface) == ("user:ada", "admin")
    assert whole in said(browser, browser.get(LIST))
    assert "exists already" in said(browser, browser.post(f"{LIST}add/", form))


@pytest.mark.parametrize("name", ["a:b", "system", "a/b"])
def test_names_that_nobody_gets(browser, name):
    form = {"kind": "service", "name": name, "level": "granted"}
    assert "name" in said(browser, browser.post(f"{LIST}add/", form))
    assert [row.name for row in Principal.objects.all()] == ["user:ada"]


def test_a_principal_is_changed_deactivated_and_activated(browser):
    row = principal("etl")
    press(browser, row, "edit", level="admin", description="new", issuer="", subject="")
    row.refresh_from_db()
    assert (row.level, row.description) == ("admin", "new")
    press(browser, row, "deactivate")
    row.refresh_from_db()
    assert not row.is_active
    page = said(browser, browser.get(page_url(row)))
    assert "inactive" in page
    assert "/activate/" in page
    assert "/deactivate/" not in page
    press(browser, row, "activate")
    row.refresh_from_db()
    assert row.is_active


def test_groups_and_their_members(browser):
    row, group = principal("etl"), principal("group:data", PrincipalKind.GROUP)
    press(browser, row, "join", group="group:data")
    assert "group:data" in said(browser, browser.get(page_url(row)))
    assert "etl" in said(browser, browser.get(page_url(group)))
    assert "/join/" not in said(browser, browser.get(page_url(group)))
    answer = press(browser, row, "join", group="nobody")
    assert "does not exist" in said(browser, answer)
    press(browser, row, "leave", group="group:data")
    assert not row.groups.exists()


def test_pages_of_principals_are_for_administrators(browser, db):
    row = principal("etl")
    User.objects.create_user("bob", password="x", is_staff=True)
    bob = Client()
    bob.force_login(User.objects.get(username="bob"))
    assert bob.get(LIST).status_code == 403
    assert bob.get(page_url(row)).status_code == 403
    assert (
        bob.post(f"{LIST}add/", {"kind": "service", "name": "x", "level": "admin"}).status_code
        == 403
    )
    assert bob.post(page_url(row).replace("change/", "deactivate/")).status_code == 403
    row.refresh_from_db()
    assert row.is_active
    assert not Principal.objects.filter(name="x").exists()


def test_the_list_costs_a_fixed_number_of_queries(browser, django_assert_max_num_queries):
    for i in range(20):
        principal(f"p{i}")
    with django_assert_max_num_queries(6):
        browser.get(LIST)
    with django_assert_max_num_queries(8):
        browser.get(page_url(Principal.objects.get(name="p1")))


# --- keys ----------------------------------------------------------------------------------------


def shown(answer) -> str:
    assert "no-store" in answer["cache-control"]
    match = re.search(r'id="api-key">(mnd_[\w-]+)<', answer.content.decode())
    assert match
    return match[1]


def test_a_key_for_less_than_its_principal(browser):
    principal("etl", level=PrincipalLevel.ADMIN)
    namespace = make_namespace("nyc", "weather")
    form = {
        "name": "narrow",
        "access": "read",
        "principal": "etl",
        "scopes": ["read", "write"],
        "namespace": "nyc.weather",
    }
    key = shown(browser.post("/admin/catalog/apikey/add/", form))
    row = ApiKey.objects.get()
    assert known_keys.find_key(key) == row
    assert (row.principal.name, row.scopes, row.namespace) == ("etl", ["write"], namespace)
    page = said(browser, browser.get(page_url(row)))
    assert "browse, read, write" in page
    assert "nyc.weather" in page
    assert key not in page + said(browser, browser.get("/admin/catalog/apikey/"))


def test_a_key_is_replaced(browser):
    row, old = api_keys.create_api_key(actor=SYSTEM, name="etl")
    key = shown(press(browser, row, "rotate", hours="2"))
    row.refresh_from_db()
    assert row.replaced_by == known_keys.find_key(key)
    assert known_keys.find_key(old) == row
    assert "etl-2" in said(browser, browser.get(page_url(row)))
    assert "already replaced" in said(browser, press(browser, row, "rotate", hours="2"))
    assert ApiKey.objects.count() == 2


# --- users ---------------------------------------------------------------------------------------


def user_form(**more: str) -> dict[str, str]:
    form = {"username": "bob", "usable_password": "true"}
    return form | {"password1": "long-enough-7", "password2": "long-enough-7"} | more


def test_a_user_gets_a_principal(browser):
    browser.post("/admin/auth/user/add/", user_form())
    row = Principal.objects.get(name="user:bob")
    assert row.user.username == "bob"
    event = AuditEvent.objects.get(action="principal.create", target="user:bob")
    assert event.actor == "user:ada"


def test_a_user_takes_nobodys_name(browser):
    principal("user:bob", PrincipalKind.USER, issuer="https://id.example.com", subject="1")
    answer = browser.post("/admin/auth/user/add/", user_form())
    assert "exists already" in answer.content.decode()
    assert not User.objects.filter(username="bob").exists()


def changed(user: User, **more: str) -> dict[str, str]:
    form = {
        "is_staff": "on",
        "is_active": "on",
        "is_superuser": "on",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
        **more,
    }
    return {name: value for name, value in form.items() if value}


@pytest.mark.parametrize("change", [{"is_active": ""}, {"is_superuser": ""}])
def test_the_last_administrator_stays(browser, change):
    user = User.objects.get()
    url = f"/admin/auth/user/{user.pk}/change/"
    assert "is the last administrator" in said(browser, browser.post(url, changed(user, **change)))
    user.refresh_from_db()
    assert (user.is_active, user.is_superuser) == (True, True)
    answer = browser.post(f"/admin/auth/user/{user.pk}/delete/", {"post": "yes"})
    assert "is the last administrator" in said(browser, answer)
    User.objects.create_superuser("eve", password="x")
    browser.post(url, changed(user, **change))
    user.refresh_from_db()
    assert (user.is_active, user.is_superuser) != (True, True)


@pytest.mark.django_db(transaction=True)
def test_nor_goes_the_last_administrator_among_many(browser):
    user = User.objects.get()
    other = User.objects.create_user("bob", password="x")
    chosen = [user.pk, other.pk]
    form = {"action": "delete_selected", "_selected_action": chosen, "post": "yes"}
    answer = browser.post("/admin/auth/user/", form)
    assert "is the last administrator" in said(browser, answer)
    assert {row.pk for row in User.objects.all()} == set(chosen)
    assert Principal.objects.count() == 2


def test_a_user_keeps_the_name(browser):
    user = User.objects.get()
    browser.post(f"/admin/auth/user/{user.pk}/change/", changed(user, username="other"))
    assert [row.username for row in User.objects.all()] == ["ada"]


def test_who_is_deactivated_loses_the_rights_of_the_keys(browser):
    bob = User.objects.create_user("bob", password="x")
    _, key = api_keys.add_key(actor=SYSTEM, principal="user:bob", name="laptop")
    authentication.authenticate(key)
    browser.post(f"/admin/auth/user/{bob.pk}/change/", changed(bob, is_active="", is_superuser=""))
    with pytest.raises(Unauthenticated):
        authentication.authenticate(key)
    event = AuditEvent.objects.filter(target="user:bob").latest("pk")
    assert (event.actor, event.after) == ("user:ada", {"is_active": False})


def deleted(browser: Client, username: str = "bob", **more: object) -> Principal:
    """What is left of a person whose user was deleted: who had a key, a grant and a namespace."""
    bob = User.objects.create_user(username, password="x")
    row = Principal.objects.get(user=bob)
    Principal.objects.filter(pk=row.pk).update(**more)
    api_keys.add_key(actor=SYSTEM, principal=row.name, name="laptop")
    namespace = make_namespace("his")
    Namespace.objects.filter(pk=namespace.pk).update(owner=row.name)
    Grant.objects.create(principal=row, namespace=make_namespace("others"), mask=1)
    row.groups.add(principal("group:staff", PrincipalKind.GROUP))
    url = f"/admin/auth/user/{bob.pk}/delete/"
    assert "The principal is kept as inactive" in browser.get(url).content.decode()
    browser.post(url, {"post": "yes"})
    assert not User.objects.filter(pk=bob.pk).exists()
    return Principal.objects.get(name=row.name)


def test_of_a_deleted_user_the_name_alone_stays(browser):
    row = deleted(browser, description="Bob", level="read")
    assert (row.kind, row.is_active, row.level, row.user) == ("user", False, "granted", None)
    assert row.description == "Bob"
    assert not row.keys.exists()
    assert not row.grants.exists()
    assert not row.groups.exists()
    event = AuditEvent.objects.get(action="principal.delete")
    assert (event.actor, event.target) == ("user:ada", "user:bob")
    assert "user:bob" in browser.get(LIST).content.decode()


def test_of_many_deleted_users_the_names_stay(browser):
    pks = [User.objects.create_user(name, password="x").pk for name in ("bob", "carl")]
    form = {"action": "delete_selected", "_selected_action": pks}
    assert (
        "The principal is kept as inactive"
        in browser.post("/admin/auth/user/", form).content.decode()
    )
    browser.post("/admin/auth/user/", form | {"post": "yes"})
    assert not User.objects.filter(pk__in=pks).exists()
    inactive = Principal.objects.filter(is_active=False).values_list("name", flat=True)
    assert sorted(inactive) == ["user:bob", "user:carl"]


def test_nobody_gets_the_name_of_a_deleted_user(browser):
    """Nor so what it owns, unless an administrator says so."""
    row = deleted(browser)
    with unchanged():
        answer = browser.post("/admin/auth/user/add/", user_form())
        assert "Activate the principal first" in said(browser, answer)
        with pytest.raises(PrincipalAlreadyExists, match="user:bob"):
            User.objects.create_user("bob", password="x")
    assert not User.objects.filter(username="bob").exists()
    principals.update_principal(actor=SYSTEM, name=row.name, is_active=True)
    browser.post("/admin/auth/user/add/", user_form())
    row.refresh_from_db()
    assert row.user == User.objects.get(username="bob")
    mine = Namespace.objects.named(("his",)).get()
    assert access.holds(access.named("user:bob"), Privilege.ALL, mine)


def test_a_name_without_a_principal_that_owns_something(browser):
    """As those have whose user was deleted before names stayed."""
    Namespace.objects.filter(pk=make_namespace("his").pk).update(owner="user:bob")
    with unchanged():
        answer = browser.post("/admin/auth/user/add/", user_form())
    assert "Create the principal first" in said(browser, answer)
    assert not User.objects.filter(username="bob").exists()
    principal("user:bob", PrincipalKind.USER)
    browser.post("/admin/auth/user/add/", user_form())
    assert Principal.objects.get(name="user:bob").user.username == "bob"


def test_a_start_brings_no_deleted_user_back(db, settings, monkeypatch, capsys, tmp_path):
    settings.MONODON_HOME = tmp_path
    settings.MONODON_ADMIN_USER = "first"
    monkeypatch.setattr(bootstrap.Command, "_collect_static", lambda command: None)
    api_keys.create_api_key(actor=SYSTEM, name="another")  # who administers, so it may go
    User.objects.create_superuser("first", password="x").delete()
    with unchanged():
        call_command("bootstrap")
    assert "not created. Principal 'user:first'" in capsys.readouterr().out
    assert not User.objects.exists()
