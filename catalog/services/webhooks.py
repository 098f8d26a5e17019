"""Webhooks: telling others of events, by POST, until they have taken them.

    fan_out()   each webhook's place in the stream moves on, and what it wants becomes deliveries, in
                one transaction: none is left out, and none is made twice
    deliver()   what is due is sent; an answer of 2xx ends it. Anything else is tried again, later
                each time, and in the end left as a dead letter, which can be replayed

An event may come more than once, as when an answer is lost: receivers know it by its id. Bodies are
CloudEvents, signed as Standard Webhooks says (https://www.standardwebhooks.com), so that libraries
of many languages can verify them.

What is sent goes to public addresses over https. Whoever runs the catalog names other receivers in
MONODON_WEBHOOK_HOSTS: else whoever may add a webhook could reach what only this server can.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import urllib3
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone

from catalog.errors import InvalidInput, WebhookNotFound
from catalog.identifiers import Identifier, label
from catalog.models import AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.privileges import Privilege
from catalog.services import access, audit, encryption, events, locks, namespaces
from catalog.services.access import SYSTEM, Principal

log = logging.getLogger(__name__)

SECRET_PREFIX = "whsec_"  # noqa: S105 -- how a secret begins
MAX_ATTEMPTS = 14  # the last one about nine hours after the first
KEPT = timedelta(days=7)
DEAD_KEPT = timedelta(days=90)
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=5), timedelta(hours=1)
_CLAIM = timedelta(minutes=2)  # longer than an attempt takes
_AT_ONCE = 100
_SENDERS = 8
_TIMEOUT = urllib3.Timeout(connect=5.0, read=10.0)
_WHOLE_SECONDS = 20.0
_MAX_ANSWER = 500
_LONGEST_URL = 2000
_GONE = 410


class _Refused(Exception):
    """An attempt that came to nothing; the text says why."""


@dataclass(frozen=True)
class Changes:
    """What an update changes; None: nothing."""

    url: str | None = None
    types: Sequence[str] | None = None
    is_active: bool | None = None


# --- who is told ---------------------------------------------------------------------------------


def create_webhook(
    *,
    actor: Principal,
    name: str,
    url: str,
    types: Sequence[str] = (),
    namespace: Identifier = (),
) -> tuple[Webhook, str]:
    """A webhook for what happens from now on, and its signing secret, which is told only now.

    Administrators alone make webhooks. Raises InvalidInput, NamespaceNotFound.
    """
    access.require(actor, Privilege.ALL)
    if not name.strip() or not name.isprintable() or "/" in name or len(name) > 100:
        raise InvalidInput(
            "A webhook's name must be printable, without a slash, and not longer than 100"
        )
    check_url(url)
    events.Choice(types=tuple(types))
    where = namespaces.describe_namespace(actor=actor, namespace=namespace) if namespace else None
    secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    place = events.newest_place()
    try:
        with transaction.atomic():
            row = Webhook.objects.create(
                name=name,
                url=url,
                secret=encryption.encrypt(secret),
                types=list(types),
                namespace=where,
                xid=place.xid,
                event=place.event,
                created_by=actor.name,
            )
            audit.record(actor, "webhook.create", name, after=_facts(row))
    except IntegrityError:
        raise InvalidInput(f"A webhook named '{name}' exists already") from None
    return row, secret


def update_webhook(*, actor: Principal, name: str, changes: Changes) -> Webhook:
    """Change where it is, what it wants, or whether it is told. Raises WebhookNotFound, InvalidInput."""
    access.require(actor, Privilege.ALL)
    if changes == Changes():
        raise InvalidInput("Say what to change: url, types or is_active")
    if changes.url is not None:
        check_url(changes.url)
    if changes.types is not None:
        events.Choice(types=tuple(changes.types))
    with transaction.atomic():
        row = _locked(name)
        before = _facts(row)
        row.url = row.url if changes.url is None else changes.url
        row.types = row.types if changes.types is None else list(changes.types)
        row.is_active = row.is_active if changes.is_active is None else changes.is_active
        row.save(update_fields=["url", "types", "is_active"])
        if _facts(row) != before:
            audit.record(actor, "webhook.update", name, before=before, after=_facts(row))
    return row


def rotate_secret(*, actor: Principal, name: str) -> str:
    """A new signing secret; the next attempt is signed with it. Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    secret = SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    with transaction.atomic():
        row = _locked(name)
        row.secret = encryption.encrypt(secret)
        row.save(update_fields=["secret"])
        audit.record(actor, "webhook.rotate_secret", name)
    return secret


