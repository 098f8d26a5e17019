"""Commits that conflict like those of several machines, because they do not take turns."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from catalog.services.iceberg import commits as iceberg_commits


class _NoTurn:
    """A turn that ignores other commits."""

    latest = None

    def settle(self) -> None: ...

    def prepared(self, made: object) -> None: ...

    def is_next(self) -> bool:
        return True


@contextmanager
def _no_turns(names: object) -> Iterator[None]:
    yield


def commit_without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_commits, "turns", _no_turns)
    monkeypatch.setattr(iceberg_commits, "turn", lambda name: nullcontext(_NoTurn()))
