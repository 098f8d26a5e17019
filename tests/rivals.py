"""Commits that meet as those of several machines do: none knows of another's turn."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from catalog.services.iceberg import commits as iceberg_commits


class _Alone:
    """The turn of who knows of nobody else."""

    latest = None

    def settle(self) -> None: ...

    def prepared(self, made: object) -> None: ...

    def is_next(self) -> bool:
        return True


@contextmanager
def _no_turns(names: object) -> Iterator[None]:
    yield


def go_without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_commits, "turns", _no_turns)
    monkeypatch.setattr(iceberg_commits, "turn", lambda name: nullcontext(_Alone()))
