"""Events and webhooks over HTTP."""

import gc
import json
from collections import Counter, deque

import pytest

from api.management import event_slots, event_stream
from catalog import access
from catalog.access import SYSTEM
from catalog.models import ApiKey, AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.services.access import api_keys
from catalog.services.engine import audit_records
from catalog.services.events import feed as event_feed
from catalog.services.events import webhook_dispatch
from tests.cases import shared_cases
from tests.factories import make_namespace, make_root, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
HOOK = {"name": "hook", "url": "https://example.com/hook", "types": ["table.*"]}


@pytest.fixture(autouse=True)
def _root():
    make_root()


@pytest.fixture
def far_ahead(monkeypatch):
    """Move the end of the stream, because events of the test's open transaction would be behind it."""
    monkeypatch.setattr(event_feed, "_horizon", lambda: 1 << 62)


@pytest.mark.operation("ListEvents")
def test_events_after_a_position(management, far_ahead):
    make_namespace("ws")
    page = management.get("events?after=0-0")
    assert [event["type"] for event in page["events"]][-1] == "monodon.namespace.create"
    assert page["is_last"] is True
    assert management.get(f"events?after={page['position']}")["events"] == []
    narrow = management.get("events?after=0-0&types=namespace.*&namespace=ws&limit=1")
    assert [event["subject"] for event in narrow["events"]] == ["ws"]
    with unchanged():
        management.refused(400, "invalid-input", "not a position", "GET events?after=never")
        management.refused(400, "invalid-input", "not an event type", "GET events?types=a%20b")
        management.refused(404, "namespace-not-found", "nope", "GET events?namespace=nope")


@pytest.mark.operation("StreamEvents")
def test_a_stream_begins_after_the_last_event(management, far_ahead):
    make_namespace("ws")
    management.refused(400, "invalid-input", "not a position", "GET events/stream?after=x")
    response = management.call("GET", "events/stream?after=0-0")
    try:
        assert response["content-type"] == "text/event-stream"
        lines = iter(response.streaming_content)
        assert next(lines) == b"retry: 1000\n\n"
        first = next(lines).decode()
        position = first.splitlines()[0].removeprefix("id: ")
        assert json.loads(first.split("data: ")[1])["id"] == position
    finally:
        # Not the whole response: that would end the test's own connection.
        response._resource_closers[0]()


