"""What a request executes: its statements and its calls of functions, the same under any load."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from benchmarks.budget_client import Client
from benchmarks.budget_operations import Prepare

REQUESTS = 3


@dataclass(frozen=True)
class Counts:
    statements: int
    """With BEGIN and COMMIT."""
    calls: int
    """Of functions of Python and C, in the thread of the request."""


def count(client: Client, prepare: Prepare) -> Counts:
    """Count what a request executes.

    The smallest of three numbers each: keys and storage profiles are read again every few seconds.
    """
    statements, calls = [], []
    for request in prepare(client.send, REQUESTS):
        with _captured_statements() as captured:
            client.send(request)
            statements.append(len(captured))
    for request in prepare(client.send, REQUESTS):
        environ = client.environ(request)
        counter = _Counter()
        with counter:
            client.call(environ, request)
        calls.append(counter.calls)
    return Counts(min(statements), min(calls))


class _Counter:
    """Counts the calls of functions by this thread."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> None:
        sys.setprofile(self._count)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1


@contextlib.contextmanager
def _captured_statements() -> Iterator[Sequence[dict[str, str]]]:
    from django.db import connection

    connection.queries_log.clear()
    connection.force_debug_cursor = True
    try:
        yield connection.queries_log  # type: ignore[misc]
    finally:
        connection.force_debug_cursor = False
