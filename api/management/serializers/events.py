"""Serializers of events, webhooks and the audit trail."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management.fields import (
    CountParameter,
    EnumField,
    EnumParameter,
    FlagField,
    ListField,
    MomentParameter,
    TextField,
    TextParameter,
    UUIDParameter,
    WholeNumberField,
)
from api.management.schema import example
from api.management.serializers.base import QuerySerializer, Serializer
from catalog.models import DeliveryStatus, Webhook, WebhookDelivery
from catalog.models.audit import Interface, Outcome
from catalog.services.audit import trail
from catalog.services.events import feed

_TYPES = "Patterns such as table.create, table.* or view.*. Empty: all."
_NAMESPACE = "Only events in this namespace and below, as a list of names. Null: all events."

# --- events ----------------------------------------------------------------------------------------


@example(
    events=[
        {
            "specversion": "1.0",
            "id": "81",
            "type": "io.monodon.table.create",
            "source": "monodon",
            "subject": "prod.users",
            "time": "2027-01-31T12:00:00Z",
            "data": {"actor": "etl"},
        }
    ],
    position="742-81",
    is_last=True,
)
class EventPageSerializer(Serializer):
    """Events in order. Continue with ``after`` = ``position``, at once unless ``is_last``."""

    events = serializers.SerializerMethodField(help_text="CloudEvents 1.0 in JSON.")
    position = serializers.SerializerMethodField(
        help_text="The position in the stream after these events."
    )
    is_last = serializers.BooleanField(help_text="Whether no event follows them yet.")

    def get_events(self, page: feed.Page) -> list[dict[str, Any]]:
        return [feed.as_cloud_event(row) for row in page.rows]

    def get_position(self, page: feed.Page) -> str:
        return str(page.position)


class StreamQuery(QuerySerializer):
    """A selection of events."""

    after = TextParameter(
        help_text="The id of an event or a position in the stream; 0-0 is the beginning of the audit"
        " trail. By default, events from now on."
    )
    types = TextParameter(
        help_text="Such as table.create,table.drop or view.*; separated by commas."
    )
    namespace = TextParameter(help_text="Events in it and below; spelled as in a path.")


class EventQuery(StreamQuery):
    """A selection of events, and their number."""

    limit = CountParameter(help_text="The most events of the response.")


# --- webhooks --------------------------------------------------------------------------------------

_WEBHOOK = {
    "name": "ci",
    "url": "https://example.com/hook",
    "types": ["table.*"],
    "namespace": ["prod"],
}
_SECRET = {"secret": "whsec_..."}
_STORED = {
    **_WEBHOOK,
    "is_active": True,
    "position": "742-81",
    "created_by": "user:ada",
    "created_at": "2027-01-31T12:00:00Z",
}


@example(**_WEBHOOK)
class CreateWebhookSerializer(Serializer):
    """A webhook to create."""

    name = TextField()
    url = TextField(help_text="The URL that receives the events; https.")
    types = ListField(default=list, help_text=_TYPES)
    namespace = ListField(default=None, allow_null=True, help_text=_NAMESPACE)


@example(is_active=False)
class UpdateWebhookSerializer(Serializer):
    """Changes of a webhook. Omitted fields keep their values."""

    url = TextField(default=None, allow_null=True)
    types = ListField(default=None, allow_null=True, help_text=_TYPES)
    is_active = FlagField(
        default=None,
        allow_null=True,
        help_text="An inactive webhook receives nothing; when activated, it continues where it"
        " stopped.",
    )


@example(**_STORED)
class WebhookSerializer(Serializer):
    """A webhook."""

    name = serializers.CharField()
    url = serializers.CharField()
    types = serializers.ListField(child=serializers.CharField())
    namespace = serializers.ListField(
        child=serializers.CharField(), source="namespace.path", allow_null=True
    )
    is_active = serializers.BooleanField()
    position = serializers.SerializerMethodField(
        help_text="The position in the stream up to which events were sent."
    )
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()

    def get_position(self, row: Webhook) -> str:
        return f"{row.xid}-{row.event}"


@example(**_SECRET, details=_STORED)
class NewWebhookSerializer(Serializer):
    """A new webhook with its secret, which no later response contains.

    The secret verifies the signatures (Standard Webhooks).
    """

    secret = serializers.CharField()
    details = WebhookSerializer()


@example(**_SECRET)
class WebhookSecretSerializer(Serializer):
    """A new signing secret, which no later response contains."""

    secret = serializers.CharField()


@example(
    id=19,
    event=81,
    type="table.create",
    target="prod.users",
    event_at="2027-01-31T12:00:00Z",
    status="dead",
    attempts=8,
    answer="503",
    due_at=None,
    delivered_at=None,
)
class DeliverySerializer(Serializer):
    """A delivery of an event."""

    id = serializers.IntegerField(source="pk")
    event = serializers.IntegerField()
    type = serializers.CharField()
    target = serializers.CharField()
    event_at = serializers.DateTimeField()
    status = EnumField(DeliveryStatus)
    attempts = serializers.IntegerField()
    answer = serializers.CharField(help_text="The result of the last attempt.")
    due_at = serializers.SerializerMethodField(help_text="The time of the next attempt.")
    delivered_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_due_at(self, row: WebhookDelivery) -> Any:
        return row.due_at if row.status == DeliveryStatus.PENDING else None


class DeliveryQuery(QuerySerializer):
    """A filter of deliveries."""

    status = EnumParameter(DeliveryStatus)


@example(dead=True)
class ReplaySerializer(Serializer):
    """The events to send again: one of the three fields."""

    dead = FlagField(default=None, allow_null=True, help_text="All dead letters; only true.")
    deliveries = serializers.ListField(
        child=WholeNumberField(),
        default=None,
        allow_null=True,
        help_text="These dead letters.",
    )
    position = TextField(
        default=None,
        allow_null=True,
        help_text="All events of the webhook after this position in the stream.",
    )

    def validate_dead(self, dead: bool | None) -> bool | None:
        if dead is False:
            raise serializers.ValidationError("Use true, or omit it.")
        return dead

    def validate(self, attrs: Any) -> Any:
        if [attrs["dead"], attrs["deliveries"], attrs["position"]].count(None) != 2:
            raise serializers.ValidationError("Use one of 'dead', 'deliveries' and 'position'.")
        return attrs


@example(deliveries=3)
class ReplayedSerializer(Serializer):
    """The result of a replay."""

    deliveries = serializers.IntegerField(
        allow_null=True, help_text="The number of dead letters. Null: from a position on."
    )


# --- the audit trail -------------------------------------------------------------------------------


@example(
    id=81,
    at="2027-01-31T12:00:00Z",
    actor="etl",
    action="tag.create",
    target="prod.users",
    outcome="done",
    error="",
    interface="lance",
    key="etl",
    table_uuid="5b1cf1e2-0f7e-4c39-9e52-0a5f9f6d2c11",
    before=None,
    after={"tag": "gold", "version": 8},
    context=None,
    request_id="0f9d",
    transaction_id="0193e7a4-6f3b-7c1e-8e57-5a9c2f0d4b11",
    xid="742",
)
class AuditEventSerializer(Serializer):
    """An event of the audit trail. ``before`` and ``after`` hold only what the action changed."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    action = serializers.CharField()
    target = serializers.CharField()
    outcome = serializers.CharField()
    error = serializers.CharField()
    interface = serializers.CharField()
    key = serializers.CharField()
    table_uuid = serializers.UUIDField(allow_null=True)
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    context = serializers.DictField(child=serializers.CharField(), allow_null=True)
    request_id = serializers.CharField()
    transaction_id = serializers.UUIDField(allow_null=True)
    xid = serializers.CharField()

    def to_representation(self, instance: Any) -> dict[str, Any]:
        return trail.as_json(instance)


class AuditQuery(QuerySerializer):
    """Criteria of a search of the audit trail. All of them must match."""

    table = TextParameter(
        help_text="All events of the table that has this name now; spelled as in a path."
    )
    target = TextParameter(
        help_text="Its name at that time, with dots, with everything below it: prod.users."
    )
    actor = TextParameter()
    action = TextParameter(help_text="Such as version.create.")
    interface = EnumParameter(Interface)
    outcome = EnumParameter(Outcome)
    key = TextParameter(help_text="The name of an API key.")
    request_id = TextParameter()
    transaction = UUIDParameter()
    since = MomentParameter()
    until = MomentParameter(help_text="Exclusive.")


class ExportQuery(AuditQuery):
    """Criteria of a search, and a format."""

    format = TextParameter(default="csv", help_text=f"One of {', '.join(trail.FORMATS)}.")