def test_a_revoked_key_ends_its_stream(management, far_ahead, monkeypatch):
    monkeypatch.setattr(event_stream, "_TRUST_SECONDS", -1.0)
    monkeypatch.setattr(event_stream, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(event_stream, "_STREAM_SECONDS", 1.0)
    key = ApiKey.objects.get(name="tester")
    position = management.get("events?after=0-0")["position"]
    response = management.client.get(
        f"/management/v1/events/stream?after={position}", headers=management.headers
    )
    lines = iter(response.streaming_content)
    assert next(lines) == b"retry: 1000\n\n"
    assert next(lines).startswith(b"id: ")
    api_keys.revoke_api_key(actor=access.SYSTEM, key=key)
    make_namespace("secret")
    assert list(lines) == []
    assert event_feed.read(actor=SYSTEM, after=event_feed.Position.parse(position)).rows


def test_the_number_of_streams_is_limited(management, settings):
    settings.MONODON_EVENT_STREAMS = 0
    management.refused(503, "service-unavailable", "are in use", "GET events/stream?after=0-0")


def test_the_number_of_streams_of_one_principal_is_limited(management, settings, monkeypatch):
    settings.MONODON_EVENT_STREAMS = 2
    name = ApiKey.objects.get(name="tester").principal.name
    gc.collect()  # ends the streams of other tests
    monkeypatch.setattr(event_slots, "_closed", deque())
    monkeypatch.setattr(event_slots, "_open", Counter({name: 1}))
    answer = management.refused(
        429, "too-many-requests", "1 event streams", "GET events/stream?after=0-0"
    )
    assert event_slots._open == {name: 1}
    assert answer.headers["Retry-After"] == "15"


@pytest.mark.operation("CreateWebhook")
@pytest.mark.operation("GetWebhook")
@pytest.mark.operation("ListWebhooks")
@pytest.mark.operation("UpdateWebhook")
@pytest.mark.operation("DeleteWebhook")
@pytest.mark.operation("RotateWebhookSecret")
def test_a_webhook_is_created_changed_and_deleted(management):
    made = management.post("webhooks", HOOK, status=201)
    assert made["secret"].startswith("whsec_")
    assert made["details"]["types"] == ["table.*"]
    assert management.get("webhooks/hook") == made["details"]
    assert made["secret"] not in json.dumps(management.get("webhooks"))
    stored = Webhook.objects.get()
    assert made["secret"].encode() not in bytes(stored.secret)
    rotated = management.post("webhooks/hook/rotate")["secret"]
    assert rotated != made["secret"]
    changed = management.send("PATCH", "webhooks/hook", {"is_active": False})
    assert (changed["is_active"], changed["types"]) == (False, ["table.*"])
    recorded = json.dumps(list(AuditEvent.objects.values_list("before", "after")))
    assert made["secret"] not in recorded
    assert rotated not in recorded
    management.delete("webhooks/hook")
    with unchanged():
        management.refused(404, "webhook-not-found", "'hook'", "GET webhooks/hook")


@shared_cases(
    ("changed", "detail"),
    [
        ({"name": " "}, "printable"),
        ({"name": "a/b"}, "printable"),
        ({"url": "ftp://example.com"}, "https"),
        ({"url": "http://example.com"}, "https"),
        ({"url": "https://10.0.0.1/x"}, "not a public address"),
        ({"url": "https://[::1]/x"}, "not a public address"),
        ({"url": "https://user:word@example.com"}, "must not contain a user"),
        ({"url": "https://example.com:99999"}, "not a URL"),
        ({"types": ["a b"]}, "not an event type"),
        ({"namespace": []}, ""),
        ({"typo": 1}, "typo"),
    ],
)
def test_invalid_webhooks_are_refused(management, changed, detail):
    if not detail:
        assert management.post("webhooks", HOOK | changed, status=201)
        return
    with unchanged():
        management.refused(400, "invalid-input", detail, "POST webhooks", HOOK | changed)


@pytest.mark.operation("ListDeliveries")
@pytest.mark.operation("ReplayWebhook")
def test_a_replay_sends_dead_letters_again(management):
    management.post("webhooks", HOOK, status=201)
    audit_records.record(SYSTEM, "table.drop", "x")
    event = AuditEvent.objects.order_by("-pk")[0]
    WebhookDelivery.objects.create(
        webhook=Webhook.objects.get(),
        event=event.pk,
        event_at=event.at,
        type="monodon.table.drop",
        target="x",
        status=DeliveryStatus.DEAD,
        attempts=webhook_dispatch.MAX_ATTEMPTS,
        answer="500",
    )
    (letter,) = management.get("webhooks/hook/deliveries?status=dead")["deliveries"]
    assert (letter["status"], letter["answer"]) == ("dead", "500")
    assert management.post("webhooks/hook/replay", {"deliveries": [0]})["deliveries"] == 0
    assert management.post("webhooks/hook/replay", {"dead": True})["deliveries"] == 1
    (letter,) = management.get("webhooks/hook/deliveries")["deliveries"]
    assert (letter["status"], letter["attempts"]) == ("pending", 0)
    assert management.post("webhooks/hook/replay", {"position": "0-0"})["deliveries"] is None
    assert management.get("webhooks/hook")["position"] == "0-0"
    path = "POST webhooks/hook/replay"
    with unchanged():
        management.refused(
            400, "invalid-input", "Use one of", path, {"position": "0-0", "dead": True}
        )
        management.refused(
            400, "invalid-input", "is ahead of webhook", path, {"position": f"{1 << 60}-1"}
        )