def delete_webhook(*, actor: Principal, name: str) -> None:
    """Tell it nothing any more, and forget what it was told. Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        audit.record(actor, "webhook.delete", name, before=_facts(row))
        row.delete()


def find_webhook(*, actor: Principal, name: str) -> Webhook:
    """Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    row = Webhook.objects.select_related("namespace").filter(name=name).first()
    if row is None:
        raise WebhookNotFound(name)
    return row


def list_webhooks(
    *, actor: Principal, limit: int | None = None, page_token: str | None = None
) -> tuple[list[Webhook], str | None]:
    """A page of webhooks by name, and the token of the next."""
    access.require(actor, Privilege.ALL)
    size = min(limit or events.PAGE_SIZE, events.MAX_PAGE)
    rows = Webhook.objects.select_related("namespace").filter(name__gt=page_token or "")
    page = list(rows.order_by("name")[: size + 1])
    return page[:size], page[size - 1].name if len(page) > size else None


def list_deliveries(
    *,
    actor: Principal,
    name: str,
    status: DeliveryStatus | None = None,
    limit: int | None = None,
    page_token: str | None = None,
) -> tuple[list[WebhookDelivery], str | None]:
    """A page of what a webhook was told, the newest first. Raises WebhookNotFound, InvalidInput."""
    row = find_webhook(actor=actor, name=name)
    size = min(limit or events.PAGE_SIZE, events.MAX_PAGE)
    rows = row.deliveries.all()
    if status is not None:
        rows = rows.filter(status=status)
    if page_token:
        if not (page_token.isascii() and page_token.isdigit() and len(page_token) < 19):
            raise InvalidInput(f"Page token {page_token!r} is not one of this list")
        rows = rows.filter(pk__lt=int(page_token))
    page = list(rows.order_by("-pk")[: size + 1])
    return page[:size], str(page[size - 1].pk) if len(page) > size else None


def replay(*, actor: Principal, name: str, deliveries: Sequence[int] | None = None) -> int:
    """Send dead letters again, all of them or these; returns how many. Raises WebhookNotFound."""
    row = find_webhook(actor=actor, name=name)
    dead = row.deliveries.filter(status=DeliveryStatus.DEAD)
    if deliveries is not None:
        dead = dead.filter(pk__in=deliveries)
    with transaction.atomic():
        count = dead.update(
            status=DeliveryStatus.PENDING, attempts=0, due_at=timezone.now(), answer=""
        )
        if count:
            audit.record(actor, "webhook.replay", name, after={"deliveries": count})
    return count


