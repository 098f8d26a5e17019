"""Webhooks: each selected event is delivered after its commit, only to its receiver, until
accepted."""

import base64
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.utils import timezone
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from catalog.access import SYSTEM, Principal
from catalog.errors import (
    InvalidInput,
    NamespaceNotFound,
    PermissionDenied,
    WebhookNotFound,
)
from catalog.models import AuditEvent, DeliveryStatus, PrincipalLevel, Webhook, WebhookDelivery
from catalog.services.access import api_keys, authentication
from catalog.services.engine import audit_records, locks
from catalog.services.engine.commit import commit
from catalog.services.events import feed as event_feed
from catalog.services.events import webhook_delivery, webhook_dispatch, webhooks
from catalog.services.tables import namespace_operations
from tests.factories import make_namespace, make_root, make_table, unchanged, wait_for_readers
from tests.receiver import Handler, Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def receiver(settings) -> Iterator[Receiver]:
    settings.MONODON_WEBHOOK_HOSTS = {"127.0.0.1"}
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _root(transactional_db) -> None:
    make_root()


def fan_out() -> int:
    wait_for_readers()
    return webhook_dispatch.fan_out()


def hook(receiver: Receiver, name: str = "pager", **options: Any) -> str:
    """Create a webhook; return its secret."""
    wait_for_readers()
    options.setdefault("types", ("test.*",))
    _, secret = webhooks.create_webhook(actor=SYSTEM, name=name, url=receiver.url, **options)
    return secret


def add_event(*targets: str, action: str = "test.done") -> None:
    for target in targets:
        audit_records.record(SYSTEM, action, target)


def deliver() -> int:
    """Send all due deliveries, as the periodic task does."""
    fan_out()
    count = 0
    while sent := webhook_dispatch.deliver():
        count += sent
    return count


def make_due() -> None:
    """Make deliveries due that wait for a retry or are claimed."""
    WebhookDelivery.objects.update(due_at=timezone.now() - timedelta(seconds=1))


def delivery() -> WebhookDelivery:
    return WebhookDelivery.objects.get()


# --- deliveries ----------------------------------------------------------------------------------


def test_each_event_is_delivered_once_as_a_cloud_event(receiver):
    add_event("before")
    hook(receiver, types=())
    table = make_table("ws", "t")
    assert deliver() == len(receiver.got)
    # Deliveries are sent concurrently, in any order.
    assert sorted(receiver.types) == ["namespace.create", "table.declare", "webhook.create"]
    headers, body, path = receiver.got[receiver.types.index("table.declare")]
    event = json.loads(body)
    row = AuditEvent.objects.get(action="table.declare")
    assert event == event_feed.as_cloud_event(row)
    assert event["data"]["table_uuid"] == str(table.uuid)
    assert headers["webhook-id"] == event["id"]
    assert headers["content-type"] == "application/cloudevents+json"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert path == "/hook?of=tests"
    assert deliver() == 0
    assert set(WebhookDelivery.objects.values_list("status", "attempts", "answer")) == {
        (DeliveryStatus.DELIVERED, 1, "204")
    }


def test_concurrent_fan_out_is_complete_without_duplicates(receiver, monkeypatch):
    monkeypatch.setattr(event_feed, "_LOOKED_AT", 7)
    hook(receiver)
    add_event(*(f"e{number}" for number in range(40)))
    gate = threading.Barrier(4)

    def run() -> None:
        try:
            gate.wait(30)
            for _ in range(6):
                fan_out()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fan_out()
    targets = WebhookDelivery.objects.order_by("pk").values_list("target", flat=True)
    assert list(targets) == [f"e{number}" for number in range(40)]
    assert fan_out() == 0


def test_a_bounded_pass_is_continued_by_the_next(receiver, monkeypatch):
    monkeypatch.setattr(event_feed, "_LOOKED_AT", 2)
    monkeypatch.setattr(webhook_dispatch, "_PAGES", 3)
    hook(receiver, types=("test.*",))
    add_event(*"abcdefghi")
    assert fan_out() == 5  # after webhook.create
    assert fan_out() == 4


