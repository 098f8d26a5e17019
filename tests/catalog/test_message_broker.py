"""A broker that is unavailable delays no request."""

import time
from collections.abc import Iterator

import pytest
from celery import current_app
from django.conf import settings
from kombu import Connection
from kombu.exceptions import OperationalError

from catalog import message_broker
from tests import clocks
from tests.ports import free_port


@pytest.fixture(autouse=True)
def resumed() -> Iterator[None]:
    message_broker.resume()
    yield
    message_broker.resume()


def send() -> bool:
    return message_broker.send("tasks.x", [[1], [2]], expires=60, effect="2 jobs wait")


def test_messages_are_sent(monkeypatch):
    sent = []
    monkeypatch.setattr(current_app, "send_task", lambda name, **options: sent.append(options))
    assert send()
    assert sent == [{"args": [number], "retry": False, "expires": 60} for number in (1, 2)]


def test_after_a_failure_messages_pause(monkeypatch, caplog):
    attempts = []

    def fail(*arguments, **options):
        attempts.append(arguments)
        raise OperationalError

    monkeypatch.setattr(current_app, "send_task", fail)
    assert not send()
    assert not send()
    assert len(attempts) == 1
    assert caplog.messages == ["The broker is unavailable; 2 jobs wait"]

    clock = time.monotonic() + 6
    clocks.replace(monkeypatch, message_broker, monotonic=lambda: clock)
    assert not send()
    assert len(attempts) == 2


def test_after_a_pause_only_one_thread_tries(monkeypatch):
    """The others do not wait for the attempt, which takes seconds if the broker hangs."""
    attempts = []

    def hang(*arguments, **options):
        attempts.append(send())  # as if another thread sent a message meanwhile
        raise OperationalError

    monkeypatch.setattr(current_app, "send_task", hang)
    monkeypatch.setattr(message_broker, "_is_failing", True)
    assert not send()
    assert attempts == [False]


def test_a_message_that_is_sent_ends_the_failure(monkeypatch):
    monkeypatch.setattr(current_app, "send_task", lambda *arguments, **options: None)
    monkeypatch.setattr(message_broker, "_is_failing", True)
    assert send()
    assert not message_broker._is_failing


def test_a_refused_connection_fails_at_once():
    options = settings.CELERY_BROKER_TRANSPORT_OPTIONS
    broker = Connection(f"redis://127.0.0.1:{free_port()}/0", transport_options=options)
    start = time.monotonic()
    with pytest.raises(OperationalError):
        broker.default_channel.client.ping()
    assert time.monotonic() - start < 3  # six seconds with the defaults of kombu
