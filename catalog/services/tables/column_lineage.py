"""Lineage of columns: what the columns of a view are made from, and which columns of views read one.

A view is an Iceberg view or a materialized view. Only columns of tables and views that the actor may
read are part of an answer. The schemas are those that the search has read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from uuid import UUID

from catalog import access
from catalog.access import On, Principal
from catalog.errors import InvalidInput
from catalog.formats import view_queries
from catalog.formats.iceberg.views import stored_columns
from catalog.formats.iceberg.views.relations import ALL
from catalog.formats.iceberg.views.stored_columns import Candidate, StoredColumn
from catalog.formats.lance import filters, paths
from catalog.identifiers import Identifier
from catalog.models import (
    MaterializedView,
    SearchDocument,
    Table,
    TableKind,
    TableState,
    ViewQuery,
    ViewSource,
)
from catalog.privileges import Privilege
from catalog.services.tables import tables

MAX_VIEWS = 50
"""Views of each kind whose definitions are read for the readers of a table."""
MAX_READERS = 1_000
_MAX_TABLES = 200  # whose names and schemas are read
_MAX_DIGESTS = 5_000  # that the names may have
_NOT_DERIVED = "The SQL of the view is not parsed yet."
_UNREADABLE = "The stored query of the view cannot be read."
_SEVERAL = "Several columns have this name; the view reads one of them."
_NO_SCHEMA = "The columns of a source are not known yet."
_NOT_READABLE = "A source is not a column that you may read."


@dataclass(frozen=True, slots=True)
class Origin:
    """A column that a view reads; ``ALL`` for all columns of the table."""

    table: Table
    column: str


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a view, as a principal may see its origins."""

    name: str
    origins: tuple[tuple[Origin, ...], ...]
    """The columns that it is made from. Of several columns in an element, the view reads one."""
    is_copy: bool
    remarks: tuple[str, ...] = ()
    """Sentences on origins that are missing or not certain."""
    dialects: tuple[str, ...] = ()
    """The dialects with this definition, if those of others differ."""


@dataclass(frozen=True, slots=True)
class ViewColumns:
    """The columns of a view."""

    columns: tuple[ViewColumn, ...] = ()
    problem: str = ""
    """Why columns are missing; empty if there are all."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A column of a view that reads a column of a table."""

    column: str
    view: Table
    view_column: str
    is_copy: bool
    is_certain: bool
    """False if it may read a column of another table instead."""


@dataclass(frozen=True, slots=True)
class Readers:
    """The columns of views that read a table, by column and view."""

    readers: tuple[Reader, ...] = ()
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """Both sides of a table or view."""

    columns: ViewColumns
    """Empty if it is no view."""
    readers: Readers


def lineage_of(*, actor: Principal, table: Identifier) -> ColumnLineage:
    """The lineage of the columns of a table or view. Requires READ. Raises NamespaceNotFound, TableNotFound."""
    access.require(actor, Privilege.READ, On.table(table))
    row = Table.objects.named(table).select_related("namespace").first()
    if row is None:
        raise tables.not_found(table)
    # Names may have been exchanged since the check.
    access.require(actor, Privilege.READ, row)
    return ColumnLineage(
        columns_of(actor=actor, row=row) or ViewColumns(),
        readers_of(actor=actor, row=row) or Readers(),
    )


def columns_of(*, actor: Principal, row: Table) -> ViewColumns | None:
    """What the columns of a view are made from; None if it is no view, or the actor may not read it.

    Five statements at most.
    """
    if not (row.is_materialized or row.kind == TableKind.VIEW):
        return None
    if not access.holds(actor, Privilege.READ, row):
        return None
    if row.kind == TableKind.VIEW:
        document = ViewQuery.objects.filter(view=row).values_list("columns", flat=True).first()
        if document is None:
            return ViewColumns(problem=_NOT_DERIVED)
        stored = stored_columns.from_json(document)
        sources = _named(actor, _digests(stored))
        return ViewColumns(tuple(sources.resolve(c) for c in stored), document["problem"])
    view = MaterializedView.objects.select_related("source__namespace").filter(table=row).first()
    if view is None:
        return None
    sources = _loaded(actor, [view.source])
    columns = tuple(sources.resolve(column) for column in _defined(view, sources))
    return ViewColumns(columns, "" if columns else _UNREADABLE)


def readers_of(*, actor: Principal, row: Table) -> Readers | None:
    """The columns of views that read the columns of a table or view; None if the actor may not.

    Eight statements at most.
    """
    if not access.holds(actor, Privilege.READ, row):
        return None
    materialized, pks, is_complete = _views_of(actor, row)
    queries = list(
        ViewQuery.objects.filter(view__in=pks, columns__isnull=False)
        .select_related("view__namespace")
        .order_by("view")
    )
    defined = [
        (query.view, [c for c in stored_columns.from_json(document) if _reads(c, row.digest)])
        for query in queries
        if (document := query.columns) is not None
    ]
    sources = _named(actor, _digests(chain.from_iterable(columns for _, columns in defined)), row)
    defined += [(view.table, _defined(view, sources)) for view in materialized]
    uses = [
        Reader(origin.column, view, column.name, column.is_copy, len(origins) == 1)
        for view, columns in defined
        for column in map(sources.resolve, columns)
        for origins in column.origins
        for origin in origins
        if origin.table.pk == row.pk
    ]
    distinct = dict.fromkeys(uses)
    readers = sorted(distinct, key=lambda r: (r.column, r.view.identifier, r.view_column))
    is_complete &= len(readers) <= MAX_READERS
    return Readers(tuple(readers[:MAX_READERS]), is_complete)