def test_only_one_pass_of_a_webhook_runs_at_a_time(receiver):
    hook(receiver)
    add_event("a")
    inside, finished = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.advisory_lock("webhooks") as is_alone:
            assert is_alone
            inside.set()
            finished.wait(30)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(30)
    assert fan_out() == 0
    assert not WebhookDelivery.objects.exists()
    finished.set()
    thread.join()
    assert fan_out() == 1


def test_deliveries_are_filtered_by_type_and_namespace(receiver):
    make_namespace("ws")
    make_namespace("other")
    hook(receiver, "tables", types=("table.*",))
    hook(receiver, "inside", types=(), namespace=("ws",))
    hook(receiver, "drops", types=("table.drop", "namespace.drop"))
    make_table("ws", "t")
    make_table("other", "u")
    deliver()
    deliveries = WebhookDelivery.objects.order_by("pk")
    of = {name: deliveries.filter(webhook__name=name) for name in ("tables", "inside", "drops")}
    assert list(of["tables"].values_list("target", flat=True)) == ["ws.t", "other.u"]
    assert list(of["inside"].values_list("target", flat=True)) == ["ws.t"]
    assert not of["drops"].exists()


def test_a_dropped_namespace_stops_only_its_own_webhook(receiver):
    make_namespace("ws")
    hook(receiver, "inside", types=(), namespace=("ws",))
    hook(receiver, "zz")
    commit([namespace_operations.DropNamespace(namespace=("ws",))], actor=SYSTEM)
    add_event("a")
    assert deliver() == 1
    assert delivery().webhook.name == "zz"
    # Events of another namespace of the name are not sent, either.
    make_namespace("ws")
    add_event("ws.t")
    deliver()
    assert not WebhookDelivery.objects.filter(webhook__name="inside").exists()


def test_inactive_webhooks_wait(receiver):
    hook(receiver)
    off = webhooks.Changes(is_active=False)
    webhooks.update_webhook(actor=SYSTEM, name="pager", changes=off)
    add_event("a")
    assert deliver() == 0
    webhooks.update_webhook(actor=SYSTEM, name="pager", changes=webhooks.Changes(is_active=True))
    assert deliver() == 1
    assert [event["subject"] for event in receiver.events] == ["a"]


