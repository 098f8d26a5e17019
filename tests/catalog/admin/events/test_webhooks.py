"""The pages of webhooks: creation, secrets, deliveries, and replay of dead letters."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import encryption
from catalog.access import SYSTEM
from catalog.models import AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.services.events import webhooks
from tests.cases import shared_cases
from tests.factories import make_namespace

LIST = "/admin/catalog/webhook/"


@pytest.fixture
def hook(db) -> Webhook:
    row, _ = webhooks.create_webhook(
        actor=SYSTEM, name="pager", url="https://example.com/hook", types=["table.*"]
    )
    return row


def add_deliveries(hook: Webhook, count: int, status: DeliveryStatus = DeliveryStatus.DEAD) -> None:
    start = WebhookDelivery.objects.count()
    WebhookDelivery.objects.bulk_create(
        WebhookDelivery(
            webhook=hook,
            event=start + number + 1,
            event_at=timezone.now(),
            type="monodon.table.create",
            target=f"prod.t{number}",
            status=status,
            attempts=14,
            answer="503 not now",
        )
        for number in range(count)
    )


def page_of(hook: Webhook) -> str:
    return f"{LIST}{hook.pk}/change/"


def press(browser: Client, hook: Webhook, name: str, **data: str):
    return browser.post(f"{LIST}{hook.pk}/{name}/", data, follow=True)


def test_the_list_shows_dead_letters_in_a_fixed_number_of_statements(browser, hook):
    make_namespace("prod")
    add_deliveries(hook, 3)
    with CaptureQueriesContext(connection) as first:
        text = browser.get(LIST).content.decode()
    assert "https://example.com/hook" in text
    assert "table.*" in text
    assert ">some</span>" in text
    for number in range(3):
        webhooks.create_webhook(
            actor=SYSTEM, name=f"w{number}", url="https://example.com/", namespace=("prod",)
        )
    with CaptureQueriesContext(connection) as second:
        browser.get(LIST)
    assert len(first) == len(second) == 3


def test_the_secret_of_a_new_webhook_is_shown_once(browser, db):
    make_namespace("prod")
    answer = browser.post(
        LIST + "add/",
        {
            "name": "pager",
            "url": "https://example.com/hook",
            "types": "table.create\ntable.drop",
            "namespace": "prod",
        },
    )
    row = Webhook.objects.get()
    match = re.search(r'id="secret"[^>]*>(whsec_[A-Za-z0-9+/=]+)<', answer.content.decode())
    assert match is not None
    assert encryption.decrypt(bytes(row.secret)) == match[1]
    assert "no-store" in answer["Cache-Control"]
    assert (row.types, str(row.namespace)) == (["table.create", "table.drop"], "prod")
    assert row.created_by == "user:ada"
    assert match[1] not in browser.get(page_of(row)).content.decode()
    assert AuditEvent.objects.filter(action="webhook.create", actor="user:ada").count() == 1


@shared_cases(
    "data",
    [
        {"name": "a", "url": "http://example.com/"},
        {"name": "a", "url": "https://127.0.0.1/"},
        {"name": "a", "url": "https://example.com/", "types": "table.create;"},
        {"name": "a", "url": "https://example.com/", "namespace": "nowhere"},
        {"name": "a", "url": "https://example.com/", "namespace": "a$$b"},
        {"name": "a/b", "url": "https://example.com/"},
        {"name": "", "url": "https://example.com/"},
    ],
)
def test_an_invalid_webhook_is_refused_in_the_form(browser, data):
    answer = browser.post(LIST + "add/", data)
    assert answer.status_code == 200
    assert "whsec_" not in answer.content.decode()
    assert not Webhook.objects.exists()
    assert not AuditEvent.objects.filter(action="webhook.create").exists()


def test_a_webhook_is_changed_and_stopped(browser, hook):
    press(browser, hook, "edit", url="https://example.org/x", types="")
    hook.refresh_from_db()
    assert (hook.url, hook.types, hook.is_active) == ("https://example.org/x", [], False)
    assert "inactive" in browser.get(page_of(hook)).content.decode()

    answer = press(browser, hook, "edit", url="ftp://example.org/", types="", is_active="on")
    assert "must begin with https://" in answer.content.decode()
    hook.refresh_from_db()
    assert (hook.url, hook.is_active) == ("https://example.org/x", False)


def test_a_new_secret_replaces_the_old_one(browser, hook):
    old = bytes(hook.secret)
    text = press(browser, hook, "rotate").content.decode()
    hook.refresh_from_db()
    assert bytes(hook.secret) != old
    assert encryption.decrypt(bytes(hook.secret)) in text


def test_dead_letters_are_listed_separately_and_sent_again(browser, hook):
    add_deliveries(hook, 2, DeliveryStatus.DELIVERED)
    add_deliveries(hook, 3)
    with CaptureQueriesContext(connection) as captured:
        text = browser.get(page_of(hook) + "?tab=dead").content.decode()
    assert len(captured) == 4
    assert text.count("503 not now") == 3
    assert text.count(">dead letter<") == 3
    assert browser.get(page_of(hook)).content.decode().count("503 not now") == 5

    text = press(browser, hook, "replay").content.decode()
    assert "3 dead letters of" in text
    assert sorted(WebhookDelivery.objects.values_list("status", flat=True)) == (
        ["delivered"] * 2 + ["pending"] * 3
    )
    assert "has no dead letter" in press(browser, hook, "replay").content.decode().replace(
        "&#x27;", "'"
    )


def test_deliveries_are_paged(browser, hook):
    add_deliveries(hook, 60)
    listed, url = [], page_of(hook)
    for size in (25, 25, 10):
        text = browser.get(url).content.decode()
        targets = re.findall(r">(prod\.t\d+)<", text)
        assert len(targets) == size
        listed += targets
        following = re.search(r'href="([^"]*)">Next page', text)
        url = page_of(hook) + following[1].replace("&amp;", "&") if following else ""
    assert listed == [f"prod.t{number}" for number in range(59, -1, -1)]
    assert url == ""


def test_a_webhook_is_deleted_with_its_deliveries(browser, hook):
    add_deliveries(hook, 2)
    press(browser, hook, "remove")
    assert not Webhook.objects.exists()
    assert not WebhookDelivery.objects.exists()
    assert AuditEvent.objects.filter(action="webhook.delete").count() == 1


def test_only_administrators_may_use_the_pages(sign_in, hook):
    add_deliveries(hook, 1)
    client = sign_in("BROWSE", "READ", "WRITE", "MANAGE", "GRANT")
    assert client.get(LIST).status_code == 403
    assert client.get(page_of(hook)).status_code == 403
    assert (
        client.post(LIST + "add/", {"name": "x", "url": "https://example.com/"}).status_code == 403
    )
    for name in ("replay", "edit", "rotate", "remove"):
        assert client.post(f"{LIST}{hook.pk}/{name}/", {"url": "https://x.org/"}).status_code == 403
    before = bytes(hook.secret)
    hook.refresh_from_db()
    assert bytes(hook.secret) == before
    assert hook.url == "https://example.com/hook"
    assert WebhookDelivery.objects.get().status == DeliveryStatus.DEAD
    assert Webhook.objects.count() == 1
