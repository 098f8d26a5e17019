"""Every form of the admin that changes rows leaves an event in the audit trail."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from catalog.access import SYSTEM
from catalog.models import AuditEvent, TrashItem
from catalog.services.access import api_keys
from tests.access.admin_pages import OF_DJANGO, PAGES, make_catalog
from tests.factories import fingerprint

FORMS: dict[str, dict[str, object]] = {
    "auth/user/add": {"username": "new", "usable_password": "false"},
    "auth/user/change": {"is_active": "on", "is_superuser": "on", "email": "a@example.com"},
    "auth/user/password": {
        "usable_password": "true",
        "password1": "a long password 7",
        "password2": "a long password 7",
    },
    "catalog/apikey/add": {"name": "new", "access": "granted"},
    "catalog/apikey/revoke": {},
    "catalog/apikey/rotate": {"hours": "1"},
    "catalog/approvalrequest/approve": {},
    "catalog/approvalrequest/refuse": {"reason": "no"},
    "catalog/engineprofile/add": {
        "name": "new",
        "master": "local",
        "cores": "4",
        "concurrency": "1",
    },
    "catalog/engineprofile/edit": {"master": "local", "cores": "4", "concurrency": "1"},
    "catalog/engineprofile/remove": {},
    "catalog/function/drop": {},
    "catalog/job/retry": {},
    "catalog/labeldefinition/add": {"key": "new", "colour": "red", "applies_to": ["table"]},
    "catalog/labeldefinition/edit": {"colour": "red", "applies_to": ["table"]},
    "catalog/labeldefinition/remove": {},
    "catalog/namespace/add": {"name": "new"},
    "catalog/namespace/describe": {"description": "new"},
    "catalog/namespace/grant": {"principal": "known", "privileges": ["read"], "confirmed": "1"},
    "catalog/namespace/label": {"label": "known", "values": "a"},
    "catalog/namespace/policy": {"keep_versions": "9"},
    "catalog/namespace/rules": {"retention": "14 days", "purge": "on"},
    "catalog/principal/add": {"kind": "group", "name": "new", "level": "granted"},
    "catalog/principal/deactivate": {},
    "catalog/principal/edit": {"level": "granted", "description": "new"},
    "catalog/storageprofile/remove": {},
    "catalog/table/deregister": {},
    "catalog/table/describe": {"description": "new"},
    "catalog/table/drop": {},
    "catalog/table/grant": {"principal": "known", "privileges": ["read"], "confirmed": "1"},
    "catalog/table/label": {"label": "known", "values": "a"},
    "catalog/table/policy": {"keep_versions": "9"},
    "catalog/table/protect": {},
    "catalog/table/rename": {"namespace": "ws", "name": "new"},
    "catalog/table/compact": {},
    "catalog/table/measure": {},
    "catalog/trashitem/keep": {},
    "catalog/trashitem/undrop": {"name": "ws$back"},
    "catalog/webhook/add": {"name": "new", "url": "https://example.com/new"},
    "catalog/webhook/remove": {},
    "catalog/webhook/rotate": {},
    "django_celery_beat/periodictask/delete_task": {},
    "my-access/keys/add": {"name": "new", "scope": "reader", "everywhere": "on", "days": "90"},
    "my-access/keys/revoke": {},
    "my-access/keys/rotate": {"hours": "1"},
    "my-access/request": {"on": "ws.t", "kind": "table", "role": "reader", "reason": "x"},
    "password_change": {
        "old_password": "x",
        "new_password1": "a long password 7",
        "new_password2": "a long password 7",
    },
}
"""Valid data of forms whose success changes rows."""
UPKEEP = {"catalog/table/repair"}
"""Moves the manifests of commits that are in the trail, as every reader does."""
POSTED = {"post": "yes", "name": "x"}
_LEAVES = (
    "login",
    "logout",
    "sign-on",
    "callback",
    "history",
    "jsi18n",
    "autocomplete",
    "change",
    "add",
)


def name_of(route: str) -> str:
    """The route without the numbers of rows: ``catalog/table/drop``."""
    segments = [text for text in route.split("/")[1:] if text and "<" not in text]
    return "/".join(segments)


@pytest.mark.usefixtures("warehouse", "_plain_static_files")
def test_every_form_that_changes_rows_is_in_the_audit_trail(db):
    make_catalog()
    user = User.objects.create_superuser("ada", password="x")
    User.objects.create_superuser("grace")
    client = Client()
    client.force_login(user)
    own_key, _ = api_keys.add_key(actor=SYSTEM, principal="user:ada", name="own")
    TrashItem.objects.update(purge_at="2100-01-01T00:00:00Z")
    own = {"my-access/keys/revoke", "my-access/keys/rotate"}
    pages = {name_of(page.route): page for page in PAGES}
    assert set(FORMS) <= set(pages)
    watched = tuple(model for model in OF_DJANGO if model is not LogEntry)
    unaudited, idle = [], []
    before = (fingerprint(), fingerprint(watched))
    # A new password ends the session, which the rollback does not bring back.
    for name, page in sorted(pages.items(), key=lambda item: "password" in item[0]):
        if name not in FORMS and (name.endswith(_LEAVES) or "(" in page.route):
            continue
        if "password" in name:
            client.force_login(user)
            before = (fingerprint(), fingerprint(watched))
        url = page.url()
        if name in own:
            url = f"/admin/my-access/keys/{own_key.pk}/{name[15:]}/"
        with transaction.atomic():
            events = AuditEvent.objects.count()
            client.post(url, FORMS.get(name, POSTED))
            is_changed = (fingerprint(), fingerprint(watched)) != before
            is_audited = AuditEvent.objects.count() > events
            transaction.set_rollback(True)
        if is_changed and not is_audited and name not in UPKEEP:
            unaudited.append(name)
        if name in FORMS and not is_changed:
            idle.append(name)
    assert unaudited == []
    assert idle == []
