"""Webhooks: telling others of events, by POST, until they have taken them.

    fan_out()   each webhook's place in the stream moves on, and what it wants becomes deliveries, in
                one transaction: none is left out, and none is made twice
    deliver()   what is due is sent; an answer of 2xx ends it. Anything else is tried again, later
                each time, and in the end left as a dead letter, which can be replayed

An event may come more than once, as when an answer is lost: receivers know it by its id. Bodies are
CloudEvents, signed as Standard Webhooks says (https://www.standardwebhooks.com), so that libraries
of many languages can verify them.

What is sent, and where it may go, is in webhook_posts.
"""

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import (
    InvalidInput,
    NamespaceNotFound,
    ServiceUnavailable,
    WebhookNotFound,
)
from catalog.identifiers import Identifier, label
from catalog.models import AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks
from catalog.services.events import encryption, feed, webhook_delivery
from catalog.services.tables import namespaces

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 34  # the last one about a day after the first
KEPT = timedelta(days=7)
DEAD_KEPT = timedelta(days=90)
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=5), timedelta(hours=1)
_SENDERS = 8
_AT_ONCE = 5 * _SENDERS
_CLAIM = timedelta(minutes=4)
"""Longer than it takes to send ``_AT_ONCE`` to receivers that all are as slow as they may be."""
_PAGES = 10
_GONE = 410


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
    webhook_delivery.check_url(url)
    feed.Choice(types=tuple(types))
    where = namespaces.describe_namespace(actor=actor, namespace=namespace) if namespace else None
    secret = webhook_delivery.new_secret()
    position = feed.newest_place()
    try:
        with transaction.atomic():
            row = Webhook.objects.create(
                name=name,
                url=url,
                secret=encryption.encrypt(secret),
                types=list(types),
                namespace=where,
                xid=position.xid,
                event=position.event,
                created_by=actor.name,
            )
            audit_records.record(actor, "webhook.create", name, after=_facts(row))
    except IntegrityError:
        raise InvalidInput(f"A webhook named '{name}' exists already") from None
    return row, secret


def update_webhook(*, actor: Principal, name: str, changes: Changes) -> Webhook:
    """Change where it is, what it wants, or whether it is told. Raises WebhookNotFound, InvalidInput."""
    access.require(actor, Privilege.ALL)
    if changes == Changes():
        raise InvalidInput("Say what to change: url, types or is_active")
    if changes.url is not None:
        webhook_delivery.check_url(changes.url)
    if changes.types is not None:
        feed.Choice(types=tuple(changes.types))
    with transaction.atomic():
        row = _locked(name)
        before = _facts(row)
        row.url = row.url if changes.url is None else changes.url
        row.types = row.types if changes.types is None else list(changes.types)
        row.is_active = row.is_active if changes.is_active is None else changes.is_active
        row.save(update_fields=["url", "types", "is_active"])
        if _facts(row) != before:
            audit_records.record(actor, "webhook.update", name, before=before, after=_facts(row))
    return row


def rotate_secret(*, actor: Principal, name: str) -> str:
    """A new signing secret; the next attempt is signed with it. Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    secret = webhook_delivery.new_secret()
    with transaction.atomic():
        row = _locked(name)
        row.secret = encryption.encrypt(secret)
        row.save(update_fields=["secret"])
        audit_records.record(actor, "webhook.rotate_secret", name)
    return secret


def delete_webhook(*, actor: Principal, name: str) -> None:
    """Tell it nothing any more, and forget what it was told. Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        audit_records.record(actor, "webhook.delete", name, before=_facts(row))
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
    size = min(limit or feed.PAGE_SIZE, feed.MAX_PAGE)
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
    size = min(limit or feed.PAGE_SIZE, feed.MAX_PAGE)
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
            audit_records.record(actor, "webhook.replay", name, after={"deliveries": count})
    return count