def replay_from(*, actor: Principal, name: str, place: events.Place) -> None:
    """Let a webhook go on from an earlier place: what it wants of all behind it is sent again.

    Raises WebhookNotFound, and InvalidInput for a place that is still to come.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        if place > events.Place(row.xid, row.event):
            raise InvalidInput(f"The webhook has not got so far: it is at {row.xid}-{row.event}")
        row.deliveries.exclude(status=DeliveryStatus.PENDING).filter(event__gt=0).filter(
            event__in=_events_behind(place)
        ).delete()
        row.xid, row.event = place.xid, place.event
        row.save(update_fields=["xid", "event"])
        audit.record(actor, "webhook.replay", name, after={"from": str(place)})


def _events_behind(place: events.Place) -> Any:
    return AuditEvent.objects.extra(
        where=["(xid, id) > (%s::text::xid8, %s)"], params=[place.xid, place.event]
    ).values("pk")


def _locked(name: str) -> Webhook:
    row = Webhook.objects.select_for_update(of=("self",)).filter(name=name).first()
    if row is None:
        raise WebhookNotFound(name)
    return row


def _facts(row: Webhook) -> dict[str, Any]:
    return {
        "url": row.url,
        "types": list(row.types),
        "namespace": None if row.namespace is None else label(row.namespace.identifier),
        "is_active": row.is_active,
    }


# --- telling -------------------------------------------------------------------------------------


def fan_out() -> int:
    """Make deliveries of what happened; returns how many. One at a time does it, on all machines."""
    made = 0
    with locks.alone("webhooks") as is_alone:
        if not is_alone:
            return 0
        for pk in Webhook.objects.filter(is_active=True).values_list("pk", flat=True):
            while True:
                count, is_last = _advance(pk)
                made += count
                if is_last:
                    break
    return made


@transaction.atomic
def _advance(pk: int) -> tuple[int, bool]:
    hooks = Webhook.objects.select_for_update(of=("self",)).select_related("namespace")
    row = hooks.filter(pk=pk, is_active=True).first()
    if row is None:
        return 0, True
    where = () if row.namespace is None else row.namespace.identifier
    if row.namespace is not None and row.namespace.dropped_at is not None:
        return 0, True  # it may come back; then nothing is missed
    page = events.read(
        actor=SYSTEM,
        after=events.Place(row.xid, row.event),
        choice=events.Choice(types=tuple(row.types), namespace=where),
        limit=events.MAX_PAGE,
    )
    WebhookDelivery.objects.bulk_create(
        [
            WebhookDelivery(
                webhook=row,
                event=event.pk,
                event_at=event.at,
                type=events.TYPE_PREFIX + event.action,
                target=event.target,
            )
            for event in page.rows
        ],
        ignore_conflicts=True,
    )
    row.xid, row.event = page.place.xid, page.place.event
    row.save(update_fields=["xid", "event"])
    return len(page.rows), page.is_last


def deliver(limit: int = _AT_ONCE) -> int:
    """Send what is due; returns how many attempts were made.

    Who sends has claimed the attempt for a while, so it is made once; if this process dies, the
    next one makes another when the claim is over.
    """
    claimed = _claim(limit)
    if not claimed:
        return 0
    with ThreadPoolExecutor(min(_SENDERS, len(claimed)), "webhook") as senders:
        outcomes = list(senders.map(_attempt, claimed))
    for delivery, outcome in zip(claimed, outcomes, strict=True):
        _note(delivery, outcome)
    return len(claimed)


@dataclass(frozen=True)
class _Sending:
    delivery: WebhookDelivery
    body: bytes
    secret: str
    event_id: str


@dataclass(frozen=True)
class _Outcome:
    is_taken: bool
    answer: str
    is_gone: bool = False
    is_hopeless: bool = False


def _claim(limit: int) -> list[_Sending]:
    now = timezone.now()
    with transaction.atomic():
        due = (
            WebhookDelivery.objects.filter(
                status=DeliveryStatus.PENDING, due_at__lte=now, webhook__is_active=True
            )
            .select_related("webhook")
            .order_by("due_at")
            .select_for_update(of=("self",), skip_locked=True)[:limit]
        )
        found = list(due)
        WebhookDelivery.objects.filter(pk__in=[row.pk for row in found]).update(
            due_at=now + _CLAIM, attempts=F("attempts") + 1
        )
    moments = {row.event_at for row in found}
    rows = {
        row.pk: row
        for row in AuditEvent.objects.filter(pk__in=[row.event for row in found], at__in=moments)
    }
    sending = []
    for row in found:
        row.attempts += 1
        event = rows.get(row.event)
        if event is None:
            _note_dead(row, "the audit trail has this event no more")
            continue
        sending.append(
            _Sending(
                row,
                json.dumps(events.as_cloud_event(event), separators=(",", ":")).encode(),
                encryption.decrypt(bytes(row.webhook.secret)),
                str(events.place_of(event)),
            )
        )
    return sending


def _attempt(sending: _Sending) -> _Outcome:
    """Send once. Touches no database: it runs in a thread of its own."""
    try:
        status, text = _post(sending)
    except (_Refused, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        return _Outcome(False, f"{type(error).__name__.lstrip('_')}: {error}"[:_MAX_ANSWER])
    if 200 <= status < 300:
        return _Outcome(True, str(status))
    return _Outcome(False, f"{status} {text}"[:_MAX_ANSWER], is_gone=status == _GONE)


def _post(sending: _Sending) -> tuple[int, str]:
    """Status and the beginning of the answer. The address is looked up once, checked, and used."""
    parts = urlsplit(sending.delivery.webhook.url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = _address(host, port)
    pool: urllib3.HTTPConnectionPool
    if parts.scheme == "https":
        pool = urllib3.HTTPSConnectionPool(
            address, port, server_hostname=host, assert_hostname=host, cert_reqs="CERT_REQUIRED"
        )
    else:
        pool = urllib3.HTTPConnectionPool(address, port)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    moment = int(time.time())
    deadline = time.monotonic() + _WHOLE_SECONDS
    with pool:
        response = pool.urlopen(
            "POST",
            path,
            body=sending.body,
            headers={
                "Host": parts.netloc.rpartition("@")[2],
                "Content-Type": events.MEDIA,
                "User-Agent": "Monodon-Webhook",
                "webhook-id": sending.event_id,
                "webhook-timestamp": str(moment),
                "webhook-signature": sign(sending.secret, sending.event_id, moment, sending.body),
            },
            timeout=_TIMEOUT,
            redirect=False,
            retries=False,
            preload_content=False,
        )
        text = b""
        while len(text) < _MAX_ANSWER and time.monotonic() < deadline:
            piece = response.read(_MAX_ANSWER)
            if not piece:
                break
            text += piece
        response.close()
    shown = text.decode("utf-8", "replace")
    return response.status, "".join(char if char.isprintable() else " " for char in shown)


def sign(secret: str, event_id: str, moment: int, body: bytes) -> str:
    """The signature header of Standard Webhooks: HMAC-SHA256 of id, Unix time and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{event_id}.{moment}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def verify(secret: str, event_id: str, moment: int, body: bytes, signature: str) -> bool:
    """Whether one of the signatures of the header is right; what a receiver does."""
    try:
        wanted = sign(secret, event_id, moment, body)
    except (binascii.Error, ValueError):
        return False
    return any(hmac.compare_digest(wanted, each) for each in signature.split(" "))


