"""The number of event streams of a process, and of one principal."""

import gc
import threading
from collections import Counter, deque
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from api.errors import TooManyRequests
from api.management import event_slots, event_stream
from catalog.access import Principal
from catalog.errors import ServiceUnavailable


@pytest.fixture(autouse=True)
def _none_is_open(monkeypatch) -> None:
    """Streams of other tests are open until their responses are collected as garbage."""
    gc.collect()
    monkeypatch.setattr(event_slots, "_open", Counter())
    monkeypatch.setattr(event_slots, "_closed", deque())


def test_streams_are_counted(settings):
    settings.MONODON_EVENT_STREAMS = 2
    event_slots.acquire("a")
    event_slots.require_free("b")
    event_slots.acquire("b")
    with pytest.raises(ServiceUnavailable, match="are in use; poll for events"):
        event_slots.acquire("c")
    with pytest.raises(ServiceUnavailable):
        event_slots.require_free("c")
    event_slots.release("a")
    event_slots.acquire("c")  # the refusal has not counted
    event_slots.release("b")
    event_slots.release("c")
    event_slots.require_free("d")
    assert not event_slots._open


@pytest.mark.parametrize(("most", "share"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_one_principal_gets_half_of_the_streams(settings, most, share):
    settings.MONODON_EVENT_STREAMS = most
    for _ in range(share):
        event_slots.acquire("a")
    refusal = TooManyRequests if share < most else ServiceUnavailable
    for use in (event_slots.require_free, event_slots.acquire):
        with pytest.raises(refusal):
            use("a")
    assert event_slots._open == {"a": share}
    for number in range(most - share):
        event_slots.acquire(f"other {number}")
    event_slots.release("a")
    event_slots.acquire("a")


def test_no_streams_are_possible(settings):
    settings.MONODON_EVENT_STREAMS = 0
    with pytest.raises(ServiceUnavailable):
        event_slots.acquire("a")


def test_a_stream_is_closed_in_a_thread_that_counts_streams():
    """As the garbage collector may do."""
    event_slots.acquire("a")

    def collect() -> None:
        with event_slots._lock:
            event_slots.release("a")

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    event_slots.require_free("a")
    assert not event_slots._open


def test_a_stream_that_is_never_sent_is_closed_without_the_garbage_collector(monkeypatch):
    page = SimpleNamespace(rows=(), position="0-0", is_last=True)
    monkeypatch.setattr(event_stream.event_feed, "read", lambda **_: page)
    gc.disable()
    try:
        response = event_stream.stream(Mock(), Principal("a"), None, Mock())
        assert next(iter(response)) == b"retry: 1000\n\n"
        del response
        assert list(event_slots._closed) == ["a"]
    finally:
        gc.enable()
