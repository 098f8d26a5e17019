"""Delivery of events to webhooks, by POST, until the receivers accept them.

    fan_out()   advances each webhook's position in the stream and creates deliveries for matching
                events, in one transaction: no delivery is left out or created twice
    deliver()   sends due deliveries. A 2xx response completes a delivery. Any other outcome is
                retried with growing pauses, and ends as a dead letter, which can be replayed

An event may be delivered more than once, for example if a response is lost: receivers recognize it
by its id. Bodies are CloudEvents, signed according to Standard Webhooks
(https://www.standardwebhooks.com), so libraries of many languages can verify them.

``webhook_delivery`` sends the requests and restricts their addresses.
"""

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from catalog import encryption
from catalog.access import SYSTEM
from catalog.errors import (
    NamespaceNotFound,
    ServiceUnavailable,
)
from catalog.models import AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.services.engine import audit_records, locks
from catalog.services.events import feed, webhook_delivery

log = logging.getLogger(__name__)


MAX_ATTEMPTS = 34  # the last one about a day after the first
KEEP_DELIVERED = timedelta(days=7)
KEEP_DEAD = timedelta(days=90)
_FIRST_PAUSE, _MAX_PAUSE = timedelta(seconds=5), timedelta(hours=1)
_SENDERS = 8
_AT_ONCE = 5 * _SENDERS
_CLAIM = timedelta(minutes=4)
"""Longer than it takes to send ``_AT_ONCE`` events if every receiver times out."""
_PAGES = 10
_GONE = 410


def fan_out() -> int:
    """Create deliveries for new events; returns the number. Only one process does this at a time.

    A webhook that is far behind gets at most ``_PAGES`` pages of events per pass.
    """
    made = 0
    with locks.advisory_lock("webhooks") as is_alone:
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
    if row.namespace is not None and row.namespace.dropped_at is not None:
        # Another namespace may have its name. If it is undropped, the webhook continues from its position.
        return 0, True
    where = () if row.namespace is None else row.namespace.identifier
    try:
        page = feed.read(
            actor=SYSTEM,
            after=feed.Position(row.xid, row.event),
            event_filter=feed.EventFilter(types=tuple(row.types), namespace=where),
            limit=feed.MAX_PAGE,
        )
    except NamespaceNotFound:
        return 0, True  # dropped; if it is undropped, the webhook continues from its position
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
    row.xid, row.event = page.position.xid, page.position.event
    row.save(update_fields=["xid", "event"])
    return len(page.rows), page.is_last


def deliver() -> int:
    """Send due deliveries; returns the number of attempts.

    The sender claims each attempt for ``_CLAIM``, so it is made once; if this process dies, another
    one makes the next attempt when the claim expires.
    """
    claimed = _claim()
    if not claimed:
        return 0
    requests = [
        request for request in map(_prepare, claimed, _events_of(claimed)) if request is not None
    ]
    with ThreadPoolExecutor(_SENDERS, "webhook") as senders:
        outcomes = list(senders.map(_attempt, requests))
    for request, outcome in zip(requests, outcomes, strict=True):
        _record_outcome(request.delivery, outcome)
    return len(claimed)


@dataclass(frozen=True)
class _PreparedRequest:
    delivery: WebhookDelivery
    body: bytes
    secret: str
    event_id: str


@dataclass(frozen=True)
class _Outcome:
    is_accepted: bool
    answer: str
    is_gone: bool = False


def _claim() -> list[WebhookDelivery]:
    """Claim some due deliveries of each webhook, so that a slow receiver does not delay others."""
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
    moments = {row.event_at for row in claimed}  # the key of the partitions
    rows = AuditEvent.objects.filter(pk__in=[row.event for row in claimed], at__in=moments)
    events = {row.pk: row for row in rows}
    return [events.get(row.event) for row in claimed]


def _prepare(delivery: WebhookDelivery, event: AuditEvent | None) -> _PreparedRequest | None:
    """Prepare a request; None if there is nothing to send, with the reason in the delivery."""
    if event is None:
        _mark_dead(delivery, "the event is no longer in the audit trail")
        return None
    try:
        secret = encryption.decrypt(bytes(delivery.webhook.secret))
    except ServiceUnavailable as error:
        # Other webhooks may have valid secrets; rotating this secret fixes the webhook.
        _record_outcome(delivery, _Outcome(False, str(error)))
        return None
    body = json.dumps(feed.as_cloud_event(event), separators=(",", ":")).encode()
    return _PreparedRequest(delivery, body, secret, str(feed.position_of(event)))


def _attempt(requests: _PreparedRequest) -> _Outcome:
    """Send a request once. Runs in a thread of its own, so it does not use the database."""
    url = requests.delivery.webhook.url
    try:
        status, text = webhook_delivery.post(url, requests.secret, requests.event_id, requests.body)
    except webhook_delivery.FAILURES as error:
        return _Outcome(False, webhook_delivery.printable(f"{type(error).__name__}: {error}"))
    if 200 <= status < 300:
        return _Outcome(True, str(status))
    return _Outcome(False, webhook_delivery.printable(f"{status} {text}"), is_gone=status == _GONE)


def _record_outcome(delivery: WebhookDelivery, outcome: _Outcome) -> None:
    if outcome.is_accepted:
        now = timezone.now()
        WebhookDelivery.objects.filter(pk=delivery.pk).update(
            status=DeliveryStatus.DELIVERED, answer=outcome.answer, delivered_at=now
        )
        return
    log.info("Webhook '%s' did not accept an event: %s", delivery.webhook, outcome.answer)
    if outcome.is_gone:
        with transaction.atomic():
            # Unless the URL was changed meanwhile.
            stopped = Webhook.objects.filter(
                pk=delivery.webhook_id, url=delivery.webhook.url, is_active=True
            )
            if stopped.update(is_active=False):
                audit_records.record(
                    SYSTEM, "webhook.stop", delivery.webhook.name, after={"answer": outcome.answer}
                )
    if delivery.attempts >= MAX_ATTEMPTS or outcome.is_gone:
        _mark_dead(delivery, outcome.answer)
        return
    pause = min(_FIRST_PAUSE * 2 ** (delivery.attempts - 1), _MAX_PAUSE)
    _pending(delivery).update(answer=outcome.answer, due_at=timezone.now() + pause)


def _mark_dead(delivery: WebhookDelivery, why: str) -> None:
    _pending(delivery).update(status=DeliveryStatus.DEAD, answer=why)


def _pending(delivery: WebhookDelivery) -> QuerySet[WebhookDelivery]:
    """The delivery, unless another process delivered it after the claim expired."""
    return WebhookDelivery.objects.filter(pk=delivery.pk, status=DeliveryStatus.PENDING)


def delete_expired_deliveries() -> int:
    """Delete deliveries after a week, and dead letters after three months; returns the number."""
    now = timezone.now()
    over = Q(status=DeliveryStatus.DELIVERED, delivered_at__lt=now - KEEP_DELIVERED) | Q(
        status=DeliveryStatus.DEAD, event_at__lt=now - KEEP_DEAD
    )
    return WebhookDelivery.objects.filter(over).delete()[0]
