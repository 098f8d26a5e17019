"""Reading the states of namespaces and tables at a past moment, and their differences.

``history`` defines the moments, pages and what an actor may see of the results. Every function runs
a fixed number of statements.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from catalog import access
from catalog import history as h
from catalog.access import Principal
from catalog.errors import NamespaceNotFound
from catalog.identifiers import Identifier, digest, label
from catalog.models import Namespace, Table
from catalog.privileges import Privilege
from catalog.services.audit import change_statements, history_statements

MAX_BRANCHES = 100
"""The most branches of one table in a page."""
_NARROW = 50_000
"""The most rows of the ledger, or of the trail, from which the changed tables are derived."""
_EXAMINED = 10_000
"""The most tables that a page examines if more than that was written between the moments."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Conditions of the statements: the selected namespaces, and the objects the actor may browse."""

    namespaces: str
    tables: str
    parameters: Mapping[str, Any]


def scope_of(actor: Principal, namespace: Identifier) -> Scope:
    parameters: dict[str, Any] = {}
    visible_namespaces = Namespace.objects.filter(access.visible_namespaces(actor))
    on_namespaces, on_tables = ["true"], ["true"]
    if not actor.holds_everywhere(Privilege.BROWSE):
        on_namespaces.append(_embed("n.id", visible_namespaces, "n", parameters))
        visible_tables = Table.objects.filter(access.visible_tables(actor))
        on_tables.append(_embed("t.id", visible_tables, "t", parameters))
    if namespace:
        named = visible_namespaces.filter(digest=digest(namespace))
        roots = list(named.values_list("pk", flat=True))
        if not roots:
            raise NamespaceNotFound(namespace)
        parameters["roots"] = roots
        on_namespaces.append("n.ancestors && %(roots)s::bigint[]")
    return Scope(" AND ".join(on_namespaces), " AND ".join(on_tables), parameters)


def _embed(column: str, rows: Any, name: str, parameters: dict[str, Any]) -> str:
    """The condition that a column is a primary key of a queryset, with named parameters."""
    text, values = rows.order_by().values("pk").query.sql_with_params()
    names = iter(f"{name}{index}" for index in range(len(values)))
    used: list[str] = []

    def placeholder(_: re.Match[str]) -> str:
        used.append(next(names))
        return f"%({used[-1]})s"

    text = re.sub(r"(?<!%)%s", placeholder, text)
    parameters |= dict(zip(used, values, strict=True))
    return f"{column} IN ({text})"


def execute(text: str, scope: Scope, **parameters: Any) -> list[tuple[Any, ...]]:
    text = text.replace("{namespaces}", scope.namespaces).replace("{tables}", scope.tables)
    with connection.cursor() as cursor:
        cursor.execute(text, {**scope.parameters, **parameters})
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


class NamedTable(NamedTuple):
    """A table with its name at a moment, in the column order of the statements."""

    namespace_id: int
    path: list[str]
    name: str
    id: int
    uuid: uuid.UUID
    format: str
    kind: str
    is_materialized: bool
    created_at: datetime


def namespaces_at(scope: Scope, at: datetime, *, after: int, limit: int) -> list[h.NamespaceState]:
    rows = execute(history_statements.NAMESPACES, scope, at=at, after=after, limit=limit)
    return [h.NamespaceState(pk, tuple(path), created) for pk, path, created in rows]


def named_tables_at(
    scope: Scope, at: datetime, key: Sequence[str], *, limit: int
) -> list[NamedTable]:
    namespace, name, pk = key
    values = {"in": int(namespace), "name": name, "id": int(pk), "limit": limit}
    return [NamedTable(*row) for row in execute(history_statements.STATE, scope, at=at, **values)]


def states_of(tables: Sequence[NamedTable], at: datetime) -> list[h.TableState]:
    branches = _branches([table.id for table in tables], at)
    return [_state(table, branches.get(table.id, [])) for table in tables]


