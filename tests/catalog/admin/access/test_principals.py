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


def page_of(browser: Client, answer) -> str:
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
def test_a_principal_is_created(browser, kind, name, whole):
    form = {"kind": kind, "name": name, "level": "read", "description": "x"}
    answer = browser.post(f"{LIST}add/", form)
    row = Principal.objects.get(name=whole)
    assert answer["location"] == page_url(row)
    assert (row.kind, row.level, row.description) == (kind, "read", "x")
    event = AuditEvent.objects.get(action="principal.create", target=whole)
    assert (event.actor, event.interface) == ("user:ada", "admin")
    assert whole in page_of(browser, browser.get(LIST))
    assert "exists already" in page_of(browser, browser.post(f"{LIST}add/", form))


@pytest.mark.parametrize("name", ["a:b", "system", "a/b"])
def test_invalid_names_are_refused(browser, name):
    form = {"kind": "service", "name": name, "level": "granted"}
    assert "name" in page_of(browser, browser.post(f"{LIST}add/", form))
    assert [row.name for row in Principal.objects.all()] == ["user:ada"]


def test_a_principal_is_changed_deactivated_and_activated(browser):
    row = principal("etl")
    press(browser, row, "edit", level="admin", description="new", issuer="", subject="")
    row.refresh_from_db()
    assert (row.level, row.description) == ("admin", "new")
    press(browser, row, "deactivate")
    row.refresh_from_db()
    assert not row.is_active
    page = page_of(browser, browser.get(page_url(row)))
    assert "inactive" in page
    assert "/activate/" in page
    assert "/deactivate/" not in page
    press(browser, row, "activate")
    row.refresh_from_db()
    assert row.is_active


def test_groups_and_their_members(browser):
    row, group = principal("etl"), principal("group:data", PrincipalKind.GROUP)
    press(browser, row, "join", group="group:data")
    assert "group:data" in page_of(browser, browser.get(page_url(row)))
    assert "etl" in page_of(browser, browser.get(page_url(group)))
    assert "/join/" not in page_of(browser, browser.get(page_url(group)))
    answer = press(browser, row, "join", group="nobody")
    assert "does not exist" in page_of(browser, answer)
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


def test_the_list_takes_a_fixed_number_of_queries(browser, django_assert_max_num_queries):
    for i in range(20):
        principal(f"p{i}")
    with django_assert_max_num_queries(6):
        browser.get(LIST)
    with django_assert_max_num_queries(8):
        browser.get(page_url(Principal.objects.get(name="p1")))


# --- keys ----------------------------------------------------------------------------------------


def key_of(answer) -> str:
    assert "no-store" in answer["cache-control"]
    match = re.search(r'id="api-key">(mnd_[\w-]+)<', answer.content.decode())
    assert match
    return match[1]


def test_a_key_may_have_fewer_rights_than_its_principal(browser):
    principal("etl", level=PrincipalLevel.ADMIN)
    namespace = make_namespace("nyc", "weather")
    form = {
        "name": "narrow",
        "access": "read",
        "principal": "etl",
        "scopes": ["read", "write"],
        "namespace": "nyc.weather",
    }
    key = key_of(browser.post("/admin/catalog/apikey/add/", form))
    row = ApiKey.objects.get()
    assert known_keys.find_key(key) == row
    assert (row.principal.name, row.scopes, row.namespace) == ("etl", ["write"], namespace)
    page = page_of(browser, browser.get(page_url(row)))
    assert "browse, read, write" in page
    assert "nyc.weather" in page
    assert key not in page + page_of(browser, browser.get("/admin/catalog/apikey/"))


def test_a_key_is_replaced(browser):
    row, old = api_keys.create_api_key(actor=SYSTEM, name="etl")
    key = key_of(press(browser, row, "rotate", hours="2"))
    row.refresh_from_db()
    assert row.replaced_by == known_keys.find_key(key)
    assert known_keys.find_key(old) == row
    assert "etl-2" in page_of(browser, browser.get(page_url(row)))
    assert "already replaced" in page_of(browser, press(browser, row, "rotate", hours="2"))
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


def test_the_name_of_another_principal_is_refused(browser):
    principal("user:bob", PrincipalKind.USER, issuer="https://id.example.com", subject="1")
    answer = browser.post("/admin/auth/user/add/", user_form())
    assert "exists already" in answer.content.decode()
    assert not User.objects.filter(username="bob").exists()


