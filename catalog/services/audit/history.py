"""What the catalog was at a past moment, and what became of it since, from its own rows.

Rows of tables and namespaces are kept when they are dropped, and the ledger keeps tombstones: so
what was there follows from the times in the rows. Two things do not: an earlier name of a table,
and that something was away for a while and brought back. Those are read from the audit trail, where
the ids of a table's events are in the order of its changes, since they are written under its lock.

Everything is read in pages of a size that is limited, by a fixed number of statements.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection
from django.utils import timezone

from catalog import access
from catalog import history as h
from catalog.access import Principal
from catalog.errors import InvalidInput, NamespaceNotFound, TransactionNotFound
from catalog.identifiers import Identifier, digest, label
from catalog.models import Namespace, Table, Transaction
from catalog.privileges import Privilege
from catalog.services.audit import history_statements
from catalog.services.storage import namespace_locations

PAGE_SIZE = 100
MAX_PAGE = 1000
MAX_BRANCHES = 100
"""Of one table in a page."""
_NARROW = 50_000
"""Rows of the ledger, or of the trail, from which the changed tables are gathered first."""
_EXAMINED = 10_000
"""Tables that a page looks at where more than that was written between the moments."""
_CLOCKS = timedelta(minutes=1)

Moment = datetime | uuid.UUID
"""A time, or a transaction: then the moment when it had been written."""


@dataclass(frozen=True, slots=True)
class StatePage:
    at: datetime
    namespaces: list[h.NamespaceState]
    tables: list[h.TableState]
    next_page: str | None


@dataclass(frozen=True, slots=True)
class ChangesPage:
    """A page may hold fewer than its limit, or nothing, and still lead on."""

    since: datetime
    until: datetime
    namespaces: list[h.NamespaceChange]
    tables: list[h.TableChange]
    next_page: str | None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of each a comparison finds."""

    since: datetime
    until: datetime
    namespaces_added: int
    namespaces_dropped: int
    tables_added: int
    tables_dropped: int
    tables_renamed: int
    tables_advanced: int
    """Tables and views that were there at both moments and got or lost versions between."""
    commits: int
    """Versions entered between the moments, of whatever table."""


def resolve_moment(moment: Moment) -> datetime:
    """The time that a moment means. Raises TransactionNotFound, InvalidInput for the future."""
    if isinstance(moment, uuid.UUID):
        # Written with the last statement of its commit: no time in the commit's rows is later.
        found = Transaction.objects.filter(pk=moment).values_list("created_at", flat=True).first()
        if found is None:
            raise TransactionNotFound(str(moment))
        return found
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
    """A page of what there was: namespaces from the oldest, then tables by namespace and name.

    Of a namespace with all below it, under whatever rows its name was. What the actor may not
    browse now is left out, and where something lies for who may not read it. Raises
    TransactionNotFound, NamespaceNotFound for a name that never was, InvalidInput. Seven statements
    at most.
    """
    at = resolve_moment(moment)
    size = _size(limit)
    scope = _scope(actor, namespace)
    is_tables, key = _read_token(page_token, 3)
    namespaces: list[h.NamespaceState] = []
    if not is_tables:
        after = key[0] if key else 0
        namespaces = _namespaces(scope, at, after=int(after), limit=size + 1)
        if len(namespaces) > size:
            return StatePage(at, namespaces[:size], [], _token("n", namespaces[size - 1].id))
        key = []
    room = size - len(namespaces)
    places = _places_in(scope, at, key or ["0", "", "0"], limit=room + 1)
    shown = places[:room]
    if len(places) > room:
        last = shown[-1] if shown else None
        following = (
            _token("t", last.namespace_id, last.id, last.name) if last else _token("t", 0, 0, "")
        )
    else:
        following = None
    tables = _told(actor, _with_branches(shown, at))
    return StatePage(at, namespaces, tables, following)