def _state(table: NamedTable, branches: list[h.BranchState]) -> h.TableState:
    return h.TableState(
        id=table.id,
        uuid=table.uuid,
        identifier=(*table.path, table.name),
        format=table.format,
        kind=table.kind,
        is_materialized=table.is_materialized,
        created_at=table.created_at,
        branches=tuple(sorted(branches[:MAX_BRANCHES], key=lambda state: state.branch)),
        has_more_branches=len(branches) > MAX_BRANCHES,
    )


def _branches(ids: Sequence[int], at: datetime) -> dict[int, list[h.BranchState]]:
    branches: dict[int, list[h.BranchState]] = {}
    if ids:
        rows = execute(
            history_statements.BRANCHES, ANYWHERE, ids=list(ids), at=at, most=MAX_BRANCHES + 1
        )
        for pk, *columns in rows:
            branches.setdefault(pk, []).append(h.BranchState(*columns))
    return branches


ANYWHERE = Scope("true", "true", {})


# --- changes -------------------------------------------------------------------------------------


def changed_namespaces(
    scope: Scope, before: datetime, after: datetime, last: int, limit: int
) -> list[int]:
    rows = execute(
        change_statements.CHANGED_NAMESPACES,
        scope,
        before=before,
        after=after,
        last=last,
        limit=limit,
    )
    return [pk for (pk,) in rows]


def compare_namespaces(
    scope: Scope, ids: Sequence[int], before: datetime, after: datetime
) -> list[h.NamespaceChange]:
    if not ids:
        return []
    old, new = (
        {
            pk: h.NamespaceState(pk, tuple(path), created)
            for pk, path, created in execute(
                history_statements.OF_NAMESPACES, scope, ids=list(ids), at=at
            )
        }
        for at in (before, after)
    )
    targets = {label(state.identifier) for state in (*old.values(), *new.values())}
    traces = {
        target: h.Trace(actor, h.PropertyChange(first, last) if last is not None else None)
        for target, actor, first, last in _decoded(
            execute(
                change_statements.NAMESPACE_TRACES,
                ANYWHERE,
                before=before,
                after=after,
                targets=sorted(targets),
            ),
            columns=(2, 3),
        )
    }
    changes = []
    for pk in ids:
        state = new.get(pk) or old.get(pk)
        trace = traces.get(label(state.identifier), h.NO_TRACE) if state else h.NO_TRACE
        changes.append(h.compare_namespaces(old.get(pk), new.get(pk), trace))
    return [change for change in changes if change is not None]


def changed_tables(
    scope: Scope, before: datetime, after: datetime, last: int, limit: int
) -> tuple[list[int], int | None]:
    """The tables after ``last`` that may have changed, and the last id before the next page."""
    window = {"before": before, "after": after}
    (is_wide,) = execute(change_statements.IS_WIDE, ANYWHERE, **window, most=_NARROW)[0]
    statement = change_statements.WIDE_TABLES if is_wide else change_statements.NARROW_TABLES
    rows = execute(statement, scope, **window, last=last, limit=limit + 1, examined=_EXAMINED)
    ids = [pk for pk, is_walked in rows if not is_walked]
    if len(ids) > limit:
        return ids[:limit], ids[limit - 1]
    return ids, next((pk for pk, is_walked in rows if is_walked), None)


def compare_tables(
    scope: Scope, ids: Sequence[int], before: datetime, after: datetime
) -> list[h.TableChange]:
    if not ids:
        return []
    uuids = list(Table.objects.filter(pk__in=ids).values_list("uuid", flat=True))
    old, new = (
        {
            state.id: state
            for state in states_of(
                [
                    NamedTable(*row)
                    for row in execute(
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
    for pk, branch, count in execute(change_statements.COMMITS, ANYWHERE, ids=list(ids), **window):
        commits.setdefault(pk, {})[branch] = count
    traces = {
        table: h.Trace(actor or "", h.PropertyChange(first, last) if has_properties else None)
        for table, actor, has_properties, first, last in _decoded(
            execute(change_statements.TRACES, ANYWHERE, uuids=uuids, **window), columns=(3, 4)
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
    """Rows with decoded JSON: statements that bypass Django's compiler return it as text."""
    for row in rows:
        values = list(row)
        for column in columns:
            if isinstance(values[column], str):
                values[column] = json.loads(values[column])
        yield tuple(values)