# --- signatures ----------------------------------------------------------------------------------


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Check a signature with the library that docs/events.md recommends."""
    try:
        Verifier(secret).verify(body, headers, json_parse=False)
    except WebhookVerificationError:
        return False
    return True


def test_deliveries_are_signed_with_the_current_secret(receiver):
    old = hook(receiver)
    assert len(base64.b64decode(old.removeprefix("whsec_"))) == 32
    add_event("a")
    receiver.answers = [500]
    deliver()
    new = webhooks.rotate_secret(actor=SYSTEM, name="pager")
    assert new != old
    make_due()
    deliver()
    (first, body, _), (second, again, _) = receiver.got
    assert body == again
    assert is_signed(old, first, body)
    assert not is_signed(new, first, body)
    assert is_signed(new, second, body)
    assert not is_signed(new, second, body + b" ")
    assert abs(int(second["webhook-timestamp"]) - time.time()) < 120
    assert first["webhook-id"] == second["webhook-id"]


# --- failed deliveries ---------------------------------------------------------------------------


def test_failed_deliveries_are_retried_and_become_dead_letters(receiver):
    hook(receiver)
    add_event("a")
    receiver.answers = [503] * webhook_dispatch.MAX_ATTEMPTS
    fan_out()
    pauses = []
    for attempt in range(1, webhook_dispatch.MAX_ATTEMPTS + 1):
        assert webhook_dispatch.deliver() == 1
        assert webhook_dispatch.deliver() == 0  # not yet
        row = delivery()
        assert (row.attempts, row.answer) == (attempt, "503")
        pauses.append((row.due_at - timezone.now()).total_seconds())
        make_due()
    assert row.status == DeliveryStatus.DEAD
    expected = [min(5 * 2**number, 3600) for number in range(webhook_dispatch.MAX_ATTEMPTS - 1)]
    assert all(want - 60 < pause <= want for pause, want in zip(pauses, expected, strict=False))
    assert 24 * 3600 < sum(expected) < 25 * 3600  # receivers may be unreachable for a day
    assert webhook_dispatch.deliver() == 0

    assert webhooks.replay(actor=SYSTEM, name="pager") == 1
    assert deliver() == 1
    row = delivery()
    assert (row.status, row.attempts, row.answer) == (DeliveryStatus.DELIVERED, 1, "204")
    assert len(receiver.got) == webhook_dispatch.MAX_ATTEMPTS + 1
    with unchanged():
        assert webhooks.replay(actor=SYSTEM, name="pager") == 0


def test_status_410_disables_the_webhook_and_is_audited(receiver):
    hook(receiver)
    add_event("a", "b")
    receiver.answers = [410, 410]
    assert deliver() == 2
    assert not Webhook.objects.get().is_active
    (row,) = AuditEvent.objects.filter(action="webhook.stop")
    assert (row.actor, row.target, row.after) == ("system", "pager", {"answer": "410"})
    assert set(WebhookDelivery.objects.values_list("status", flat=True)) == {DeliveryStatus.DEAD}
    add_event("c")
    assert deliver() == 0


def test_status_410_of_a_former_url_does_not_disable_the_webhook(receiver):
    hook(receiver)
    add_event("a")

    def moved(handler: Handler) -> None:
        Webhook.objects.update(url=receiver.url + "&new=1")
        connections.close_all()
        handler.send_response(410)
        handler.end_headers()

    receiver.answers = [moved]
    deliver()
    assert Webhook.objects.get().is_active


def test_selected_dead_letters_are_replayed(receiver):
    hook(receiver)
    add_event("a", "b", "c")
    fan_out()
    WebhookDelivery.objects.update(status=DeliveryStatus.DEAD)
    b = WebhookDelivery.objects.get(target="b")
    assert webhooks.replay(actor=SYSTEM, name="pager", deliveries=[b.pk, b.pk + 10_000]) == 1
    deliver()
    assert [event["subject"] for event in receiver.events] == ["b"]
    (row,) = AuditEvent.objects.filter(action="webhook.replay")
    assert row.after == {"deliveries": 1}


def test_replay_from_a_position_delivers_later_events_again(receiver):
    hook(receiver)
    add_event("a")
    deliver()
    wait_for_readers()
    position = event_feed.newest_position()
    add_event("b", "c")
    deliver()
    webhooks.replay_from(actor=SYSTEM, name="pager", position=position)
    assert deliver() == 2
    assert sorted(event["subject"] for event in receiver.events) == ["a", "b", "b", "c", "c"]
    assert len({event["id"] for event in receiver.events}) == 3
    webhooks.replay_from(actor=SYSTEM, name="pager", position=event_feed.BEGINNING)
    assert deliver() == 3
    ahead = event_feed.Position(1 << 61, 0)
    with unchanged(), pytest.raises(InvalidInput, match="is ahead of webhook"):
        webhooks.replay_from(actor=SYSTEM, name="pager", position=ahead)


def test_an_event_missing_from_the_trail_is_a_dead_letter(receiver):
    hook(receiver)
    add_event("a")
    fan_out()
    WebhookDelivery.objects.update(event=F("event") + 1_000_000)
    assert webhook_dispatch.deliver() == 1
    assert (delivery().status, delivery().answer) == (
        DeliveryStatus.DEAD,
        "the event is no longer in the audit trail",
    )
    assert receiver.got == []


def test_an_expired_claim_is_taken_over_by_another_sender(receiver):
    hook(receiver)
    add_event("a")
    fan_out()
    assert len(webhook_dispatch._claim()) == 1  # the sender dies
    assert webhook_dispatch.deliver() == 0
    assert delivery().due_at > timezone.now() + timedelta(minutes=1)
    make_due()
    assert webhook_dispatch.deliver() == 1
    assert (delivery().status, delivery().attempts) == (DeliveryStatus.DELIVERED, 2)


def test_two_senders_share_the_deliveries(receiver):
    hook(receiver)
    add_event(*(f"e{number}" for number in range(60)))
    fan_out()
    gate = threading.Barrier(3)

    def run() -> None:
        try:
            gate.wait(30)
            while webhook_dispatch.deliver():
                pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(event["subject"] for event in receiver.events) == sorted(
        f"e{number}" for number in range(60)
    )
    assert set(WebhookDelivery.objects.values_list("attempts", flat=True)) == {1}


def test_a_late_failure_does_not_undo_anothers_delivery(receiver):
    hook(receiver)
    add_event("a")
    fan_out()
    (late,) = webhook_dispatch._claim()
    make_due()
    assert webhook_dispatch.deliver() == 1
    late.attempts = webhook_dispatch.MAX_ATTEMPTS
    webhook_dispatch._record_outcome(late, webhook_dispatch._Outcome(False, "503 too late"))
    assert (delivery().status, delivery().answer) == (DeliveryStatus.DELIVERED, "204")


def test_a_busy_receiver_does_not_starve_the_others(receiver):
    hook(receiver, "much", types=("much.*",))
    hook(receiver, "little", types=("little.*",))
    add_event(*(str(number) for number in range(200)), action="much.n")
    add_event("x", action="little.n")
    fan_out()
    assert webhook_dispatch.deliver() < 60
    assert "little.n" in receiver.types


# --- hostile receivers ---------------------------------------------------------------------------


def test_redirects_are_not_followed(receiver):
    hook(receiver)
    add_event("a")

    def elsewhere(handler: Handler) -> None:
        handler.send_response(307)
        handler.send_header("location", f"http://127.0.0.1:{receiver.port}/secret")
        handler.end_headers()

    receiver.answers = [elsewhere]
    deliver()
    assert [path for _, _, path in receiver.got] == ["/hook?of=tests"]
    assert (delivery().status, delivery().answer) == (DeliveryStatus.PENDING, "307")


def endless(handler: Handler) -> None:
    """Send a gigabyte per second until the connection is closed."""
    handler.send_response(500)
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"spam \x1b[31m" * 10_000)
    except OSError:
        pass


def test_a_huge_answer_is_truncated(receiver):
    hook(receiver)
    add_event("a")
    receiver.answers = [endless]
    deliver()
    assert delivery().answer.startswith("500 spam  [31mspam")
    assert len(delivery().answer) <= webhook_delivery.MAX_ANSWER
    assert "\x1b" not in delivery().answer


def slow_head(handler: Handler) -> None:
    _drip(handler, b"HTTP/1.1 200 OK\r\n" + b"x-slow: 1\r\n" * 100_000)


def slow_body(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 500 Slow\r\ncontent-length: 400\r\n\r\n")
    _drip(handler, b"slow " * 80)


def silent(handler: Handler) -> None:
    handler.connection.settimeout(60)
    handler.rfile.read(1)  # until the client closes the connection


def many_heads(handler: Handler) -> None:
    _drip(handler, b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000)


def _drip(handler: Handler, text: bytes) -> None:
    try:
        for byte in text:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass


@pytest.mark.parametrize("answer", [slow_head, slow_body, silent, many_heads])
def test_a_slow_answer_ends_in_time(receiver, monkeypatch, answer):
    """Each receiver sends something before a read of the socket times out."""
    monkeypatch.setattr(webhook_delivery, "_WHOLE_SECONDS", 1.0)
    hook(receiver)
    add_event("a")
    receiver.answers = [answer]
    began, threads = time.monotonic(), threading.active_count()
    assert deliver() == 1
    assert time.monotonic() - began < 15  # the whole answer would take hours, or 20 s
    assert delivery().status == DeliveryStatus.PENDING
    assert delivery().answer
    assert threading.active_count() < threads + 10


@pytest.mark.parametrize(
    "text",
    [b"", b"\x00\xff\n\r\n", b"HTTP/1.1 two hundred\r\n\r\n", b"x" * 70_000, b"HTTP/1.1 200 "],
)
def test_an_answer_that_is_not_http_is_a_failed_attempt(receiver, text):
    hook(receiver)
    add_event("a")

    def answer(handler: Handler) -> None:
        handler.wfile.write(text)
        handler.close_connection = True

    receiver.answers = [answer]
    assert deliver() == 1
    if text != b"HTTP/1.1 200 ":
        assert delivery().status == DeliveryStatus.PENDING
        assert delivery().attempts == 1


def test_an_unreachable_receiver_is_a_failed_attempt(receiver):
    hook(receiver)
    add_event("a")
    url = receiver.url
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        Webhook.objects.update(url=url.replace(str(receiver.port), str(free.getsockname()[1])))
        deliver()
    assert "NewConnectionError" in delivery().answer
    assert delivery().status == DeliveryStatus.PENDING


# --- allowed addresses ---------------------------------------------------------------------------

INNER = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "::1",
    "::",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "3fff::1",
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "192.0.0.192",
    "192.0.0.8",
    "192.88.99.1",
]


@pytest.mark.parametrize("address", INNER)
def test_an_address_that_is_not_public_is_refused(address):
    host = f"[{address}]" if ":" in address else address
    with unchanged(), pytest.raises(InvalidInput, match="not a public address"):
        webhooks.create_webhook(actor=SYSTEM, name="x", url=f"https://{host}/")


def test_public_addresses_and_names_are_accepted():
    for url in ("https://8.8.8.8/", "https://[2606:4700::1]:8443/x?y=z", "https://example.com"):
        webhook_delivery.check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://",
        "https:///path",
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://@example.com/",
        "https://example.com/#f",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:x/",
        "https://[::1",
        "https://example.com/a b",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/\r\nx-evil: 1",
        "https://example.com/\x00",
        "https://ex\u2100mple.com/",
        "https://example.com/é",
        "https://example.com/" + "x" * 2000,
        "//example.com/",
        "example.com",
    ],
)
def test_invalid_receiver_urls_are_refused(url):
    with unchanged(), pytest.raises(InvalidInput):
        webhooks.create_webhook(actor=SYSTEM, name="x", url=url)
    webhooks.create_webhook(actor=SYSTEM, name="y", url="https://example.com/")
    with unchanged(), pytest.raises(InvalidInput):
        webhooks.update_webhook(actor=SYSTEM, name="y", changes=webhooks.Changes(url=url))


def resolve(monkeypatch, *turns: list[str]) -> list[str]:
    """Resolve names to these addresses, a list per lookup. Return the lookups."""
    real, lookups = socket.getaddrinfo, []

    def fake(host: str, port: int, *args: Any, **options: Any) -> Any:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            lookups.append(host)
            addresses = turns[min(len(lookups), len(turns)) - 1]
            return [
                entry for address in addresses for entry in real(address, port, *args, **options)
            ]
        return real(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    return lookups


def put_at(receiver: Receiver, host: str) -> None:
    """Store a URL that was valid while MONODON_WEBHOOK_HOSTS named its host."""
    hook(receiver)
    Webhook.objects.update(url=f"http://{host}:{receiver.port}/")
    add_event("a")


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"], ["169.254.169.254"]]
)
def test_names_resolving_to_private_addresses_are_refused(receiver, monkeypatch, addresses):
    resolve(monkeypatch, addresses)
    put_at(receiver, "inside.example.com")
    deliver()
    assert receiver.got == []
    assert delivery().answer == "Refused: inside.example.com has an address that is not public"
    assert delivery().status == DeliveryStatus.PENDING


def test_a_slow_lookup_of_the_name_ends_in_time(receiver, monkeypatch):
    """The receiver's name servers decide how long a lookup takes."""
    going_on = threading.Event()

    def hang(*_: object, **__: object) -> Any:
        going_on.wait(60)
        raise OSError("the lookup has ended")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(webhook_delivery, "_WHOLE_SECONDS", 0.5)
    put_at(receiver, "slow.example.com")
    deliver()
    going_on.set()
    assert delivery().answer.startswith(
        "Refused: TimeoutError: the lookup of slow.example.com took"
    )
    assert delivery().status == DeliveryStatus.PENDING


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "localhost"])
def test_other_spellings_of_loopback_are_refused(receiver, host):
    put_at(receiver, host)
    deliver()
    assert receiver.got == []
    assert "not public" in delivery().answer or "gaierror" in delivery().answer