def changes_between(
    *,
    actor: Principal,
    since: Moment,
    until: Moment,
    namespace: Identifier = (),
    limit: int | None = None,
    page_token: str | None = None,
) -> ChangesPage:
    """A page of what became of namespaces, then of tables, each from the oldest row.

    Raises what ``catalog_at`` raises, and InvalidInput when ``since`` is after ``until``. Of what
    may not be read only that its properties changed is told, and of namespaces that only lead on not
    who changed them. Eighteen statements at most.
    """
    before, after = _both(since, until)
    size = _size(limit)
    scope = _scope(actor, namespace)
    is_tables, key = _read_token(page_token, 1)
    last = int(key[0]) if key else 0
    namespaces: list[h.NamespaceChange] = []
    if not is_tables:
        ids = _changed_namespaces(scope, before, after, last, size + 1)
        namespaces = _told_of_namespaces(
            actor, _compare_namespaces(scope, ids[:size], before, after)
        )
        if len(ids) > size:
            return ChangesPage(before, after, namespaces, [], _token("n", ids[size - 1]))
        last, size = 0, size - len(ids[:size])
        if not size:
            return ChangesPage(before, after, namespaces, [], _token("t", 0))
    ids, following = _changed_tables(scope, before, after, last, size)
    tables = _told_of_tables(actor, _compare_tables(scope, ids, before, after))
    token = None if following is None else _token("t", following)
    return ChangesPage(before, after, namespaces, tables, token)


def count_changes(
    *, actor: Principal, since: Moment, until: Moment, namespace: Identifier = ()
) -> Counts:
    """How much changed. Its time grows with what was written between the moments.

    Raises what ``changes_between`` raises. Five statements at most.
    """
    before, after = _both(since, until)
    scope = _scope(actor, namespace)
    row = _rows(history_statements.COUNTS, scope, before=before, after=after)[0]
    return Counts(before, after, *row)


# --- what is asked for ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scope:
    """Conditions of the statements: where, and what the actor may browse."""

    namespaces: str
    tables: str
    parameters: Mapping[str, Any]


def _scope(actor: Principal, namespace: Identifier) -> _Scope:
    parameters: dict[str, Any] = {}
    shown = Namespace.objects.filter(access.visible_namespaces(actor))
    on_namespaces, on_tables = ["true"], ["true"]
    if not actor.holds_everywhere(Privilege.BROWSE):
        on_namespaces.append(_embed("n.id", shown, "n", parameters))
        visible = Table.objects.filter(access.visible_tables(actor))
        on_tables.append(_embed("t.id", visible, "t", parameters))
    if namespace:
        roots = list(shown.filter(digest=digest(namespace)).values_list("pk", flat=True))
        if not roots:
            raise NamespaceNotFound(namespace)
        parameters["roots"] = roots
        on_namespaces.append("n.ancestors && %(roots)s::bigint[]")
    return _Scope(" AND ".join(on_namespaces), " AND ".join(on_tables), parameters)


def _embed(column: str, rows: Any, name: str, parameters: dict[str, Any]) -> str:
    """The condition that a column is among the rows of a queryset, with parameters by name."""
    text, values = rows.order_by().values("pk").query.sql_with_params()
    names = iter(f"{name}{index}" for index in range(len(values)))
    used: list[str] = []

    def placeholder(_: re.Match[str]) -> str:
        used.append(next(names))
        return f"%({used[-1]})s"

    text = re.sub(r"(?<!%)%s", placeholder, text)
    parameters |= dict(zip(used, values, strict=True))
    return f"{column} IN ({text})"


def _both(since: Moment, until: Moment) -> tuple[datetime, datetime]:
    before, after = resolve_moment(since), resolve_moment(until)
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
    """Whether a token is one of tables, and its key: two numbers and a name for tables of a state.

    Raises InvalidInput.
    """
    if not token:
        return False, []
    kind, *key = token.split(".", numbers if token.startswith("t") else 1)
    wanted = numbers if kind == "t" else 1
    heads = key[:2]
    is_right = (
        kind in {"n", "t"}
        and len(key) == wanted
        and all(part.isascii() and part.isdigit() and len(part) < 19 for part in heads)
        and "\x00" not in token
    )
    if not is_right:
        raise InvalidInput(f"Page token {token!r} is not one of this list")
    if wanted == 3:
        key = [key[0], key[2], key[1]]  # as rows are ordered: namespace, name, id
    return kind == "t", key


