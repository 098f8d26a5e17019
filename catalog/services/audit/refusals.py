"""Refusals in the audit trail: every refused access, and every refused change.

A refused access is one without valid credentials, one that is not permitted, and, for principals
that may browse only parts of the catalog, one to an object that does not exist: such a refusal hides
what exists. A refused change is a request to change something that met a conflict or was invalid.
Reads with invalid parameters, and failures that are not refusals, are not recorded.

The answer does not wait: ``note`` queues the refusal, and a thread of the process writes the queue
shortly after, in its own transaction. A failed write is logged.

A flood cannot fill the disk. The first refusal of a kind is written at once; those that follow
within a minute are counted and written as one row with ``times``. The number of kinds written per
minute is limited as well (``TokenBucket``; anonymous ones have their own, so that they do not crowd out
the others); further ones are counted in one row per minute, ``refusals.count``. A process that is
killed loses the last counts.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError, connection, transaction
from prometheus_client import Counter

from catalog.access import Principal
from catalog.access.credentials import KEY_PREFIX, key_digest
from catalog.errors import (
    CatalogError,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    ServiceUnavailable,
    Unauthenticated,
    Unsupported,
)
from catalog.models import ApiKey
from catalog.models.audit import Outcome
from catalog.privileges import Privilege
from catalog.services.engine import audit_records
from catalog.services.engine.statements import insert_together
from catalog.token_bucket import TokenBucket

log = logging.getLogger(__name__)

REFUSALS = Counter(
    "monodon_refusals", "Refused access and refused changes.", ["interface", "error"]
)
COUNTED = "refusals.count"
_WINDOW_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
"""The time for which the writer waits for further refusals."""
_LONGEST_TEXT = 1000
NOBODY = "anonymous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One refusal, with the values that the trail records."""

    interface: str
    actor: str
    action: str
    target: str
    error: str
    """The name of the error's class."""
    message: str
    key: str = ""
    digest: str = ""
    """The digest of a presented key that was refused; its name is looked up."""
    address: str = ""
    request_id: str = ""
    context: Mapping[str, str] = field(default_factory=dict)
    is_anonymous: bool = False

    @property
    def kind(self) -> tuple[str, ...]:
        """The values by which refusals are counted. A client can vary the target of anonymous ones."""
        if self.is_anonymous:
            return (self.interface, self.error, self.address, self.digest)
        return (self.interface, self.actor, self.key, self.action, self.target, self.error)


@dataclass(kw_only=True)
class NewRefusal(audit_records.NewEvent):
    """An audit row of a refusal, to be written."""

    outcome: str
    error: str


def concerns(error: CatalogError, actor: Principal | None, *, changes: bool) -> bool:
    """True if a refusal belongs in the trail. ``changes``: the request would change something."""
    if isinstance(error, PermissionDenied | Unauthenticated):
        return True
    if actor is None or isinstance(error, ServiceUnavailable | OutcomeUnknown | Unsupported):
        return False
    return changes or (isinstance(error, NotFound) and not actor.holds_everywhere(Privilege.BROWSE))


def note(
    error: CatalogError,
    *,
    actor: Principal | None,
    interface: str,
    action: str,
    target: str = "",
    presented_key: str = "",
    address: str = "",
    request_id: str = "",
) -> None:
    """Queue a refusal to be written soon. Never raises; takes microseconds.

    ``actor`` None: the request was not authenticated, and ``presented_key`` is the text that it sent.
    The SHA-256 of a key of this catalog leads to its name, if it has one; the key is not stored.
    """
    if isinstance(error, Unauthenticated):
        actor = None
    is_ours = actor is None and presented_key.startswith(KEY_PREFIX)
    refusal = Refusal(
        interface=interface,
        actor=NOBODY if actor is None else actor.name,
        action=action,
        target=_clean(target),
        error=type(error).__name__,
        message=_clean(error.message),
        key="" if actor is None else actor.key,
        digest=key_digest(presented_key) if is_ours else "",
        address=address,
        request_id=request_id or ("" if actor is None else actor.request_id),
        context={} if actor is None else actor.context,
        is_anonymous=actor is None,
    )
    REFUSALS.labels(interface, refusal.error).inc()
    ledger.add(refusal)


