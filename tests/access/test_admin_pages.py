"""Access to every page of the web admin; GET requests change nothing, and POST requests need the
token of an own page."""

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.test import Client

from catalog import access
from catalog.models import Grant, Namespace, Principal
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import registration_operations
from tests.access.admin_pages import (
    GROUPS,
    PAGES,
    RULES,
    Shown,
    make_catalog,
    no_row_changed,
    pages_of,
)
from tests.factories import make_namespace

pytestmark = pytest.mark.usefixtures("warehouse", "_plain_static_files")
each_group = pytest.mark.parametrize("group", GROUPS)
POSTED = {"post": "yes", "action": "delete_selected", "_selected_action": "1", "name": "x"}
HIDDEN = re.compile(r"\b(known_function|known_view|ws|guarded)\b")


def signed_in(*, is_superuser: bool, **options: bool) -> Client:
    """A staff user with every Django permission, which gives no privilege in the catalog."""
    name = "root" if is_superuser else "bob"
    user = User.objects.create_user(name, is_staff=True, is_superuser=is_superuser)
    user.user_permissions.set(Permission.objects.all())
    client = Client(raise_request_exception=False, **options)
    client.force_login(user)
    return client


def grant(privilege: Privilege, *path: str) -> None:
    bob = Principal.objects.get(name="user:bob")
    Grant.objects.create(
        principal=bob, namespace=Namespace.objects.named(path).get(), mask=privilege.value
    )


def test_every_model_of_the_admin_has_a_rule():
    assert set(RULES) == set(admin.site._registry), "say in admin_pages.py who may see it"


def test_every_url_of_the_admin_is_covered_by_a_rule():
    """Includes pages of rows and lists, and the admin's own buttons."""
    routes = {page.route for page in PAGES}
    assert {
        "admin/catalog/table/<path:object_id>/drop/",
        "admin/catalog/trashitem/<path:object_id>/undrop/",
        "admin/auth/user/add/",
        "admin/logout/",
    } <= routes
    of_models = [page for page in PAGES if page.model is not None]
    assert {page.model for page in of_models} == set(RULES)
    assert len(of_models) > 150


@each_group
def test_a_post_without_csrf_token_is_refused(group):
    """A page elsewhere can send the administrator's session cookie, but not the token."""
    make_catalog()
    client = signed_in(is_superuser=True, enforce_csrf_checks=True)
    token = client.get("/admin/auth/user/add/").cookies["csrftoken"].value
    rotten = ("a" if token[0] != "a" else "b") + token[1:]
    elsewhere = {"origin": "https://elsewhere.example.com"}
    for page in pages_of(group):
        url = page.url()
        assert "<" not in url
        with no_row_changed():
            answers = {
                "none": client.post(url, POSTED),
                "wrong": client.post(url, POSTED | {"csrfmiddlewaretoken": rotten}),
                "header": client.post(url, POSTED, headers={"x-csrftoken": rotten}),
                "other origin": client.post(
                    url, POSTED | {"csrfmiddlewaretoken": token}, headers=elsewhere
                ),
            }
        for how, answer in answers.items():
            assert answer.status_code == 403, (url, how, answer.status_code)
            assert "CSRF" in answer.content.decode(), (url, how)


def test_a_post_with_csrf_token_is_accepted():
    make_catalog()
    client = signed_in(is_superuser=True, enforce_csrf_checks=True)
    token = client.get("/admin/catalog/labeldefinition/add/").cookies["csrftoken"].value
    body = {"key": "made", "colour": "red", "csrfmiddlewaretoken": token}
    body |= {"applies_to": ["table"]}
    assert client.post("/admin/catalog/labeldefinition/add/", body).status_code == 302
    table = Namespace.objects.named(("ws",)).get().tables.get(name="t")
    drop = f"/admin/catalog/table/{table.pk}/drop/"
    answer = client.post(drop, {"csrfmiddlewaretoken": token})
    assert answer.status_code != 403


@each_group
def test_get_requests_change_nothing(group):
    make_catalog()
    client = signed_in(is_superuser=True)
    for page in pages_of(group):
        assert not page.is_of_a_row or page.model._default_manager.exists(), page.route
        with no_row_changed():
            answer = client.get(page.url())
        if answer.streaming:
            b"".join(answer.streaming_content)
        assert answer.status_code < 500, page.route


