"""What a drop or a purge affects, as sentences for forms: references to files, and views."""

from collections.abc import Sequence

from django.db.models import QuerySet

from catalog import access
from catalog.access import Principal
from catalog.admin import cells
from catalog.models import Namespace, Table
from catalog.services.storage import file_references
from catalog.services.tables import lineage

_MAX_DEPENDENTS = 10
_MAX_SOURCES = 10
_MAX_NAMED = 10
_MAX_TABLES = 200
_CONSEQUENCE = (
    "Views that read it can no longer be queried, and materialized views no longer refreshed."
)


def of_tables(principal: Principal, rows: Sequence[Table]) -> str:
    """Sentences about what depends on tables that are about to be dropped; or empty."""
    return _of_files(principal, rows) + _of_views(principal, rows)


def of_deregistration(principal: Principal, row: Table) -> str:
    """The same for a table whose files are kept."""
    return _of_views(principal, [row])


def of_namespace(principal: Principal, namespace: Namespace) -> str:
    """The same for the tables in a namespace, and below it, that the user may browse."""
    return _of_files_in(principal, namespace) + _of_views_in(principal, namespace)


def _of_files(principal: Principal, rows: Sequence[Table], others: int = 0) -> str:
    """Sentences about the tables that refer to files of tables about to be dropped; or empty.

    ``others`` is the number of further such tables that have dependents.
    """
    dependents = file_references.dependents_of(principal, [row.pk for row in rows], _MAX_DEPENDENTS)
    sentences = [
        f"\n\nOther tables refer to files of '{row}': {dependents[row.pk]}."
        for row in rows
        if row.pk in dependents
    ]
    if others:
        verb = "has" if others == 1 else "have"
        sentences.append(f" {cells.counted(others, 'more table')} {verb} dependents.")
    remark = " These files are kept as long as the references exist."
    return "".join(sentences) + remark if sentences else ""


def _of_files_in(principal: Principal, namespace: Namespace) -> str:
    """The same for the tables in a namespace, and below it, that the user may browse."""
    below = _visible_below(principal, namespace)
    sources = file_references.with_dependents(below).order_by("namespace__path", "name")
    rows = list(sources[:_MAX_SOURCES])
    others = sources.count() - _MAX_SOURCES if len(rows) == _MAX_SOURCES else 0
    return _of_files(principal, rows, others)


def _of_views(principal: Principal, rows: Sequence[Table], within: Namespace | None = None) -> str:
    """A sentence about the views that read tables about to be dropped; or empty.

    Views that are dropped with them are left out, and all views in the namespace ``within``.
    """
    graph = lineage.impact_of(actor=principal, rows=rows)
    names = [
        f"'{node.table}' ({node.kind_in_words})"
        for node in graph.nodes
        if node.distance > 0 and (within is None or within.pk not in node.table.namespace.ancestors)
    ]
    if not names:
        return ""
    others = len(names) - _MAX_NAMED
    listed = ", ".join(names[:_MAX_NAMED])
    if others > 0:
        plus = "" if graph.is_complete else "at least "
        listed += f", and {plus}{others:,} more"
    return f"\n\nDependent views: {listed}. {_CONSEQUENCE}"


def _of_views_in(principal: Principal, namespace: Namespace) -> str:
    """The same for the tables and views in a namespace, and below it, that the user may browse."""
    rows = list(_visible_below(principal, namespace).order_by("pk")[: _MAX_TABLES + 1])
    text = _of_views(principal, rows[:_MAX_TABLES], namespace)
    if len(rows) > _MAX_TABLES:
        text += f" Only the views of the first {_MAX_TABLES} tables were looked up."
    return text


def _visible_below(principal: Principal, namespace: Namespace) -> QuerySet[Table]:
    below = Table.objects.present().filter(namespace__ancestors__contains=[namespace.pk])
    return below.filter(access.visible_tables(principal)).select_related("namespace")
