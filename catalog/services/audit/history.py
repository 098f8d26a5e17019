"""The state of the catalog at a past moment, and its changes between two moments.

Rows of tables and namespaces remain when they are dropped, and the ledger keeps tombstones. So a past
state follows from the times in the rows, with two exceptions: earlier names of a table, and periods
in which something was dropped and later restored. Those are read from the audit trail, where the ids
of a table's events are in the order of its changes, since they are written under its lock.

All results are pages of limited size, read by a fixed number of statements.
"""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.utils import timezone

from catalog import access
from catalog import history as h
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.models import Namespace
from catalog.privileges import Privilege
from catalog.services.audit import change_statements, history_queries
from catalog.services.engine import transactions
from catalog.services.storage import namespace_locations

PAGE_SIZE = 100
MAX_PAGE = 1000
_CLOCKS = timedelta(minutes=1)

Moment = datetime | uuid.UUID
"""A time, or a transaction, which stands for the time at which it was written."""


@dataclass(frozen=True, slots=True)
class StatePage:
    at: datetime
    namespaces: list[h.NamespaceState]
    tables: list[h.TableState]
    next_page: str | None


@dataclass(frozen=True, slots=True)
class ChangesPage:
    """A page of changes. It may hold fewer than its limit, or none, and still have a next page."""

    since: datetime
    until: datetime
    namespaces: list[h.NamespaceChange]
    tables: list[h.TableChange]
    next_page: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of changes of each kind between two moments."""

    since: datetime
    until: datetime
    namespaces_added: int
    namespaces_dropped: int
    tables_added: int
    tables_dropped: int
    tables_renamed: int
    tables_advanced: int
    """Tables and views that existed at both moments and gained or lost versions in between."""
    commits: int
    """Versions added between the moments, of all tables."""


def _resolve(actor: Principal, moment: Moment) -> datetime:
    """The time of a moment. Raises TransactionNotFound, InvalidInput for the future."""
    if isinstance(moment, uuid.UUID):
        return transactions.time_of_transaction(actor=actor, transaction_id=moment)
    if moment > timezone.now() + _CLOCKS:
        raise InvalidInput(f"Moment {moment.isoformat()} has not come yet")
    return moment


def catalog_at(
    *,
    actor: Principal,
    moment: Moment,
    namespace: Identifier = (),
    limit: int | None = None,
    page_token: str | None = None,
) -> StatePage:
    """A page of the state at a moment: namespaces from the oldest, then tables by namespace and name.

    ``namespace`` limits it to the namespaces that ever had this name and everything below them.
    Objects that the actor may not browse now are left out, and so are the locations of tables that it
    may not read. Raises TransactionNotFound, also for a transaction that the actor may not see;
    NamespaceNotFound for a name that never existed; InvalidInput. Eight statements at most.
    """
    at = _resolve(actor, moment)
    size = _size(limit)
    scope = history_queries.scope_of(actor, namespace)
    is_tables, key = _read_token(page_token, 3)
    namespaces: list[h.NamespaceState] = []
    if not is_tables:
        after = key[0] if key else 0
        namespaces = history_queries.namespaces_at(scope, at, after=int(after), limit=size + 1)
        if len(namespaces) > size:
            return StatePage(at, namespaces[:size], [], _token("n", namespaces[size - 1].id))
        key = []
    room = size - len(namespaces)
    named_tables = history_queries.named_tables_at(scope, at, key or ["0", "", "0"], limit=room + 1)
    page = named_tables[:room]
    if len(named_tables) > room:
        last = page[-1] if page else None
        next_page = (
            _token("t", last.namespace_id, last.id, last.name) if last else _token("t", 0, 0, "")
        )
    else:
        next_page = None
    tables = _redacted_states(actor, history_queries.states_of(page, at))
    return StatePage(at, namespaces, tables, next_page)


def changes_between(
    *,
    actor: Principal,
    since: Moment,
    until: Moment,
    namespace: Identifier = (),
    limit: int | None = None,
    page_token: str | None = None,
) -> ChangesPage:
    """A page of the changes of namespaces, then of tables, each from the oldest row.

    For objects that the actor may not read, a change of properties is reported without the values; for
    namespaces that it may only traverse, the actor of the change is left out. Raises the exceptions
    of ``catalog_at``, and InvalidInput when ``since`` is after ``until``. Twenty statements at
    most.
    """
    before, after = _both(actor, since, until)
    size = _size(limit)
    scope = history_queries.scope_of(actor, namespace)
    is_tables, key = _read_token(page_token, 1)
    last = int(key[0]) if key else 0
    namespaces: list[h.NamespaceChange] = []
    if not is_tables:
        ids = history_queries.changed_namespaces(scope, before, after, last, size + 1)
        namespaces = _redacted_namespace_changes(
            actor, history_queries.compare_namespaces(scope, ids[:size], before, after)
        )
        if len(ids) > size:
            return ChangesPage(before, after, namespaces, [], _token("n", ids[size - 1]))
        last, size = 0, size - len(ids[:size])
        if not size:
            return ChangesPage(before, after, namespaces, [], _token("t", 0))
    ids, last_id = history_queries.changed_tables(scope, before, after, last, size)
    tables = _redacted_table_changes(
        actor, history_queries.compare_tables(scope, ids, before, after)
    )
    token = None if last_id is None else _token("t", last_id)
    return ChangesPage(before, after, namespaces, tables, token)


def count_changes(
    *, actor: Principal, since: Moment, until: Moment, namespace: Identifier = ()
) -> Counts:
    """The number of changes; takes time in proportion to the writes between the moments.

    Raises the exceptions of ``changes_between``. Seven statements at most.
    """
    before, after = _both(actor, since, until)
    scope = history_queries.scope_of(actor, namespace)
    row = history_queries.execute(change_statements.COUNTS, scope, before=before, after=after)[0]
    return Counts(before, after, *row)


# --- parameters ----------------------------------------------------------------------------------


def _both(actor: Principal, since: Moment, until: Moment) -> tuple[datetime, datetime]:
    before, after = _resolve(actor, since), _resolve(actor, until)
    if before > after:
        raise InvalidInput(
            f"The first moment, {before.isoformat()}, is after the second, {after.isoformat()}"
        )
    return before, after


def _size(limit: int | None) -> int:
    return min(limit or PAGE_SIZE, MAX_PAGE)


def _token(*parts: object) -> str:
    return ".".join(map(str, parts))


def _read_token(token: str | None, numbers: int) -> tuple[bool, list[str]]:
    """Return True if a token is in the list of tables, and its key.

    The key of a table in a state is two numbers and a name. Raises InvalidInput.
    """
    if not token:
        return False, []
    kind, *key = token.split(".", numbers if token.startswith("t") else 1)
    length = numbers if kind == "t" else 1
    digits = key[:2]
    is_valid = (
        kind in {"n", "t"}
        and len(key) == length
        and all(text.isascii() and text.isdigit() and len(text) < 19 for text in digits)
        and "\x00" not in token
    )
    if not is_valid:
        raise InvalidInput(f"Page token {token!r} is not one of this list")
    if length == 3:
        key = [key[0], key[2], key[1]]  # as rows are ordered: namespace, name, id
    return kind == "t", key


# --- redaction -----------------------------------------------------------------------------------


def _redacted_states(actor: Principal, states: list[h.TableState]) -> list[h.TableState]:
    readable = access.readable_tables(actor, [state.id for state in states])
    return [
        state
        if state.id in readable
        else replace(
            state, branches=tuple(_without_metadata_location(branch) for branch in state.branches)
        )
        for state in states
    ]


def _redacted_table_changes(actor: Principal, changes: list[h.TableChange]) -> list[h.TableChange]:
    readable = access.readable_tables(actor, [change.id for change in changes])
    return [
        change
        if change.id in readable
        else replace(
            change,
            branches=tuple(
                replace(
                    branch,
                    before=None
                    if branch.before is None
                    else _without_metadata_location(branch.before),
                    after=None
                    if branch.after is None
                    else _without_metadata_location(branch.after),
                )
                for branch in change.branches
            ),
            properties=_HIDDEN if change.properties else None,
        )
        for change in changes
    ]


def _redacted_namespace_changes(
    actor: Principal, changes: list[h.NamespaceChange]
) -> list[h.NamespaceChange]:
    if not changes or actor.holds_everywhere(Privilege.READ):
        return changes
    ids = [change.id for change in changes]
    readable = access.readable_namespaces(actor, ids)
    rows = Namespace.objects.filter(access.visible_contents(actor, ""), pk__in=ids)
    browsed = set(rows.values_list("pk", flat=True))
    return [
        change
        if change.id in readable
        else replace(change, properties=_without_location(change.properties))
        if change.id in browsed
        else replace(change, actor="", properties=_HIDDEN if change.properties else None)
        for change in changes
    ]


_HIDDEN = h.PropertyChange(None, None)


def _without_location(change: h.PropertyChange | None) -> h.PropertyChange | None:
    """The change of a namespace's properties, for principals that may not read it."""
    if change is None:
        return None
    before, after = (
        None if values is None else namespace_locations.without_location(dict(values))
        for values in (change.before, change.after)
    )
    return h.PropertyChange(before, after)


def _without_metadata_location(branch: h.BranchState) -> h.BranchState:
    return replace(branch, metadata_location="")