def test_connections_use_the_checked_address(receiver, monkeypatch):
    """The name has another address at the second lookup (DNS rebinding)."""
    lookups = resolve(monkeypatch, ["203.0.114.7"], ["127.0.0.1"])
    put_at(receiver, "rebind.example.com")
    addresses = []

    def connect(address: tuple[str, int], *args: Any, **options: Any) -> socket.socket:
        addresses.append(address)
        raise OSError("nobody there")

    monkeypatch.setattr("urllib3.util.connection.create_connection", connect)
    deliver()
    assert addresses == [("203.0.114.7", receiver.port)]
    assert lookups == ["rebind.example.com"]
    assert receiver.got == []


def test_a_host_is_reached_at_any_answering_address(receiver, settings, monkeypatch):
    settings.MONODON_WEBHOOK_HOSTS = {"inner.example"}
    resolve(monkeypatch, ["127.0.0.9", "127.0.0.1"])  # the first address has no listener
    webhooks.create_webhook(
        actor=SYSTEM,
        name="inner",
        url=f"http://inner.example:{receiver.port}/",
        types=("test.*",),
    )
    add_event("a")
    deliver()
    assert delivery().status == DeliveryStatus.DELIVERED, delivery().answer
    assert receiver.got[0][0]["host"] == f"inner.example:{receiver.port}"