def user_form_of(user: User, **more: str) -> dict[str, str]:
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
def test_the_last_administrator_is_not_removed(browser, change):
    user = User.objects.get()
    url = f"/admin/auth/user/{user.pk}/change/"
    assert "is the last administrator" in page_of(
        browser, browser.post(url, user_form_of(user, **change))
    )
    user.refresh_from_db()
    assert (user.is_active, user.is_superuser) == (True, True)
    answer = browser.post(f"/admin/auth/user/{user.pk}/delete/", {"post": "yes"})
    assert "is the last administrator" in page_of(browser, answer)
    User.objects.create_superuser("eve", password="x")
    browser.post(url, user_form_of(user, **change))
    user.refresh_from_db()
    assert (user.is_active, user.is_superuser) != (True, True)


@pytest.mark.django_db(transaction=True)
def test_a_bulk_delete_does_not_remove_the_last_administrator(browser):
    user = User.objects.get()
    other = User.objects.create_user("bob", password="x")
    chosen = [user.pk, other.pk]
    form = {"action": "delete_selected", "_selected_action": chosen, "post": "yes"}
    answer = browser.post("/admin/auth/user/", form)
    assert "is the last administrator" in page_of(browser, answer)
    assert {row.pk for row in User.objects.all()} == set(chosen)
    assert Principal.objects.count() == 2


def test_the_name_of_a_user_cannot_be_changed(browser):
    user = User.objects.get()
    browser.post(f"/admin/auth/user/{user.pk}/change/", user_form_of(user, username="other"))
    assert [row.username for row in User.objects.all()] == ["ada"]


def test_keys_of_a_deactivated_user_lose_their_rights(browser):
    bob = User.objects.create_user("bob", password="x")
    _, key = api_keys.add_key(actor=SYSTEM, principal="user:bob", name="laptop")
    authentication.authenticate(key)
    browser.post(
        f"/admin/auth/user/{bob.pk}/change/", user_form_of(bob, is_active="", is_superuser="")
    )
    with pytest.raises(Unauthenticated):
        authentication.authenticate(key)
    event = AuditEvent.objects.filter(target="user:bob").latest("pk")
    assert (event.actor, event.after) == ("user:ada", {"is_active": False})


def delete_user(browser: Client, username: str = "bob", **more: object) -> Principal:
    """Delete a user that has a key, a grant and a namespace. Return the principal."""
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


def test_the_principal_of_a_deleted_user_keeps_only_its_name(browser):
    row = delete_user(browser, description="Bob", level="read")
    assert (row.kind, row.is_active, row.level, row.user) == ("user", False, "granted", None)
    assert row.description == "Bob"
    assert not row.keys.exists()
    assert not row.grants.exists()
    assert not row.groups.exists()
    event = AuditEvent.objects.get(action="principal.delete")
    assert (event.actor, event.target) == ("user:ada", "user:bob")
    assert "user:bob" in browser.get(LIST).content.decode()


def test_a_bulk_delete_keeps_the_names_of_users(browser):
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


def test_the_name_of_a_deleted_user_is_not_reused(browser):
    """A new user would get the objects that the name owns. An administrator may allow this."""
    row = delete_user(browser)
    with unchanged():
        answer = browser.post("/admin/auth/user/add/", user_form())
        assert "Activate the principal first" in page_of(browser, answer)
        with pytest.raises(PrincipalAlreadyExists, match="user:bob"):
            User.objects.create_user("bob", password="x")
    assert not User.objects.filter(username="bob").exists()
    principals.update_principal(actor=SYSTEM, name=row.name, is_active=True)
    browser.post("/admin/auth/user/add/", user_form())
    row.refresh_from_db()
    assert row.user == User.objects.get(username="bob")
    mine = Namespace.objects.named(("his",)).get()
    assert access.holds(access.named("user:bob"), Privilege.ALL, mine)


def test_a_name_that_owns_objects_without_a_principal_is_refused(browser):
    """Users that were deleted by older releases left such names."""
    Namespace.objects.filter(pk=make_namespace("his").pk).update(owner="user:bob")
    with unchanged():
        answer = browser.post("/admin/auth/user/add/", user_form())
    assert "Create the principal first" in page_of(browser, answer)
    assert not User.objects.filter(username="bob").exists()
    principal("user:bob", PrincipalKind.USER)
    browser.post("/admin/auth/user/add/", user_form())
    assert Principal.objects.get(name="user:bob").user.username == "bob"


def test_bootstrap_does_not_recreate_a_deleted_user(db, settings, monkeypatch, capsys, tmp_path):
    settings.MONODON_HOME = tmp_path
    settings.MONODON_ADMIN_USER = "first"
    monkeypatch.setattr(bootstrap.Command, "_collect_static", lambda command: None)
    api_keys.create_api_key(
        actor=SYSTEM, name="another"
    )  # an administrator, so that the user may be deleted
    User.objects.create_superuser("first", password="x").delete()
    with unchanged():
        call_command("bootstrap")
    assert "not created. Principal 'user:first'" in capsys.readouterr().out
    assert not User.objects.exists()