def _rows(text: str, scope: _Scope, **parameters: Any) -> list[tuple[Any, ...]]:
    text = text.replace("{namespaces}", scope.namespaces).replace("{tables}", scope.tables)
    with connection.cursor() as cursor:
        cursor.execute(text, {**scope.parameters, **parameters})
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


# --- what was there ------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A table under the name that it had, as the statements above give it."""

    namespace_id: int
    path: list[str]
    name: str
    id: int
    uuid: uuid.UUID
    format: str
    kind: str
    is_materialized: bool
    created_at: datetime


def _namespaces(scope: _Scope, at: datetime, *, after: int, limit: int) -> list[h.NamespaceState]:
    rows = _rows(history_statements.NAMESPACES, scope, at=at, after=after, limit=limit)
    return [h.NamespaceState(pk, tuple(path), created) for pk, path, created in rows]


def _places_in(scope: _Scope, at: datetime, key: Sequence[str], *, limit: int) -> list[_Place]:
    namespace, name, pk = key
    values = {"in": int(namespace), "name": name, "id": int(pk), "limit": limit}
    return [_Place(*row) for row in _rows(history_statements.STATE, scope, at=at, **values)]


def _with_branches(places: Sequence[_Place], at: datetime) -> list[h.TableState]:
    branches = _branches([place.id for place in places], at)
    return [_state(place, branches.get(place.id, [])) for place in places]


def _state(place: _Place, branches: list[h.BranchState]) -> h.TableState:
    return h.TableState(
        id=place.id,
        uuid=place.uuid,
        identifier=(*place.path, place.name),
        format=place.format,
        kind=place.kind,
        is_materialized=place.is_materialized,
        created_at=place.created_at,
        branches=tuple(sorted(branches[:MAX_BRANCHES], key=lambda found: found.branch)),
        has_more_branches=len(branches) > MAX_BRANCHES,
    )


def _branches(ids: Sequence[int], at: datetime) -> dict[int, list[h.BranchState]]:
    found: dict[int, list[h.BranchState]] = {}
    if ids:
        rows = _rows(
            history_statements.BRANCHES, _ANYWHERE, ids=list(ids), at=at, most=MAX_BRANCHES + 1
        )
        for pk, *columns in rows:
            found.setdefault(pk, []).append(h.BranchState(*columns))
    return found


_ANYWHERE = _Scope("true", "true", {})


# --- what is told of it --------------------------------------------------------------------------


def _told(actor: Principal, states: list[h.TableState]) -> list[h.TableState]:
    readable = access.readable_tables(actor, [state.id for state in states])
    return [
        state
        if state.id in readable
        else replace(state, branches=tuple(_placeless(branch) for branch in state.branches))
        for state in states
    ]


def _told_of_tables(actor: Principal, changes: list[h.TableChange]) -> list[h.TableChange]:
    readable = access.readable_tables(actor, [change.id for change in changes])
    return [
        change
        if change.id in readable
        else replace(
            change,
            branches=tuple(
                replace(
                    branch,
                    before=None if branch.before is None else _placeless(branch.before),
                    after=None if branch.after is None else _placeless(branch.after),
                )
                for branch in change.branches
            ),
            properties=_HIDDEN if change.properties else None,
        )
        for change in changes
    ]