def test_a_host_removed_from_the_allow_list_gets_no_deliveries(receiver, settings):
    hook(receiver)
    add_event("a")
    settings.MONODON_WEBHOOK_HOSTS = set()
    deliver()
    assert receiver.got == []
    assert "not public" in delivery().answer


def test_https_requires_a_certificate(receiver):
    """The receiver speaks HTTP without TLS."""
    hook(receiver)
    Webhook.objects.update(url=receiver.url.replace("http:", "https:"))
    add_event("a")
    deliver()
    assert receiver.got == []
    assert "SSL" in delivery().answer


# --- secrets -------------------------------------------------------------------------------------


def test_the_secret_appears_only_in_its_answer(receiver, caplog):
    caplog.set_level(logging.DEBUG)
    secret = hook(receiver)
    add_event("a", "b")
    receiver.answers = [500]
    deliver()
    rotated = webhooks.rotate_secret(actor=SYSTEM, name="pager")
    make_due()
    deliver()
    stored = bytes(Webhook.objects.get().secret)
    rows = json.dumps([dict(row) for row in AuditEvent.objects.values()], default=str)
    stored_text = json.dumps([dict(row) for row in WebhookDelivery.objects.values()], default=str)
    sent = str(receiver.got)
    for secret_ in (secret, rotated):
        plain = secret_.removeprefix("whsec_")
        key = base64.b64decode(plain)
        assert plain.encode() not in stored
        assert key not in stored
        for text in (rows, stored_text, sent, caplog.text):
            assert plain not in text
            assert key.hex() not in text
    webhooks.delete_webhook(actor=SYSTEM, name="pager")
    assert not WebhookDelivery.objects.exists()
    assert AuditEvent.objects.filter(action="webhook.delete").count() == 1


