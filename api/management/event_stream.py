"""Streams of server-sent events."""

import threading
import time
from collections.abc import Iterator
from typing import Protocol

from django.conf import settings
from django.http import StreamingHttpResponse

from catalog.access import Principal
from catalog.errors import CatalogError, ServiceUnavailable
from catalog.services.events import feed as event_feed


class EventView(Protocol):
    """The view of a stream."""

    def authenticate_again(self) -> Principal:
        """Check the credentials of the request again."""


MEDIA = "text/event-stream"
_STREAM_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_SILENCE_SECONDS = 15.0
_RETRY_MILLISECONDS = 1000
_open = threading.BoundedSemaphore(max(settings.MONODON_EVENT_STREAMS, 1))


def stream(
    view: EventView,
    actor: Principal,
    after: event_feed.Position | None,
    event_filter: event_feed.EventFilter,
) -> StreamingHttpResponse:
    """Return a response that streams events. Raises ServiceUnavailable if too many are open."""
    if not (settings.MONODON_EVENT_STREAMS and _open.acquire(blocking=False)):
        raise ServiceUnavailable("All streams of events are in use; poll for events instead")
    try:
        first = event_feed.read(actor=actor, after=after, event_filter=event_filter)
    except BaseException:
        _open.release()
        raise
    return StreamingHttpResponse(
        _Stream(view, actor, event_filter, first),
        content_type=MEDIA,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


class _Stream:
    """The lines of a stream. Closing it allows another one."""

    def __init__(
        self,
        view: EventView,
        actor: Principal,
        event_filter: event_feed.EventFilter,
        first: event_feed.Page,
    ) -> None:
        self._view, self._actor, self._filter, self._page = view, actor, event_filter, first
        self._lines = self._run()
        self._is_open = True

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def close(self) -> None:
        self._lines.close()  # type: ignore[attr-defined]
        if self._is_open:
            self._is_open = False
            _open.release()

    def __del__(self) -> None:  # of a response that was never sent
        self.close()

    def _run(self) -> Iterator[str]:
        yield f"retry: {_RETRY_MILLISECONDS}\n\n"
        if not self._page.rows:
            # A client that is cut off before the first event can resume here.
            yield f"id: {self._page.position}\n\n"
        ends = time.monotonic() + _STREAM_SECONDS
        spoke = checked = time.monotonic()
        while time.monotonic() < ends:
            for text in event_feed.as_stream(self._page.rows):
                yield text
                spoke = time.monotonic()
            if self._page.is_last:
                if time.monotonic() - spoke > _SILENCE_SECONDS:
                    # Keeps proxies from closing it, and detects clients that are gone.
                    yield f"id: {self._page.position}\n: nothing yet\n\n"
                    spoke = time.monotonic()
                time.sleep(_LOOK_SECONDS)
            try:
                if time.monotonic() - checked > _SILENCE_SECONDS:
                    self._actor = self._view.authenticate_again()  # a revoked key ends the stream
                    checked = time.monotonic()
                self._page = event_feed.read(
                    actor=self._actor, after=self._page.position, event_filter=self._filter
                )
            except CatalogError:
                return
