"""Fixtures of the tests of maintenance."""

from typing import Any

import pytest


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """Messages to the broker: names of tasks with their arguments."""
    messages: list[tuple[str, list[Any]]] = []
    monkeypatch.setattr(
        "celery.current_app.send_task",
        lambda name, args=(), **_: messages.append((name.rpartition(".")[2], list(args))),
    )
    return messages