def test_a_changed_server_key_stops_only_affected_webhooks(receiver, settings):
    hook(receiver, "old")
    settings.SECRET_KEY = "another key of this server"
    new = hook(receiver, "new")
    add_event("a")
    assert deliver() == 2
    (headers, body, _) = receiver.got[0]
    assert is_signed(new, headers, body)
    of_old = WebhookDelivery.objects.get(webhook__name="old")
    assert of_old.status == DeliveryStatus.PENDING
    assert "MONODON_SECRET_KEY has changed" in of_old.answer
    rotated = webhooks.rotate_secret(actor=SYSTEM, name="old")
    make_due()
    assert deliver() == 1
    (headers, body, _) = receiver.got[1]
    assert is_signed(rotated, headers, body)


# --- access --------------------------------------------------------------------------------------


def every_call(actor: Principal) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: webhooks.create_webhook(actor=actor, name="x", url="https://a.example"),
        "update": lambda: webhooks.update_webhook(
            actor=actor, name="pager", changes=webhooks.Changes(is_active=False)
        ),
        "rotate": lambda: webhooks.rotate_secret(actor=actor, name="pager"),
        "delete": lambda: webhooks.delete_webhook(actor=actor, name="pager"),
        "find": lambda: webhooks.find_webhook(actor=actor, name="pager"),
        "list": lambda: webhooks.list_webhooks(actor=actor),
        "deliveries": lambda: webhooks.list_deliveries(actor=actor, name="pager"),
        "replay": lambda: webhooks.replay(actor=actor, name="pager"),
        "replay_from": lambda: webhooks.replay_from(
            actor=actor, name="pager", position=event_feed.BEGINNING
        ),
    }