def _told_of_namespaces(
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


def _without_location(found: h.PropertyChange | None) -> h.PropertyChange | None:
    """Properties as who may not read a namespace is told them."""
    if found is None:
        return None
    before, after = (
        None if told is None else namespace_locations.without_location(dict(told))
        for told in (found.before, found.after)
    )
    return h.PropertyChange(before, after)


def _placeless(branch: h.BranchState) -> h.BranchState:
    return replace(branch, metadata_location="")


# --- what became of it ---------------------------------------------------------------------------


def _changed_namespaces(
    scope: _Scope, before: datetime, after: datetime, last: int, limit: int
) -> list[int]:
    rows = _rows(
        history_statements.CHANGED_NAMESPACES,
        scope,
        before=before,
        after=after,
        last=last,
        limit=limit,
    )
    return [pk for (pk,) in rows]


def _compare_namespaces(
    scope: _Scope, ids: Sequence[int], before: datetime, after: datetime
) -> list[h.NamespaceChange]:
    if not ids:
        return []
    old, new = (
        {
            pk: h.NamespaceState(pk, tuple(path), created)
            for pk, path, created in _rows(
                history_statements.OF_NAMESPACES, scope, ids=list(ids), at=at
            )
        }
        for at in (before, after)
    )
    targets = {label(state.identifier) for state in (*old.values(), *new.values())}
    traces = {
        target: h.Trace(actor, h.PropertyChange(first, last) if last is not None else None)
        for target, actor, first, last in _decoded(
            _rows(
                history_statements.NAMESPACE_TRACES,
                _ANYWHERE,
                before=before,
                after=after,
                targets=sorted(targets),
            ),
            columns=(2, 3),
        )
    }
    found = []
    for pk in ids:
        state = new.get(pk) or old.get(pk)
        trace = traces.get(label(state.identifier), h.NO_TRACE) if state else h.NO_TRACE
        found.append(h.compare_namespaces(old.get(pk), new.get(pk), trace))
    return [change for change in found if change is not None]


def _changed_tables(
    scope: _Scope, before: datetime, after: datetime, last: int, limit: int
) -> tuple[list[int], int | None]:
    """Tables that may have changed, behind the last one, and after which the next page begins."""
    window = {"before": before, "after": after}
    (is_wide,) = _rows(history_statements.IS_WIDE, _ANYWHERE, **window, most=_NARROW)[0]
    statement = history_statements.WIDE_TABLES if is_wide else history_statements.NARROW_TABLES
    rows = _rows(statement, scope, **window, last=last, limit=limit + 1, examined=_EXAMINED)
    ids = [pk for pk, is_walked in rows if not is_walked]
    if len(ids) > limit:
        return ids[:limit], ids[limit - 1]
    return ids, next((pk for pk, is_walked in rows if is_walked), None)


def _compare_tables(
    scope: _Scope, ids: Sequence[int], before: datetime, after: datetime
) -> list[h.TableChange]:
    if not ids:
        return []
    uuids = list(Table.objects.filter(pk__in=ids).values_list("uuid", flat=True))
    old, new = (
        {
            state.id: state
            for state in _with_branches(
                [
                    _Place(*row)
                    for row in _rows(
                        history_statements.OF_TABLES, scope, ids=list(ids), uuids=uuids, at=at
                    )
                ],
                at,
            )
        }
        for at in (before, after)
    )
    window = {"before": before, "after": after}
    commits: dict[int, dict[str, int]] = {}
    for pk, branch, count in _rows(history_statements.COMMITS, _ANYWHERE, ids=list(ids), **window):
        commits.setdefault(pk, {})[branch] = count
    traces = {
        found: h.Trace(actor or "", h.PropertyChange(first, last) if is_told else None)
        for found, actor, is_told, first, last in _decoded(
            _rows(history_statements.TRACES, _ANYWHERE, uuids=uuids, **window), columns=(3, 4)
        )
    }
    changes = []
    for pk in ids:
        state = new.get(pk) or old.get(pk)
        trace = traces.get(state.uuid, h.NO_TRACE) if state else h.NO_TRACE
        changes.append(h.compare_tables(old.get(pk), new.get(pk), commits.get(pk), trace))
    return [change for change in changes if change is not None]


def _decoded(
    rows: Iterable[tuple[Any, ...]], *, columns: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """Rows with their JSON read: statements past Django's compiler give it as text."""
    for row in rows:
        values = list(row)
        for column in columns:
            if isinstance(values[column], str):
                values[column] = json.loads(values[column])
        yield tuple(values)
