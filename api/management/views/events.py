"""Events, by polling or as a stream."""

from typing import Any

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management import event_stream
from api.management.serializers import events as s
from api.management.viewsets import ManagementViewSet
from catalog.access import Principal
from catalog.services.events import feed


class EventViewSet(ManagementViewSet):
    resource = "Events"
    operation_ids = {"retrieve": "ListEvents"}
    query_classes = {"retrieve": s.EventQuery, "stream": s.StreamQuery}

    @extend_schema(responses=s.EventPageSerializer)
    def retrieve(self, request: Request) -> Response:
        """List the events after a position in the stream of events.

        For programs that poll. The events are CloudEvents, in order.
        """
        query = self.query()
        page = feed.read(
            actor=self.principal,
            after=_position(query["after"]),
            event_filter=self._filter(query),
            limit=query["limit"],
        )
        return Response(s.EventPageSerializer.represent(page))

    @extend_schema(responses={(200, event_stream.MEDIA): OpenApiTypes.STR})
    @action(detail=True, methods=["get"])
    def stream(self, request: Request) -> StreamingHttpResponse:
        """Stream events as server-sent events for some minutes.

        A client that reconnects with ``Last-Event-ID`` misses none.
        """
        query = self.query()
        after = request.META.get("HTTP_LAST_EVENT_ID") or query["after"]
        return event_stream.stream(self, self.principal, _position(after), self._filter(query))

    def authenticate_again(self) -> Principal:
        """Check the credentials of the request again. Raises as KeyAuthentication."""
        (authenticator,) = self.get_authenticators()
        principal: Principal = authenticator.authenticate(self.request)[0]  # type: ignore[index]
        return principal

    def _filter(self, query: dict[str, Any]) -> feed.EventFilter:
        types, namespace = query["types"], query["namespace"]
        return feed.EventFilter(
            types=tuple(name.strip() for name in types.split(",")) if types else (),
            namespace=self.identify(namespace) if namespace else (),
        )


def _position(text: str | None) -> feed.Position | None:
    return feed.Position.parse(text) if text else None
