"""Events: asking for them, having them streamed, and webhooks."""

import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.http import StreamingHttpResponse

from api.management import event_messages as m
from api.management.operation import ManagementOperation, SecretOperation
from catalog.access import Principal
from catalog.errors import CatalogError, InvalidInput, ServiceUnavailable
from catalog.models import DeliveryStatus
from catalog.services.events import feed as event_feed
from catalog.services.events import webhooks

_STREAM = "text/event-stream"
_STREAM_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_SILENCE_SECONDS = 15.0
_RETRY_MILLISECONDS = 1000
_DESCRIBED: dict[str, dict[str, Any]] = {
    "after": {
        "description": "The id of an event, or the place that an answer told; 0-0 is the beginning"
        " of what the trail still has. By default what happens from now on.",
        "schema": {"type": "string"},
    },
    "types": {
        "description": "Such as table.create,table.drop or view.*; with commas between several.",
        "schema": {"type": "string"},
    },
    "namespace": {
        "description": "What happens in it and below; spelled as in a path.",
        "schema": {"type": "string"},
    },
    "status": {"schema": {"type": "string", "enum": DeliveryStatus.values}},
}
_open = threading.BoundedSemaphore(max(settings.MONODON_EVENT_STREAMS, 1))


class _EventOperation(ManagementOperation):
    described = _DESCRIBED

    def choice(self) -> event_feed.EventFilter:
        """What the parameters say. Raises InvalidInput."""
        types = self.query_values.get("types") or ""
        return event_feed.EventFilter(
            types=tuple(name.strip() for name in types.split(",")) if types else (),
            namespace=self.named("namespace") or (),
        )

    def after(self) -> event_feed.Position | None:
        text = self.query_values.get("after")
        return event_feed.Position.parse(text) if text else None


class ListEvents(_EventOperation):
    """Events behind a place, as many as there are, for programs that ask now and then."""

    response_model = m.EventPage
    query = ("after", "types", "namespace", "limit")

    def handle(self, actor: Principal, body: None) -> m.EventPage:
        page = event_feed.read(
            actor=actor, after=self.after(), event_filter=self.choice(), limit=self.count("limit")
        )
        events = [event_feed.as_cloud_event(row) for row in page.rows]
        return m.EventPage(events=events, place=str(page.position), is_last=page.is_last)


