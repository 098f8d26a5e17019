"""The bodies of requests and answers about events and webhooks."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from catalog.models import DeliveryStatus, Webhook, WebhookDelivery

_TYPES = "Patterns such as table.create, table.* or view.*; none: all."
_NAMESPACE = "Only what happens in this namespace and below, as a list of names; null: everywhere."


class _Request(BaseModel):
    # A misspelled "types" must not be taken for all.
    model_config = ConfigDict(extra="forbid")


class EventPage(BaseModel):
    """Events in their order. Ask on with ``after`` = ``place``, at once unless ``is_last``."""

    events: list[dict[str, Any]] = Field(description="CloudEvents 1.0, in JSON.")
    place: str
    is_last: bool = Field(description="Whether nothing is behind them yet.")


class CreateWebhookRequest(_Request):
    name: str
    url: str = Field(description="Where events are sent; https.")
    types: list[str] = Field(default=[], description=_TYPES)
    namespace: list[str] | None = Field(default=None, description=_NAMESPACE)


class UpdateWebhookRequest(_Request):
    url: str | None = None
    types: list[str] | None = Field(default=None, description=_TYPES)
    is_active: bool | None = Field(
        default=None, description="Whether it is told anything; later it goes on where it stopped."
    )


class WebhookModel(BaseModel):
    name: str
    url: str
    types: list[str]
    namespace: list[str] | None
    is_active: bool
    place: str = Field(description="How far it has got in the stream of events.")
    created_by: str
    created_at: datetime

    @classmethod
    def of(cls, row: Webhook) -> Self:
        return cls(
            name=row.name,
            url=row.url,
            types=row.types,
            namespace=None if row.namespace is None else list(row.namespace.path),
            is_active=row.is_active,
            place=f"{row.xid}-{row.event}",
            created_by=row.created_by,
            created_at=row.created_at,
        )


class NewWebhook(BaseModel):
    """``secret`` verifies the signatures (Standard Webhooks). It is told now and never again."""

    secret: str
    details: WebhookModel


class WebhookSecret(BaseModel):
    secret: str


class WebhookPage(BaseModel):
    webhooks: list[WebhookModel]
    next_page_token: str | None


class DeliveryModel(BaseModel):
    """An event on its way: ``answer`` is what the last attempt came to."""

    id: int
    event: int
    type: str
    target: str
    event_at: datetime
    status: DeliveryStatus
    attempts: int
    answer: str
    due_at: datetime | None
    delivered_at: datetime | None

    @classmethod
    def of(cls, row: WebhookDelivery) -> Self:
        return cls(
            id=row.pk,
            event=row.event,
            type=row.type,
            target=row.target,
            event_at=row.event_at,
            status=DeliveryStatus(row.status),
            attempts=row.attempts,
            answer=row.answer,
            due_at=row.due_at if row.status == DeliveryStatus.PENDING else None,
            delivered_at=row.delivered_at,
        )


class DeliveryPage(BaseModel):
    deliveries: list[DeliveryModel]
    next_page_token: str | None


class ReplayRequest(_Request):
    """One of these three."""

    dead: Literal[True] | None = Field(default=None, description="All dead letters.")
    deliveries: list[int] | None = Field(default=None, description="These dead letters.")
    place: str | None = Field(
        default=None, description="All that the webhook wants behind this place in the stream."
    )


class Replayed(BaseModel):
    deliveries: int | None = Field(description="How many dead letters; null: from a place on.")
