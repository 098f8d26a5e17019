"""Webhooks: create, change, list and replay them. ``webhook_dispatch`` delivers the events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from catalog import access, encryption
from catalog.access import Principal
from catalog.errors import (
    InvalidInput,
    WebhookNotFound,
)
from catalog.identifiers import Identifier, label
from catalog.models import AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.privileges import Privilege
from catalog.services.engine import audit_records, locks
from catalog.services.events import feed, webhook_delivery
from catalog.services.tables import namespaces


@dataclass(frozen=True)
class Changes:
    """Changes of a webhook; None: unchanged."""

    url: str | None = None
    types: Sequence[str] | None = None
    is_active: bool | None = None


def create_webhook(
    *,
    actor: Principal,
    name: str,
    url: str,
    types: Sequence[str] = (),
    namespace: Identifier = (),
) -> tuple[Webhook, str]:
    """Create a webhook for events from now on; returns it with its signing secret.

    The secret is returned only here. Requires ALL on everything. Raises InvalidInput,
    NamespaceNotFound.
    """
    access.require(actor, Privilege.ALL)
    if not name.strip() or not name.isprintable() or "/" in name or len(name) > 100:
        raise InvalidInput(
            "A webhook's name must be printable, without a slash, and at most 100 characters long"
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
        raise InvalidInput(f"Webhook '{name}' already exists") from None
    return row, secret


def update_webhook(*, actor: Principal, name: str, changes: Changes) -> Webhook:
    """Change a webhook's URL, types or activation. Raises WebhookNotFound, InvalidInput."""
    access.require(actor, Privilege.ALL)
    if changes == Changes():
        raise InvalidInput("The request changes nothing; set url, types or is_active")
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
    """Replace the signing secret; it signs the next attempt. Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    secret = webhook_delivery.new_secret()
    with transaction.atomic():
        row = _locked(name)
        row.secret = encryption.encrypt(secret)
        row.save(update_fields=["secret"])
        audit_records.record(actor, "webhook.rotate_secret", name)
    return secret


def delete_webhook(*, actor: Principal, name: str) -> None:
    """Delete a webhook with its deliveries. Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        audit_records.record(actor, "webhook.delete", name, before=_state(row))
        row.delete()


def find_webhook(*, actor: Principal, name: str) -> Webhook:
    """The webhook of this name. Raises WebhookNotFound."""
    access.require(actor, Privilege.ALL)
    row = Webhook.objects.select_related("namespace").filter(name=name).first()
    if row is None:
        raise WebhookNotFound(name)
    return row


def list_webhooks(
    *, actor: Principal, limit: int | None = None, page_token: str | None = None
) -> tuple[list[Webhook], str | None]:
    """A page of webhooks by name, and the token of the next page."""
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
    """A page of a webhook's deliveries, newest first. Raises WebhookNotFound, InvalidInput."""
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
    """Send dead letters again, all or the given ones; returns the number. Raises WebhookNotFound."""
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
    """Move a webhook back to an earlier position, and send the matching events after it again.

    Raises WebhookNotFound, and InvalidInput for a position that the webhook has not reached.
    """
    access.require(actor, Privilege.ALL)
    with transaction.atomic():
        row = _locked(name)
        if position > feed.Position(row.xid, row.event):
            raise InvalidInput(
                f"Position {position} is ahead of webhook '{name}', which is at"
                f" {row.xid}-{row.event}; use an earlier position"
            )
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
