"""Serializers of events, webhooks and the audit trail."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.management import fields
from api.management.serializers.base import QuerySerializer, Serializer
from catalog.models import AuditEvent, DeliveryStatus, Webhook, WebhookDelivery
from catalog.models.audit import Interface, Outcome
from catalog.services.audit import trail
from catalog.services.events import feed

_TYPES = "Patterns such as table.create, table.* or view.*. Empty: all."
_NAMESPACE = "Only events in this namespace and below, as a list of names. Null: all events."

# --- events ----------------------------------------------------------------------------------------


class EventPageSerializer(Serializer):
    """Events in order. Continue with ``after`` = ``position``, at once unless ``is_last``."""

    events = serializers.SerializerMethodField(help_text="CloudEvents 1.0 in JSON.")
    position = serializers.SerializerMethodField(
        help_text="The position in the stream after these events."
    )
    is_last = serializers.BooleanField(help_text="Whether these are the newest events.")

    def get_events(self, page: feed.Page) -> list[dict[str, Any]]:
        return [feed.as_cloud_event(row) for row in page.rows]

    def get_position(self, page: feed.Page) -> str:
        return str(page.position)


class StreamQuery(QuerySerializer):
    """A selection of events."""

    after = fields.TextParameter(
        help_text="The id of an event or a position in the stream; 0-0 is the beginning of the audit"
        " trail. By default, events from now on."
    )
    types = fields.TextParameter(
        help_text="Such as table.create,table.drop or view.*; separated by commas."
    )
    namespace = fields.TextParameter(help_text="Events in it and below; spelled as in a path.")


class EventQuery(StreamQuery):
    """A selection of events, and their number."""

    limit = fields.CountParameter(help_text="The most events of the response.")


# --- webhooks --------------------------------------------------------------------------------------


class CreateWebhookSerializer(Serializer):
    """A webhook to create."""

    name = fields.TextField()
    url = fields.TextField(help_text="The URL that receives the events; https.")
    types = fields.ListField(default=list, help_text=_TYPES)
    namespace = fields.ListField(**fields.OPTIONAL, help_text=_NAMESPACE)


class UpdateWebhookSerializer(Serializer):
    """Changes of a webhook. Omitted fields keep their values."""

    url = fields.TextField(**fields.OPTIONAL)
    types = fields.ListField(**fields.OPTIONAL, help_text=_TYPES)
    is_active = fields.FlagField(
        **fields.OPTIONAL,
        help_text="An inactive webhook receives nothing; when activated, it continues where it"
        " stopped.",
    )


class WebhookSerializer(Serializer):
    """A webhook."""

    name = serializers.CharField()
    url = serializers.CharField()
    types = fields.NamesField()
    namespace = fields.NamesField(source="namespace.path", allow_null=True)
    is_active = serializers.BooleanField()
    position = serializers.SerializerMethodField(
        help_text="The position in the stream up to which events were sent."
    )
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()

    def get_position(self, row: Webhook) -> str:
        return f"{row.xid}-{row.event}"


class NewWebhookSerializer(Serializer):
    """A new webhook with its secret, which no later response contains.

    The secret verifies the signatures (Standard Webhooks).
    """

    secret = serializers.CharField()
    details = WebhookSerializer()


class WebhookSecretSerializer(Serializer):
    """A new signing secret, which no later response contains."""

    secret = serializers.CharField()


class DeliverySerializer(Serializer):
    """A delivery of an event."""

    id = serializers.IntegerField(source="pk")
    event = serializers.IntegerField()
    type = serializers.CharField()
    target = serializers.CharField()
    event_at = serializers.DateTimeField()
    status = fields.EnumField(DeliveryStatus)
    attempts = serializers.IntegerField()
    answer = serializers.CharField(help_text="The result of the last attempt.")
    due_at = serializers.SerializerMethodField(help_text="The time of the next attempt.")
    delivered_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_due_at(self, row: WebhookDelivery) -> Any:
        return row.due_at if row.status == DeliveryStatus.PENDING else None


class DeliveryQuery(QuerySerializer):
    """A filter of deliveries."""

    status = fields.EnumParameter(DeliveryStatus, help_text="Only deliveries in this state.")


class ReplaySerializer(Serializer):
    """The events to send again: one of the three fields."""

    dead = fields.FlagField(**fields.OPTIONAL, help_text="All dead letters; only true.")
    deliveries = serializers.ListField(
        child=fields.WholeNumberField(), **fields.OPTIONAL, help_text="These dead letters."
    )
    position = fields.TextField(
        **fields.OPTIONAL, help_text="All events of the webhook after this position in the stream."
    )

    def validate_dead(self, dead: bool | None) -> bool | None:
        if dead is False:
            raise serializers.ValidationError("Use true, or omit it.")
        return dead

    def validate(self, attrs: Any) -> Any:
        if [attrs["dead"], attrs["deliveries"], attrs["position"]].count(None) != 2:
            raise serializers.ValidationError("Use one of 'dead', 'deliveries' and 'position'.")
        return attrs


class ReplayedSerializer(Serializer):
    """The result of a replay."""

    deliveries = serializers.IntegerField(
        allow_null=True, help_text="The number of dead letters. Null: from a position on."
    )


# --- the audit trail -------------------------------------------------------------------------------


class AuditEventSerializer(Serializer, serializers.ModelSerializer[AuditEvent]):
    """An event of the audit trail. ``before`` and ``after`` hold only what the action changed."""

    xid = serializers.CharField(read_only=True)

    class Meta:
        model = AuditEvent
        fields = read_only_fields = trail.COLUMNS

    def to_representation(self, instance: AuditEvent) -> dict[str, Any]:
        return trail.as_json(instance)


class AuditQuery(QuerySerializer):
    """Criteria of a search of the audit trail. All of them must match."""

    table = fields.TextParameter(
        help_text="All events of the table that has this name now; spelled as in a path."
    )
    target = fields.TextParameter(
        help_text="Its name at that time, with dots, with everything below it: prod.users."
    )
    actor = fields.TextParameter(help_text="The name of a principal.")
    action = fields.TextParameter(help_text="Such as version.create.")
    interface = fields.EnumParameter(Interface, help_text="The interface of the request.")
    outcome = fields.EnumParameter(Outcome, help_text="Whether the change was made.")
    key = fields.TextParameter(help_text="The name of an API key.")
    request_id = fields.TextParameter(help_text="The id of the request, from `x-request-id`.")
    transaction = fields.UUIDParameter(help_text="The id of a transaction.")
    since = fields.MomentParameter(help_text="Inclusive.")
    until = fields.MomentParameter(help_text="Exclusive.")


class ExportQuery(AuditQuery):
    """Criteria of a search, and a format."""

    format = fields.TextParameter(default="csv", help_text=f"One of {', '.join(trail.FORMATS)}.")
