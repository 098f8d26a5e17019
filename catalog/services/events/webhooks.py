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

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    InvalidInput,
    WebhookNotFound,
)
from catalog.identifiers import Identifier, label
from catalog.models import AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks
from catalog.services.events import encryption, feed, webhook_delivery
from catalog.services.tables import namespaces

log = logging.getLogger(__name__)


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
    feed.EventFilter(types=tuple(types))
    where = namespaces.describe_namespace(actor=actor, namespace=namespace) if namespace else None
    secret = webhook_delivery.new_secret()
    position = feed.newest_position()
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
            audit_records.record(actor, "webhook.create", name, after=_state(row))
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
        feed.EventFilter(types=tuple(changes.types))
    with transaction.atomic():
        row = _locked(name)
        before = _state(row)
        row.url = row.url if changes.url is None else changes.url
        row.types = row.types if changes.types is None else list(changes.types)
        row.is_active = row.is_active if changes.is_active is None else changes.is_active
        row.save(update_fields=["url", "types", "is_active"])
        if _state(row) != before:
            audit_records.record(actor, "webhook.update", name, before=before, after=_state(row))
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
        audit_records.record(actor, "webhook.delete", name, before=_state(row))
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


def replay_from(*, actor: Principal, name: str, position: feed.Position) -> None:
    """Let a webhook go on from an earlier place: what it wants of all behind it is sent again.

    Raises WebhookNotFound, and InvalidInput for a place that is still to come.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        if position > feed.Position(row.xid, row.event):
            raise InvalidInput(f"The webhook has not got so far: it is at {row.xid}-{row.event}")
        row.deliveries.exclude(status=DeliveryStatus.PENDING).filter(event__gt=0).filter(
            event__in=_events_behind(position)
        ).delete()
        row.xid, row.event = position.xid, position.event
        row.save(update_fields=["xid", "event"])
        audit_records.record(actor, "webhook.replay", name, after={"from": str(position)})


def _events_behind(position: feed.Position) -> Any:
    return AuditEvent.objects.extra(
        where=["(xid, id) > (%s::text::xid8, %s)"], params=[position.xid, position.event]
    ).values("pk")


def _locked(name: str) -> Webhook:
    row = locks.lock_webhook(name=name)
    if row is None:
        raise WebhookNotFound(name)
    return row


def _state(row: Webhook) -> dict[str, Any]:
    return {
        "url": row.url,
        "types": list(row.types),
        "namespace": None if row.namespace is None else label(row.namespace.identifier),
        "is_active": row.is_active,
    }