@pytest.mark.parametrize(
    "group", [name for name, model in GROUPS.items() if RULES.get(model) is Shown.ADMINISTRATORS]
)
def test_non_administrators_are_refused_administrator_pages(group):
    """Even principals with all grants and all Django permissions are refused."""
    make_catalog()
    client = signed_in(is_superuser=False)
    grant(Privilege.ALL)
    for page in pages_of(group):
        url = page.url()
        with no_row_changed():
            answers = [client.get(url), client.post(url, POSTED)]
        for answer in answers:
            # The short form of a row's address leads on to the page itself.
            led_on = answer.status_code == 302 and answer["location"].endswith("/change/")
            assert answer.status_code in {403, 404, 405} or led_on, (url, answer.status_code)
    administrator = signed_in(is_superuser=True)
    lists = [page for page in pages_of(group) if page.route.count("/") == 3]
    assert len(lists) == 1
    assert administrator.get(lists[0].url()).status_code == 200


@pytest.mark.parametrize(
    "group",
    [name for name, model in GROUPS.items() if RULES.get(model) in {Shown.BROWSERS, Shown.OWN}],
)
def test_pages_hide_rows_that_may_not_be_browsed(group):
    make_catalog()
    client = signed_in(is_superuser=False)
    make_namespace("mine")
    grant(Privilege.ALL, "mine")
    for page in pages_of(group):
        url = page.url()
        with no_row_changed():
            answers = [client.get(url), client.post(url, POSTED)]
        for answer in answers:
            assert answer.status_code < 500, url
            response = client.get(answer["location"]) if answer.status_code == 302 else answer
            if response.status_code == 302:
                response = client.get(response["location"])
            assert not HIDDEN.findall(response.content.decode()), url
    (list_of_them,) = [page for page in pages_of(group) if page.route.count("/") == 3]
    if RULES[GROUPS[group]] is Shown.OWN:
        bob = access.named("user:bob")
        commit([registration_operations.DeclareTable(table=("mine", "own"))], actor=bob)
        assert "mine.own" in client.get(list_of_them.url()).content.decode()
        return
    grant(Privilege.BROWSE, "ws")
    grant(Privilege.BROWSE, "guarded")
    assert HIDDEN.findall(client.get(list_of_them.url()).content.decode())


def test_users_without_staff_status_are_refused():
    make_catalog()
    user = User.objects.create_user("carl")
    user.user_permissions.set(Permission.objects.all())
    somebody = Client(raise_request_exception=False)
    somebody.force_login(user)
    open_to_all = {"admin/login/", "admin/sign-on/", "admin/sign-on/callback", "admin/logout/"}
    clients = (Client(raise_request_exception=False), somebody)
    for page in PAGES:
        if page.route in open_to_all:
            continue
        url = page.url()
        with no_row_changed():
            answers = [
                answer
                for client in clients
                for answer in (client.get(url), client.post(url, POSTED))
            ]
        for answer in answers:
            is_sent_away = answer.status_code in {301, 302} and (
                "/admin/login/" in answer["location"] or answer["location"] == "/admin/"
            )
            assert is_sent_away or answer.status_code in {403, 404, 405}, (url, answer.status_code)


@pytest.mark.parametrize("column", ["location", "properties", "uuid"])
def test_a_list_is_not_filtered_by_what_its_reader_may_not_see(column):
    """The row is visible to somebody who may browse it, other columns of it are not."""
    make_catalog()
    row = Namespace.objects.named(("ws",)).get().tables.get(name="t")
    value = {"location": row.location, "properties": "{}", "uuid": str(row.uuid)}[column]
    url, client = "/admin/catalog/table/", signed_in(is_superuser=False)
    grant(Privilege.BROWSE, "ws")
    assert str(row) in client.get(url).content.decode()
    assert str(row) in client.get(url, {"format__exact": row.format}).content.decode()
    assert client.get(url, {column: value}).status_code == 400
    assert client.get(url, {f"{column}__exact": value}).status_code == 400
    assert client.get(url, {f"{column}__startswith": value}).status_code == 400
    administrator = signed_in(is_superuser=True)
    assert administrator.get(url, {column: value}).status_code == 200
