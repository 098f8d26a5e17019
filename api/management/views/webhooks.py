"""Webhooks, which receive events, and their deliveries. For administrators."""

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import events as s
from api.management.viewsets import ManagementViewSet
from catalog.services.events import feed, webhooks


class WebhookViewSet(ManagementViewSet):
    lookup_field = "webhook"
    lookup_value_regex = "[^/]+"
    results_field = "webhooks"
    secret_actions = frozenset({"create", "rotate"})
    resource = "Webhook"
    operation_ids = {"rotate": "RotateWebhookSecret"}

    @extend_schema(responses=s.WebhookSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List webhooks by name."""
        return self.page(partial(webhooks.list_webhooks, actor=self.principal), s.WebhookSerializer)

    @extend_schema(request=s.CreateWebhookSerializer, responses={201: s.NewWebhookSerializer})
    def create(self, request: Request) -> Response:
        """Create a webhook.

        It receives events from now on. The response has its signing secret, which cannot be retrieved
        later.
        """
        body = self.read_body(s.CreateWebhookSerializer)
        body["namespace"] = tuple(body["namespace"] or ())
        row, secret = webhooks.create_webhook(actor=self.principal, **body)
        return Response(
            s.NewWebhookSerializer.represent({"secret": secret, "details": row}), status=201
        )

    @extend_schema(responses=s.WebhookSerializer)
    def retrieve(self, request: Request, webhook: str) -> Response:
        """Get a webhook."""
        row = webhooks.find_webhook(actor=self.principal, name=webhook)
        return Response(s.WebhookSerializer.represent(row))

    @extend_schema(request=s.UpdateWebhookSerializer, responses=s.WebhookSerializer)
    def partial_update(self, request: Request, webhook: str) -> Response:
        """Change a webhook.

        Omitted fields keep their values.
        """
        changes = webhooks.Changes(**self.read_body(s.UpdateWebhookSerializer))
        row = webhooks.update_webhook(actor=self.principal, name=webhook, changes=changes)
        return Response(s.WebhookSerializer.represent(row))

    def destroy(self, request: Request, webhook: str) -> Response:
        """Delete a webhook."""
        webhooks.delete_webhook(actor=self.principal, name=webhook)
        return Response(status=204)

    @extend_schema(request=None, responses=s.WebhookSecretSerializer)
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, webhook: str) -> Response:
        """Replace the signing secret of a webhook.

        The next attempt uses the new secret, which only this response has.
        """
        secret = webhooks.rotate_secret(actor=self.principal, name=webhook)
        return Response(s.WebhookSecretSerializer.represent({"secret": secret}))

    @extend_schema(request=s.ReplaySerializer, responses=s.ReplayedSerializer)
    @action(detail=True, methods=["post"])
    def replay(self, request: Request, webhook: str) -> Response:
        """Send dead letters, or all events after a position in the stream, again."""
        body = self.read_body(s.ReplaySerializer)
        if body["position"] is not None:
            position = feed.Position.parse(body["position"])
            webhooks.replay_from(actor=self.principal, name=webhook, position=position)
            count = None
        else:
            count = webhooks.replay(
                actor=self.principal, name=webhook, deliveries=body["deliveries"]
            )
        return Response(s.ReplayedSerializer.represent({"deliveries": count}))


class DeliveryViewSet(ManagementViewSet):
    results_field = "deliveries"
    operation_ids = {"list": "ListDeliveries"}
    query_classes = {"list": s.DeliveryQuery}

    @extend_schema(responses=s.DeliverySerializer(many=True))
    def list(self, request: Request, webhook: str) -> Response:
        """List the deliveries of a webhook, newest first.

        Deliveries with the status ``dead`` are the dead letters.
        """
        rows = partial(webhooks.list_deliveries, actor=self.principal, name=webhook, **self.query())
        return self.page(rows, s.DeliverySerializer)