def replay_from(*, actor: Principal, name: str, position: feed.Place) -> None:
    """Let a webhook go on from an earlier place: what it wants of all behind it is sent again.

    Raises WebhookNotFound, and InvalidInput for a place that is still to come.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        if position > feed.Place(row.xid, row.event):
            raise InvalidInput(f"The webhook has not got so far: it is at {row.xid}-{row.event}")
        row.deliveries.exclude(status=DeliveryStatus.PENDING).filter(event__gt=0).filter(
            event__in=_events_behind(position)
        ).delete()
        row.xid, row.event = position.xid, position.event
        row.save(update_fields=["xid", "event"])
        audit_records.record(actor, "webhook.replay", name, after={"from": str(position)})


def _events_behind(position: feed.Place) -> Any:
    return AuditEvent.objects.extra(
        where=["(xid, id) > (%s::text::xid8, %s)"], params=[position.xid, position.event]
    ).values("pk")


def _locked(name: str) -> Webhook:
    row = locks.lock_webhook(name=name)
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
    """Make deliveries of what happened; returns how many. One at a time does it, on all machines.

    Who is far behind gets some thousands of events, and the next ones in the next pass.
    """
    made = 0
    with locks.alone("webhooks") as is_alone:
        if not is_alone:
            return 0
        for pk in Webhook.objects.filter(is_active=True).values_list("pk", flat=True):
            for _ in range(_PAGES):
                count, is_last = _advance(pk)
                made += count
                if is_last:
                    break
    return made


@transaction.atomic
def _advance(pk: int) -> tuple[int, bool]:
    row = locks.lock_webhook(pk=pk)
    if row is None or not row.is_active:
        return 0, True
    where = () if row.namespace is None else row.namespace.identifier
    try:
        page = feed.read(
            actor=SYSTEM,
            after=feed.Place(row.xid, row.event),
            choice=feed.Choice(types=tuple(row.types), namespace=where),
            limit=feed.MAX_PAGE,
        )
    except NamespaceNotFound:
        return 0, True  # it was dropped, and may come back; then nothing is missed
    WebhookDelivery.objects.bulk_create(
        [
            WebhookDelivery(
                webhook=row,
                event=event.pk,
                event_at=event.at,
                type=feed.TYPE_PREFIX + event.action,
                target=event.target,
            )
            for event in page.rows
        ],
        ignore_conflicts=True,
    )
    row.xid, row.event = page.place.xid, page.place.event
    row.save(update_fields=["xid", "event"])
    return len(page.rows), page.is_last


def deliver() -> int:
    """Send what is due; returns how many attempts were made.

    Who sends has claimed the attempt for a while, so it is made once; if this process dies, the
    next one makes another when the claim is over.
    """
    claimed = _claim()
    if not claimed:
        return 0
    sending = [
        sending_ for sending_ in map(_prepare, claimed, _events_of(claimed)) if sending_ is not None
    ]
    with ThreadPoolExecutor(_SENDERS, "webhook") as senders:
        outcomes = list(senders.map(_attempt, sending))
    for sending_, outcome_ in zip(sending, outcomes, strict=True):
        _note(sending_.delivery, outcome_)
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


def _claim() -> list[WebhookDelivery]:
    """Some of what is due for each webhook: one that is slow takes no turns of the others."""
    now = timezone.now()
    due = WebhookDelivery.objects.filter(status=DeliveryStatus.PENDING, due_at__lte=now)
    waiting = Webhook.objects.filter(Exists(due.filter(webhook=OuterRef("pk"))), is_active=True)
    hooks = list(waiting.order_by("?").values_list("pk", flat=True)[:_AT_ONCE])
    claimed_rows: list[WebhookDelivery] = []
    with transaction.atomic():
        for pk in hooks:
            rows = due.filter(webhook=pk).select_related("webhook").order_by("due_at", "pk")
            claimed = rows.select_for_update(of=("self",), skip_locked=True, no_key=True)
            claimed_rows += claimed[: _AT_ONCE // len(hooks)]
        WebhookDelivery.objects.filter(pk__in=[row.pk for row in claimed_rows]).update(
            due_at=now + _CLAIM, attempts=F("attempts") + 1
        )
    for row in claimed_rows:
        row.attempts += 1
    return claimed_rows


def _events_of(claimed: Sequence[WebhookDelivery]) -> list[AuditEvent | None]:
    moments = {row.event_at for row in claimed}  # they lead to the partitions
    rows = AuditEvent.objects.filter(pk__in=[row.event for row in claimed], at__in=moments)
    events = {row.pk: row for row in rows}
    return [events.get(row.event) for row in claimed]


def _prepare(delivery: WebhookDelivery, event: AuditEvent | None) -> _Sending | None:
    """None when there is nothing to send; the delivery tells why."""
    if event is None:
        _note_dead(delivery, "the audit trail has this event no more")
        return None
    try:
        secret = encryption.decrypt(bytes(delivery.webhook.secret))
    except ServiceUnavailable as error:
        # The secrets of other webhooks may be fine; rotating this one makes it so.
        _note(delivery, _Outcome(False, str(error)))
        return None
    body = json.dumps(feed.as_cloud_event(event), separators=(",", ":")).encode()
    return _Sending(delivery, body, secret, str(feed.place_of(event)))


def _attempt(sending: _Sending) -> _Outcome:
    """Send once. Touches no database: it runs in a thread of its own."""
    url = sending.delivery.webhook.url
    try:
        status, text = webhook_delivery.post(url, sending.secret, sending.event_id, sending.body)
    except webhook_delivery.FAILURES as error:
        return _Outcome(False, webhook_delivery.told(f"{type(error).__name__}: {error}"))
    if 200 <= status < 300:
        return _Outcome(True, str(status))
    return _Outcome(False, webhook_delivery.told(f"{status} {text}"), is_gone=status == _GONE)


def _note(delivery: WebhookDelivery, outcome: _Outcome) -> None:
    if outcome.is_taken:
        now = timezone.now()
        WebhookDelivery.objects.filter(pk=delivery.pk).update(
            status=DeliveryStatus.DELIVERED, answer=outcome.answer, delivered_at=now
        )
        return
    log.info("Webhook '%s' did not take an event: %s", delivery.webhook, outcome.answer)
    if outcome.is_gone:
        with transaction.atomic():
            # Not if it was given another address meanwhile.
            stopped = Webhook.objects.filter(
                pk=delivery.webhook_id, url=delivery.webhook.url, is_active=True
            )
            if stopped.update(is_active=False):
                audit_records.record(
                    SYSTEM, "webhook.stop", delivery.webhook.name, after={"answer": outcome.answer}
                )
    if delivery.attempts >= MAX_ATTEMPTS or outcome.is_gone:
        _note_dead(delivery, outcome.answer)
        return
    pause = min(_FIRST_PAUSE * 2 ** (delivery.attempts - 1), _LONGEST_PAUSE)
    _pending(delivery).update(answer=outcome.answer, due_at=timezone.now() + pause)


def _note_dead(delivery: WebhookDelivery, why: str) -> None:
    _pending(delivery).update(status=DeliveryStatus.DEAD, answer=why)


def _pending(delivery: WebhookDelivery) -> QuerySet[WebhookDelivery]:
    """It, unless somebody else has delivered it, because the claim was over."""
    return WebhookDelivery.objects.filter(pk=delivery.pk, status=DeliveryStatus.PENDING)


def forget() -> int:
    """Delete what was delivered a week ago, and dead letters of three months; returns how many."""
    now = timezone.now()
    over = Q(status=DeliveryStatus.DELIVERED, delivered_at__lt=now - KEPT) | Q(
        status=DeliveryStatus.DEAD, event_at__lt=now - DEAD_KEPT
    )
    return WebhookDelivery.objects.filter(over).delete()[0]