def _views_of(actor: Principal, row: Table) -> tuple[list[MaterializedView], list[int], bool]:
    """The views that read a row and that the actor may read: materialized ones, keys of others, and
    whether there are no more. Three statements."""
    materialized = list(
        MaterializedView.objects.filter(access.visible_tables(actor, "table__"), source=row)
        .exclude(table__state=TableState.DROPPED)
        .select_related("table__namespace", "source__namespace")
        .order_by("pk")[: MAX_VIEWS + 1]
    )
    views = ViewSource.objects.filter(access.visible_tables(actor, "view__"), digest=row.digest)
    if row.state == TableState.DROPPED:
        views = views.none()  # its name means whatever has it now
    views = views.exclude(view__state=TableState.DROPPED).order_by("view_id")
    pks = list(views.values_list("view_id", flat=True)[: MAX_VIEWS + 1])
    readable = access.readable_tables(actor, [*pks, *(view.pk for view in materialized)])
    return (
        [view for view in materialized[:MAX_VIEWS] if view.pk in readable],
        [pk for pk in pks[:MAX_VIEWS] if pk in readable],
        max(len(pks), len(materialized)) <= MAX_VIEWS,
    )


# --- names and schemas -------------------------------------------------------------------------


@dataclass(slots=True)
class _Sources:
    """Tables that the actor may read, by digest, and the names of their columns."""

    tables: Mapping[UUID, Table] = field(default_factory=dict)
    schemas: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def resolve(self, column: StoredColumn) -> ViewColumn:
        origins: list[tuple[Origin, ...]] = []
        remarks = dict.fromkeys([column.problem] if column.problem else [])
        for reference in column.references:
            candidates, remark = self._origins(reference)
            if candidates:
                origins.append(candidates)
            if remark:
                remarks[remark] = None
        return ViewColumn(
            column.name, tuple(origins), column.is_copy, tuple(remarks), column.dialects
        )

    def _origins(self, reference: Sequence[Candidate]) -> tuple[tuple[Origin, ...], str]:
        """The columns that a reference may mean, with a remark if that is not exactly one."""
        existing: dict[tuple[int, str], Origin] = {}
        possible: dict[tuple[int, str], Origin] = {}
        for keys, column in reference:
            for table in (self.tables[key] for key in keys if key in self.tables):
                schema = self.schemas.get(table.pk)
                if schema is None and column != ALL:
                    possible[table.pk, column] = Origin(table, column)
                elif (name := _spelled(column, schema or ())) is not None:
                    existing[table.pk, name] = Origin(table, name)
        # Names in a valid query are unique, so a column that exists excludes those that may exist.
        origins = tuple((existing or possible).values())
        if not origins:
            return (), _NOT_READABLE
        if len(origins) > 1:
            return origins, _SEVERAL
        return origins, "" if existing or len(reference) == 1 else _NO_SCHEMA


def _spelled(column: str, schema: Sequence[str]) -> str | None:
    """The name of a column as in the schema, in which case may differ; None if it has none."""
    if column == ALL:
        return ALL
    exact = [name for name in schema if name in (column, paths.join([column]))]
    if exact:
        return column
    alike = [name for name in schema if name.casefold() == column.casefold()]
    return alike[0] if len(alike) == 1 else None


def _digests(columns: Iterable[StoredColumn]) -> set[UUID]:
    return {
        key
        for column in columns
        for reference in column.references
        for keys, _ in reference
        for key in keys
    }


def _reads(column: StoredColumn, digest: UUID) -> bool:
    """True if the column may be made from one of the table with this digest."""
    return digest in _digests([column])


def _named(actor: Principal, digests: Collection[UUID], row: Table | None = None) -> _Sources:
    """The tables with these digests, and the row. Three statements."""
    keys = sorted(digests)[:_MAX_DIGESTS]
    visible = Table.objects.present().filter(access.visible_tables(actor), digest__in=keys)
    rows = list(visible.select_related("namespace").order_by("pk")[:_MAX_TABLES])
    return _loaded(actor, [*rows, *([row] if row else [])])


def _loaded(actor: Principal, rows: Sequence[Table]) -> _Sources:
    """Those of the tables that the actor may read, with their schemas. Two statements."""
    readable = access.readable_tables(actor, [row.pk for row in rows])
    documents = SearchDocument.objects.filter(table__in=readable).exclude(schema_version="")
    schemas = {
        table: [path for path, *_ in columns]
        for table, columns in documents.values_list("table_id", "columns")
    }
    return _Sources({row.digest: row for row in rows if row.pk in readable}, schemas)


# --- materialized views ------------------------------------------------------------------------


def _defined(view: MaterializedView, sources: _Sources) -> list[StoredColumn]:
    """The columns of a materialized view, with those of its source that their expressions name."""
    keys = (view.source.digest,)
    try:
        query = view_queries.from_json(view.definition)
    except InvalidInput:
        return []
    if query.columns is None:
        return [StoredColumn(ALL, (((keys, ALL),),), is_copy=True)]
    schema = sources.schemas.get(view.source_id)
    is_hidden = view.source.digest not in sources.tables
    columns: list[StoredColumn] = []
    for name, expression in islice(query.columns, MAX_READERS):
        read = filters.read_columns(expression)
        names = sorted({paths.split(path)[0] for path in read or ()})
        is_copy = len(names) == 1 and expression.strip() in (names[0], paths.quoted(names[0]))
        if not is_copy and not is_hidden:
            # Words of SQL are no columns.
            names = [name for name in names if _spelled(name, schema or ()) is not None]
        is_certain = is_copy or is_hidden or (read is not None and schema is not None)
        references = tuple(((keys, name),) for name in names)
        columns.append(StoredColumn(name, references, is_copy, "" if is_certain else _NO_SCHEMA))
    return columns