class StreamEvents(_EventOperation):
    """Server-sent events for some minutes; who comes back with Last-Event-ID misses none."""

    media = (_STREAM,)
    query = ("after", "types", "namespace")

    def handle(self, actor: Principal, body: None) -> StreamingHttpResponse:
        last = self.request.META.get("HTTP_LAST_EVENT_ID")
        after = event_feed.Position.parse(last) if last else self.after()
        choice = self.choice()
        if not (settings.MONODON_EVENT_STREAMS and _open.acquire(blocking=False)):
            raise ServiceUnavailable("All streams of events are taken; ask for events instead")
        try:
            first = event_feed.read(actor=actor, after=after, event_filter=choice)
        except BaseException:
            _open.release()
            raise
        return StreamingHttpResponse(
            _Stream(self, actor, choice, first),
            content_type=_STREAM,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


class _Stream:
    """The lines of a stream. Closing it gives its place to another one."""

    def __init__(
        self,
        operation: ManagementOperation,
        actor: Principal,
        choice: event_feed.EventFilter,
        first: event_feed.Page,
    ) -> None:
        self._operation, self._actor, self._choice, self._page = operation, actor, choice, first
        self._lines = self._run()
        self._is_open = True

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def close(self) -> None:
        self._lines.close()  # type: ignore[attr-defined]
        if self._is_open:
            self._is_open = False
            _open.release()

    def __del__(self) -> None:  # of an answer that nobody sent
        self.close()

    def _run(self) -> Iterator[str]:
        yield f"retry: {_RETRY_MILLISECONDS}\n\n"
        if not self._page.rows:  # so that who loses the stream before the first event has a place
            yield f"id: {self._page.position}\n\n"
        ends = time.monotonic() + _STREAM_SECONDS
        spoke = checked = time.monotonic()
        while time.monotonic() < ends:
            for text in event_feed.as_stream(self._page.rows):
                yield text
                spoke = time.monotonic()
            if self._page.is_last:
                if time.monotonic() - spoke > _SILENCE_SECONDS:
                    # So that proxies keep it open, and who is gone is noticed.
                    yield f"id: {self._page.position}\n: nothing yet\n\n"
                    spoke = time.monotonic()
                time.sleep(_LOOK_SECONDS)
            try:
                if time.monotonic() - checked > _SILENCE_SECONDS:
                    self._actor = self._operation.authenticate()  # who lost the key hears no more
                    checked = time.monotonic()
                self._page = event_feed.read(
                    actor=self._actor, after=self._page.position, event_filter=self._choice
                )
            except CatalogError:
                return


class _WebhookOperation(ManagementOperation):
    described = _DESCRIBED


class ListWebhooks(_WebhookOperation):
    """Webhooks by name."""

    response_model = m.WebhookPage
    query = ("limit", "page_token")

    def handle(self, actor: Principal, body: None) -> m.WebhookPage:
        rows, token = webhooks.list_webhooks(actor=actor, **self.page)
        return m.WebhookPage(
            webhooks=[m.WebhookModel.of(row) for row in rows], next_page_token=token
        )


class CreateWebhook(SecretOperation):
    """Tell a receiver of events from now on. Its signing secret is in this answer alone."""

    verb = "POST"
    changes = True
    request_model = m.CreateWebhookRequest
    response_model = m.NewWebhook
    status = HTTPStatus.CREATED

    def handle(self, actor: Principal, body: m.CreateWebhookRequest) -> m.NewWebhook:
        row, secret = webhooks.create_webhook(
            actor=actor,
            name=body.name,
            url=body.url,
            types=body.types,
            namespace=tuple(body.namespace or ()),
        )
        return m.NewWebhook(secret=secret, details=m.WebhookModel.of(row))


class GetWebhook(_WebhookOperation):
    """A webhook."""

    response_model = m.WebhookModel

    def handle(self, actor: Principal, body: None, webhook: str) -> m.WebhookModel:
        return m.WebhookModel.of(webhooks.find_webhook(actor=actor, name=webhook))


class UpdateWebhook(_WebhookOperation):
    """Change a webhook; what is left out stays as it is."""

    verb = "PATCH"
    changes = True
    request_model = m.UpdateWebhookRequest
    response_model = m.WebhookModel

    def handle(
        self, actor: Principal, body: m.UpdateWebhookRequest, webhook: str
    ) -> m.WebhookModel:
        changes = webhooks.Changes(**dict(body))
        return m.WebhookModel.of(
            webhooks.update_webhook(actor=actor, name=webhook, changes=changes)
        )


class DeleteWebhook(_WebhookOperation):
    """Tell a receiver nothing any more."""

    verb = "DELETE"
    changes = True

    def handle(self, actor: Principal, body: None, webhook: str) -> None:
        webhooks.delete_webhook(actor=actor, name=webhook)


class RotateWebhookSecret(SecretOperation):
    """Sign with a new secret from the next attempt on."""

    verb = "POST"
    changes = True
    response_model = m.WebhookSecret

    def handle(self, actor: Principal, body: None, webhook: str) -> m.WebhookSecret:
        return m.WebhookSecret(secret=webhooks.rotate_secret(actor=actor, name=webhook))


class ListDeliveries(_WebhookOperation):
    """What a webhook was told, the newest first; ``status=dead`` are the dead letters."""

    response_model = m.DeliveryPage
    query = ("status", "limit", "page_token")

    def handle(self, actor: Principal, body: None, webhook: str) -> m.DeliveryPage:
        chosen = self.chosen("status", DeliveryStatus)
        if len(chosen) > 1:
            raise InvalidInput("Query parameter 'status' takes one value")
        rows, token = webhooks.list_deliveries(
            actor=actor, name=webhook, status=chosen[0] if chosen else None, **self.page
        )
        return m.DeliveryPage(
            deliveries=[m.DeliveryModel.of(row) for row in rows], next_page_token=token
        )


class ReplayWebhook(_WebhookOperation):
    """Send dead letters again, or everything from a place in the stream on."""

    verb = "POST"
    changes = True
    request_model = m.ReplayRequest
    response_model = m.Replayed

    def handle(self, actor: Principal, body: m.ReplayRequest, webhook: str) -> m.Replayed:
        if [body.dead, body.deliveries, body.place].count(None) != 2:
            raise InvalidInput("Say one of 'dead', 'deliveries' and 'place'")
        if body.place is not None:
            position = event_feed.Position.parse(body.place)
            webhooks.replay_from(actor=actor, name=webhook, position=position)
            return m.Replayed(deliveries=None)
        count = webhooks.replay(actor=actor, name=webhook, deliveries=body.deliveries)
        return m.Replayed(deliveries=count)