@pytest.mark.parametrize(
    "level", [level for level in PrincipalLevel if level != PrincipalLevel.ADMIN]
)
def test_only_administrators_manage_webhooks(receiver, level):
    hook(receiver)
    _, key = api_keys.create_api_key(actor=SYSTEM, name="etl", level=level)
    actor = authentication.authenticate(key)
    for call in every_call(actor).values():
        with unchanged(), pytest.raises(PermissionDenied):
            call()


def test_invalid_webhooks_are_refused_and_change_nothing(receiver):
    hook(receiver)
    for name in ("", " ", "a/b", "a\nb", "x" * 101):
        with unchanged(), pytest.raises(InvalidInput, match="name"):
            hook(receiver, name)
    with unchanged(), pytest.raises(InvalidInput, match="already exists"):
        hook(receiver)
    with unchanged(), pytest.raises(InvalidInput, match="not an event type"):
        hook(receiver, "other", types=("table.[a]",))
    with unchanged(), pytest.raises(NamespaceNotFound):
        hook(receiver, "other", namespace=("nowhere",))
    with unchanged(), pytest.raises(InvalidInput, match="changes nothing"):
        webhooks.update_webhook(actor=SYSTEM, name="pager", changes=webhooks.Changes())
    with unchanged(), pytest.raises(InvalidInput, match="Page token"):
        webhooks.list_deliveries(actor=SYSTEM, name="pager", page_token="x")
    Webhook.objects.filter(name="pager").update(name="renamed")
    for name, call in every_call(SYSTEM).items():
        if name not in {"create", "list"}:
            with unchanged(), pytest.raises(WebhookNotFound):
                call()


def test_changes_are_audited_and_no_ops_are_not(receiver):
    hook(receiver)
    changes = webhooks.Changes(url="https://a.example/", types=("table.*",))
    webhooks.update_webhook(actor=SYSTEM, name="pager", changes=changes)
    (row,) = AuditEvent.objects.filter(action="webhook.update")
    assert (row.before["url"], row.after["url"]) == (receiver.url, "https://a.example/")
    assert (row.before["types"], row.after["types"]) == (["test.*"], ["table.*"])
    with unchanged():
        webhooks.update_webhook(actor=SYSTEM, name="pager", changes=changes)


# --- lists and retention -------------------------------------------------------------------------


def test_pages_of_webhooks_and_deliveries_are_complete(receiver):
    for number in range(5):
        hook(receiver, f"w{number}", types=("test.*",) if number == 0 else ("never.*",))
    add_event(*"abcde")
    fan_out()

    def walk(read: Callable[[str | None], tuple[list[Any], str | None]]) -> list[Any]:
        rows, token = read(None)
        while token:
            more, token = read(token)
            rows += more
        return rows

    listed = walk(lambda token: webhooks.list_webhooks(actor=SYSTEM, limit=2, page_token=token))
    assert [row.name for row in listed] == [f"w{number}" for number in range(5)]
    deliveries = walk(
        lambda token: webhooks.list_deliveries(
            actor=SYSTEM, name="w0", limit=2, page_token=token, status=DeliveryStatus.PENDING
        )
    )
    assert [row.target for row in deliveries] == list("edcba")
    dead, _ = webhooks.list_deliveries(actor=SYSTEM, name="w0", status=DeliveryStatus.DEAD)
    assert dead == []


def test_old_deliveries_are_deleted_except_pending_ones(receiver):
    hook(receiver)
    add_event(*"abcd")
    fan_out()
    now = timezone.now()
    rows = dict(WebhookDelivery.objects.values_list("target", "pk"))

    def put(target: str, **values: Any) -> None:
        WebhookDelivery.objects.filter(pk=rows[target]).update(**values)

    put("a", status=DeliveryStatus.DELIVERED, delivered_at=now - timedelta(days=8))
    put("b", status=DeliveryStatus.DELIVERED, delivered_at=now - timedelta(days=6))
    put("c", status=DeliveryStatus.DEAD, event_at=now - timedelta(days=91))
    put("d", event_at=now - timedelta(days=400))
    assert webhook_dispatch.delete_expired_deliveries() == 2
    targets = WebhookDelivery.objects.order_by("pk").values_list("target", flat=True)
    assert list(targets) == ["b", "d"]
