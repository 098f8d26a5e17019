"""Streams of server-sent events."""

import time
from collections.abc import Generator, Iterator
from typing import Protocol

from django.http import StreamingHttpResponse

from api.management import event_slots
from catalog.access import Principal
from catalog.errors import CatalogError
from catalog.services.events import feed as event_feed


class EventView(Protocol):
    """The view of a stream."""

    def authenticate_again(self) -> Principal:
        """Check the credentials of the request again."""


MEDIA = "text/event-stream"
_STREAM_SECONDS = 300.0
_LOOK_SECONDS = 0.5
_SILENCE_SECONDS = 15.0
_TRUST_SECONDS = 1.0  # the credentials are cached for longer
_RETRY_MILLISECONDS = 1000


def stream(
    view: EventView,
    actor: Principal,
    after: event_feed.Position | None,
    event_filter: event_feed.EventFilter,
) -> StreamingHttpResponse:
    """Return a response that streams events. Raises as ``event_slots.acquire``."""
    event_slots.acquire(actor.name)
    try:
        first = event_feed.read(actor=actor, after=after, event_filter=event_filter)
    except BaseException:
        event_slots.release(actor.name)
        raise
    return StreamingHttpResponse(
        _Stream(_lines(view, actor, event_filter, first), actor.name),
        content_type=MEDIA,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


class _Stream:
    """The lines of a stream. Closing it allows another one."""

    def __init__(self, lines: Generator[str], owner: str) -> None:
        self._lines, self._owner = lines, owner
        self._is_open = True

    def __iter__(self) -> Iterator[str]:
        return self._lines

    def close(self) -> None:
        self._lines.close()
        if self._is_open:
            self._is_open = False
            event_slots.release(self._owner)

    def __del__(self) -> None:  # of a response that was never sent
        self.close()


def _lines(
    view: EventView,
    actor: Principal,
    event_filter: event_feed.EventFilter,
    page: event_feed.Page,
) -> Generator[str]:
    # Not a method: the generator would refer to the stream, which refers to it.
    yield f"retry: {_RETRY_MILLISECONDS}\n\n"
    if not page.rows:
        # A client that is cut off before the first event can resume here.
        yield f"id: {page.position}\n\n"
    ends = time.monotonic() + _STREAM_SECONDS
    spoke = checked = time.monotonic()
    while time.monotonic() < ends:
        for text in event_feed.as_stream(page.rows):
            yield text
            spoke = time.monotonic()
        if page.is_last:
            if time.monotonic() - spoke > _SILENCE_SECONDS:
                # Keeps proxies from closing it, and detects clients that are gone.
                yield f"id: {page.position}\n: nothing yet\n\n"
                spoke = time.monotonic()
            time.sleep(_LOOK_SECONDS)
        try:
            if time.monotonic() - checked > _TRUST_SECONDS:
                actor = view.authenticate_again()  # a revoked key ends the stream
                checked = time.monotonic()
            page = event_feed.read(actor=actor, after=page.position, event_filter=event_filter)
        except CatalogError:
            return
