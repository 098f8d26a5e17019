"""Pages of refused and missing URLs name whom to ask and lead on."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalog.models import AuditEvent, Table
from catalog.services.access import users
from tests.factories import make_table


def test_a_refused_page_names_the_owner_and_leads_to_a_request(sign_in):
    make_table("prod", "t")
    Table.objects.update(owner="user:olga")
    client, row = sign_in("read"), Table.objects.get()
    answer = client.get(f"/admin/catalog/table/{row.pk}/drop/")
    text = answer.content.decode()
    assert answer.status_code == 403
    assert "You may not open this page" in text
    assert "<b>user:olga</b>" in text
    assert 'href="/admin/my-access/request/?on=prod.t&amp;kind=table"' in text
    refused = client.get(f"/admin/catalog/namespace/{row.namespace_id}/drop/").content.decode()
    link = "/admin/my-access/request/?on=prod&amp;kind=namespace"
    assert f'href="{link}"' in refused
    form = client.get(link.replace("&amp;", "&")).content.decode()
    assert 'value="namespace" selected' in form
    assert f'href="/admin/catalog/table/{row.pk}/change/"' in text


@pytest.mark.parametrize("url", ["/admin/nothing/", "/admin/catalog/table/999/change/"])
def test_a_missing_page_names_administrators_and_leads_on(sign_in, url):
    User.objects.create_superuser("root")
    answer = sign_in().get(url)
    text = answer.content.decode()
    assert answer.status_code == 404
    assert "<b>user:root</b>" in text
    for link in ("/admin/", "/admin/my-access/", "/admin/catalog/labeldefinition/search/"):
        assert f'href="{link}"' in text


def test_a_missing_page_outside_the_admin_says_nothing_of_people(db):
    User.objects.create_superuser("root")
    answer = Client().get("/nothing", headers={"Accept": "text/html,*/*"})
    assert answer.status_code == 404
    assert "This page does not exist" in answer.content.decode()
    assert "root" not in answer.content.decode()


def test_changes_of_users_are_in_the_audit_trail(browser):
    user = User.objects.create_user("bob", password="a long password", is_staff=True)
    page = f"/admin/auth/user/{user.pk}"
    form = browser.get(f"{page}/change/").content.decode()
    assert "user_permissions" not in form
    assert 'name="groups"' not in form
    browser.post(f"{page}/change/", {"is_active": "on", "email": "bob@example.com"})
    event = AuditEvent.objects.filter(action="user.update").latest("pk")
    assert (event.actor, event.target) == ("user:ada", "user:bob")
    assert event.before == {"is_staff": True, "email": ""}
    assert event.after == {"is_staff": False, "email": "bob@example.com"}
    password = "another long password 7"
    body = {"usable_password": "true", "password1": password, "password2": password}
    assert browser.post(f"{page}/password/", body).status_code == 302
    event = AuditEvent.objects.filter(action="user.update").latest("pk")
    assert (event.actor, event.after) == ("user:ada", {"password": "***"})


def test_a_user_who_changes_the_own_password_is_the_actor(sign_in):
    client = sign_in()
    new = "another long password 7"
    body = {"old_password": "x", "new_password1": new, "new_password2": new}
    assert client.post("/admin/password_change/", body).status_code == 302
    event = AuditEvent.objects.filter(action="user.update").latest("pk")
    assert (event.actor, event.target, event.after) == ("user:bob", "user:bob", {"password": "***"})
    assert users.name_of(User.objects.get(username="bob")) == "user:bob"


def test_a_form_without_token_is_refused_with_a_page(db):
    user = User.objects.create_superuser("ada")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    answer = client.post("/admin/catalog/labeldefinition/add/", {"key": "x"})
    assert answer.status_code == 403
    assert "CSRF token" in answer.content.decode()
