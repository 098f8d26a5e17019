"""The calls of Lance that run in this process for requests."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from catalog.errors import Busy, ServiceUnavailable
from catalog.identifiers import Identifier
from catalog.services.lance.containment.journal import Journal
from catalog.storage.outages import large_inputs
from catalog.storage.outages.availability import serves_requests

T = TypeVar("T")

_WAIT_SECONDS = 0.5
"""How long a suspect call waits for the end of those of other principals."""
_MUST_WAIT_SECONDS = 2.0
"""The same after several processes have ended, when it is refused then."""
_ALONE_SECONDS = 1.0
"""How long other calls wait for a suspect call that began before them."""
_RETRY_SECONDS = 5

journal = Journal()
_changed = threading.Condition()
_running: set["Call"] = set()
"""The calls of this process. Guarded by ``_changed``, like the next."""
_alone: "Call | None" = None
_own: ContextVar["Call | None"] = ContextVar("lance_call", default=None)
"""The call that the thread is in; the threads that it starts for Lance inherit it."""


@dataclass(eq=False, slots=True)
class Call:
    """A call of Lance that a request waits for."""

    table: Identifier
    principal: str
    row: int | None = None
    since: float = 0.0
    is_abandoned: bool = False
    """True if it goes on although the request does not wait for it any more."""


@contextmanager
def contained(table: Identifier, principal: str | None = None) -> Iterator[None]:
    """Note a call of Lance that reads or writes a table, for a request; jobs and commands pass.

    ``principal``: by default that of the thread's request. A call within a call is part of it. Raises
    ServiceUnavailable if calls for the table, or of the principal, have ended processes, and Busy if the call
    must run alone and can't.
    """
    if _own.get() is not None or not serves_requests():
        yield
        return
    call = Call(table, large_inputs.principal() if principal is None else principal)
    _enter(call)
    token = _own.set(call)
    try:
        yield
    finally:
        _own.reset(token)
        if not call.is_abandoned:
            _leave(call)


def each(table: Identifier, principal: str, items: Iterator[T]) -> Iterator[T]:
    """The items of an iterator that calls Lance for each of them. Raises as ``contained``."""
    end = object()
    while True:
        with contained(table, principal):
            item = next(items, end)
        if item is end:
            return
        yield cast(T, item)


def abandon() -> Callable[[], None]:
    """State that the present call continues when its request has ended; returns what ends it."""
    call = _own.get()
    if call is None:
        return lambda: None
    call.is_abandoned = True
    return partial(_leave, call)


def _enter(call: Call) -> None:
    """Wait until a call may begin, and note it."""
    global _alone  # noqa: PLW0603 -- one for the process, like the calls
    verdict = journal.verdict(call.table, call.principal)
    if verdict.refused_seconds > 0:
        raise ServiceUnavailable(
            "Calls for '{target}' have ended processes of the server, which refuses them for some time",
            detail="A file of the table makes Lance use more memory than there is, or fail.",
            retry_seconds=int(verdict.refused_seconds) + 1,
            target=call.table,
        )
    with _changed:
        if verdict.runs_alone:
            seconds = _MUST_WAIT_SECONDS if verdict.must_run_alone else _WAIT_SECONDS
            is_alone = _changed.wait_for(lambda: not _has_others(call), seconds)
        else:
            is_alone = False
            if (alone := _alone) is not None and alone.principal != call.principal:
                seconds = alone.since + _ALONE_SECONDS - time.monotonic()
                _changed.wait_for(lambda: _alone is not alone, max(seconds, 0))
        if verdict.must_run_alone and not is_alone:
            raise Busy(
                "Too many requests wait for '{target}'; try again",
                retry_seconds=_RETRY_SECONDS,
                target=call.table,
            )
        call.row = journal.begin(call.table, call.principal, verdict)
        call.since = time.monotonic()
        _running.add(call)
        if is_alone:
            _alone = call


def _has_others(call: Call) -> bool:
    """True while calls of other principals run: if the process ended now, nobody could say whose fault it was."""
    return any(other.principal != call.principal for other in _running)


def _leave(call: Call) -> None:
    global _alone  # noqa: PLW0603
    journal.end(call.row)
    with _changed:
        _running.discard(call)
        if _alone is call:
            _alone = None
        _changed.notify_all()


def running() -> list[Call]:
    """The calls of this process."""
    with _changed:
        return list(_running)