def write(refusals: Collection[tuple[Refusal, int]]) -> None:
    """Write refusals with their counts, in one statement and its own transaction."""
    names = _names_of_keys({refusal.digest for refusal, _ in refusals if refusal.digest})
    rows = []
    for refusal, times in refusals:
        values: dict[str, Any] = {"times": times} if times > 1 else {}
        if refusal.address:
            values["address"] = refusal.address
        rows.append(
            NewRefusal(
                actor=refusal.actor,
                action=refusal.action,
                target=refusal.target,
                table_uuid=None,
                before=None,
                after=values or None,
                context=audit_records.masked(dict(refusal.context)) or None,
                request_id=refusal.request_id,
                transaction_id=None,
                interface=refusal.interface,
                key=refusal.key or names.get(refusal.digest, ""),
                outcome=Outcome.REFUSED.value,
                error=f"{refusal.error}: {audit_records.masked(refusal.message)}",
            )
        )
    with transaction.atomic():
        insert_together(rows)


def _names_of_keys(digests: Collection[str]) -> dict[str, str]:
    if not digests:
        return {}
    return dict(ApiKey.objects.filter(digest__in=digests).values_list("digest", "name"))


def _clean(text: str) -> str:
    """The text in a form that PostgreSQL can store, cut to a reasonable length."""
    return text[:_LONGEST_TEXT].replace("\x00", "").encode("utf-8", "replace").decode()


@dataclass(slots=True)
class _Kind:
    """A kind of refusals that was written recently, and the number that followed."""

    until: float
    last: Refusal
    more: int = 0


class Ledger:
    """Selects the refusals to write, and writes them in its own thread."""

    def __init__(
        self,
        deliver: Callable[[Collection[tuple[Refusal, int]]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``deliver`` replaces the thread: it is called with the due refusals at once."""
        self.deliver = deliver
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Reset the state: nothing is queued, and this process has no writer thread."""
        self._ready = threading.Condition()
        self._kinds: dict[tuple[str, ...], _Kind] = {}
        self._buckets = {
            False: TokenBucket(300, 5.0, clock=self._clock),
            True: TokenBucket(60, 1.0, clock=self._clock),
        }
        self._beyond: dict[tuple[str, ...], _Kind] = {}
        self._due: list[tuple[Refusal, int]] = []
        self._writer: threading.Thread | None = None

    def add(self, refusal: Refusal) -> None:
        with self._ready:
            now = self._clock()
            self._collect(now)
            kind = self._kinds.get(refusal.kind)
            if kind is not None:
                kind.more, kind.last = kind.more + 1, refusal
            elif self._buckets[refusal.is_anonymous].take():
                self._kinds[refusal.kind] = _Kind(now + _WINDOW_SECONDS, refusal)
                self._due.append((refusal, 1))
            else:
                self._count(refusal, now)
            if self.deliver is not None:
                due, self._due = self._due, []
            else:
                due = []
                self._wake()
        if due and self.deliver is not None:
            self.deliver(due)

    def _count(self, refusal: Refusal, now: float) -> None:
        key = (refusal.interface, "anonymous" if refusal.is_anonymous else "")
        kind = self._beyond.get(key)
        if kind is None:
            summary = Refusal(
                interface=refusal.interface,
                actor=NOBODY if refusal.is_anonymous else "",
                action=COUNTED,
                target="",
                error="TooMany",
                message="More kinds of refusals than are written one by one",
                is_anonymous=refusal.is_anonymous,
            )
            kind = self._beyond[key] = _Kind(now + _WINDOW_SECONDS, summary)
        kind.more += 1

    def _collect(self, now: float, *, everything: bool = False) -> None:
        """Queue the counts whose period is over."""
        for kinds in (self._kinds, self._beyond):
            over = [key for key, kind in kinds.items() if everything or kind.until <= now]
            for kind in map(kinds.pop, over):
                if kind.more:
                    self._due.append((kind.last, kind.more))

    # -- the thread

    def _wake(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._run, name="refusals", daemon=True)
            self._writer.start()
        elif self._due:
            self._ready.notify()

    def _run(self) -> None:
        while True:
            with self._ready:
                if not self._due:
                    self._ready.wait(_WINDOW_SECONDS / 4)
            time.sleep(_PAUSE_SECONDS)
            self.flush(self._take(everything=False))

    def _take(self, *, everything: bool) -> list[tuple[Refusal, int]]:
        with self._ready:
            self._collect(self._clock(), everything=everything)
            due, self._due = self._due, []
            return due

    def flush(self, due: Collection[tuple[Refusal, int]] | None = None) -> None:
        """Write the due refusals, or all that are queued. Failures are logged."""
        if due is None:
            due = self._take(everything=True)
        if not due:
            return
        try:
            write(due)
        except (DatabaseError, InterfaceError, TypeError, ValueError) as error:
            # Also for rows that can never be written: the thread has to continue with the others.
            log.error("%d refusals could not be written to the audit trail: %s", len(due), error)
        finally:
            if not connection.in_atomic_block:
                connection.close()


ledger = Ledger()
atexit.register(ledger.flush)
os.register_at_fork(after_in_child=ledger.forget)
