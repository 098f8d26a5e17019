"""Names in the audit trail: an event keeps the names that its objects had at that time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from catalog import access
from catalog.access import Principal
from catalog.identifiers import digest
from catalog.models import AuditEvent, Namespace
from catalog.privileges import Privilege

_NAMES = ("name", "source")
"""Keys of the names of tables in events of a table: its own, and the source of a materialized view."""


def visible_names(actor: Principal, names: Iterable[str]) -> set[str]:
    """Those of these names of tables whose namespace the actor may browse. One statement at most."""
    distinct = set(names)
    if not distinct or actor.holds_everywhere(Privilege.BROWSE):
        return distinct
    namespaces = {name: digest(name.split(".")[:-1]) for name in distinct}
    rows = Namespace.objects.filter(
        access.visible_contents(actor, ""), digest__in=namespaces.values()
    )
    browsed = set(rows.values_list("digest", flat=True))
    return {name for name, namespace in namespaces.items() if namespace in browsed}


def visible_in(actor: Principal, rows: Sequence[AuditEvent], table: str) -> set[str] | None:
    """The names in events of a table that the actor may see: always its present name, ``table``.

    None: all. One statement at most.
    """
    if actor.holds_everywhere(Privilege.BROWSE):
        return None
    values = [
        (facts or {}).get(key)
        for row in rows
        for facts in (row.before, row.after)
        for key in _NAMES
    ]
    texts = {value for value in values if isinstance(value, str)}
    return visible_names(actor, texts.union(row.target for row in rows)) | {table}


def without_names(facts: Mapping[str, Any], shown: Collection[str] | None) -> dict[str, Any]:
    """The values of an event without the names that are not among the shown ones; None: all are."""
    return {
        key: value
        for key, value in facts.items()
        if shown is None or key not in _NAMES or value in shown
    }


def hide_names(actor: Principal, rows: Sequence[AuditEvent], table: str) -> None:
    """Remove the names from events of a table that the actor may not see. One statement at most."""
    shown = visible_in(actor, rows, table)
    if shown is None:
        return
    for row in rows:
        row.target = row.target if row.target in shown else ""
        row.before = None if row.before is None else without_names(row.before, shown)
        row.after = None if row.after is None else without_names(row.after, shown)