def check_url(url: str) -> None:
    """Raises InvalidInput for an address to which nothing may be sent, as far as it tells by itself."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"'{url}' is no URL") from None
    host = parts.hostname or ""
    if len(url) > _LONGEST_URL or not url.isprintable() or " " in url or not host or port == 0:
        raise InvalidInput(f"'{url[:100]}' is no URL of a receiver")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidInput("The URL of a receiver has no user, password or fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_named(host)):
        raise InvalidInput(
            "The URL of a receiver begins with https://; http:// is for those that"
            " MONODON_WEBHOOK_HOSTS names"
        )
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return
    if not (address.is_global or _is_named(host)):
        raise InvalidInput(
            f"{host} is no public address, and MONODON_WEBHOOK_HOSTS does not name it"
        )


def _is_named(host: str) -> bool:
    return host.lower() in settings.MONODON_WEBHOOK_HOSTS


def _address(host: str, port: int) -> str:
    """An address of the host, all of which must be public unless it is named. Raises _Refused."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not found:
        raise _Refused(f"{host} has no address")
    if not _is_named(host):
        for address in found:
            checked = ipaddress.ip_address(address.partition("%")[0])
            inner = getattr(checked, "ipv4_mapped", None) or checked
            if not inner.is_global or inner.is_multicast:
                raise _Refused(f"{host} has an address that is not public")
    return found[0]


def _note(sending: _Sending, outcome: _Outcome) -> None:
    delivery = sending.delivery
    if outcome.is_taken:
        now = timezone.now()
        WebhookDelivery.objects.filter(pk=delivery.pk).update(
            status=DeliveryStatus.DELIVERED, answer=outcome.answer, delivered_at=now
        )
        return
    log.info("Webhook '%s' did not take an event: %s", delivery.webhook, outcome.answer)
    if outcome.is_gone:
        with transaction.atomic():
            gone = Webhook.objects.filter(pk=delivery.webhook_id, is_active=True)
            if gone.update(is_active=False):
                audit.record(
                    SYSTEM, "webhook.stop", delivery.webhook.name, after={"answer": outcome.answer}
                )
    if delivery.attempts >= MAX_ATTEMPTS or outcome.is_gone:
        _note_dead(delivery, outcome.answer)
        return
    pause = min(_FIRST_PAUSE * 2 ** (delivery.attempts - 1), _LONGEST_PAUSE)
    WebhookDelivery.objects.filter(pk=delivery.pk).update(
        answer=outcome.answer, due_at=timezone.now() + pause
    )


def _note_dead(delivery: WebhookDelivery, why: str) -> None:
    WebhookDelivery.objects.filter(pk=delivery.pk).update(status=DeliveryStatus.DEAD, answer=why)


def forget() -> int:
    """Delete what was delivered a week ago, and dead letters of three months; returns how many."""
    now = timezone.now()
    over = Q(status=DeliveryStatus.DELIVERED, delivered_at__lt=now - KEPT) | Q(
        status=DeliveryStatus.DEAD, event_at__lt=now - DEAD_KEPT
    )
    return WebhookDelivery.objects.filter(over).delete()[0]
