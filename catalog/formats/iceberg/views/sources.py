"""The tables and views that the SQL of an Iceberg view names.

The specification resolves a name without a namespace in the default namespace, and a name without a
catalog in the default catalog. Names of catalogs are configured by clients, and a client may see a
namespace of this server as its whole catalog (its warehouse). So a name may stand for several
identifiers; those that exist count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlglot import exp

from catalog.errors import InvalidIdentifier
from catalog.formats.iceberg.describe_views import ViewVersion
from catalog.formats.iceberg.views import columns
from catalog.formats.iceberg.views.columns import Column
from catalog.formats.iceberg.views.parsing import (
    Query,
    TooSlow,
    Unparsable,
    parse,
    printable,
    reporting,
    within,
)
from catalog.identifiers import Identifier, check

MAX_CHARACTERS = 65_536
"""Characters of SQL that are parsed, of all dialects together."""
MAX_NAMES = 500
MAX_SECONDS = 3.0
"""CPU time for the names in a view, and again for its columns.

The parser backtracks: it takes exponential time for some short SQL."""
MAX_IDENTIFIERS = 2_000
"""Identifiers of all names together. A name without any counts as one."""
MAX_PROBLEMS = 10
_MAX_REPRESENTATIONS = 20
_MAX_NAME_CHARACTERS = 1_000
_MAX_LEVELS = 100

# Parts of a table that Spark and Trino read as tables: ``t.snapshots``, ``t.branch_x``, ``t$files``.
_METADATA_TABLES = frozenset(
    {
        *("all_data_files", "all_delete_files", "all_entries", "all_files", "all_manifests"),
        *("data_files", "delete_files", "entries", "files", "history", "manifests"),
        *("metadata_log_entries", "partitions", "position_deletes", "refs", "snapshots"),
    }
)
# Functions that read their arguments only. Those with a class of their own in the parser do, too.
_PURE_FUNCTIONS = frozenset(
    {
        *("generate_series", "inline_outer", "json_tuple", "range", "sequence", "stack"),
        *("variant_explode", "variant_explode_outer"),
    }
)
_SELECTORS = ("branch_", "tag_", "snapshot_id_", "at_timestamp_")


@dataclass(frozen=True, slots=True)
class Name:
    """A name in the SQL of a view, and the identifiers from the root that it may stand for."""

    text: str
    identifiers: tuple[Identifier, ...]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sources:
    """What a view reads, as far as its SQL can be parsed."""

    names: tuple[Name, ...] = ()
    problems: tuple[str, ...] = ()
    """Sentences about SQL that was not parsed; empty if the names are complete."""
    columns: tuple[tuple[str, tuple[Column, ...]], ...] = ()
    """The columns of the view in each dialect. Their sources are among the names."""
    column_problems: tuple[str, ...] = ()
    """Sentences about columns that are missing, besides those of SQL that was not parsed."""


def read(version: ViewVersion, namespace: Identifier, fields: Sequence[str] = ()) -> Sources:
    """The names in the SQL of a view's version, and what its columns are made from.

    ``namespace`` holds the view, whose schema has the ``fields``. After MAX_SECONDS of CPU time, the
    names so far are returned, with a problem.
    """
    if len(version.default_namespace) > _MAX_LEVELS:
        return Sources(problems=(f"The default namespace has more than {_MAX_LEVELS} levels.",))
    if len(namespace) > _MAX_LEVELS:
        return Sources(problems=(f"The namespace has more than {_MAX_LEVELS} levels.",))
    reading = _Reading(version, namespace)
    limits: list[str] = []
    try:
        within(MAX_SECONDS, reading.run)
    except TooSlow:
        limits.append(
            f"The SQL takes more than {MAX_SECONDS:g} seconds to parse; the rest was not parsed."
        )
    except _TooMany as error:
        limits.append(f"{error}.")
    if len(version.representations) > _MAX_REPRESENTATIONS:
        limits.append(f"Only {_MAX_REPRESENTATIONS} representations of the view are parsed.")
    derived = columns.Derivation(reading.queries, tuple(fields), frozenset(reading.names))
    try:
        within(MAX_SECONDS, derived.run)
    except TooSlow:
        derived.problems.append(f"The columns take more than {MAX_SECONDS:g} seconds to derive.")
    return Sources(
        names=tuple(reading.names.values()),
        problems=(*limits, *reading.problems)[:MAX_PROBLEMS],
        columns=tuple(derived.columns),
        column_problems=tuple(derived.problems[:MAX_PROBLEMS]),
    )


class _Reading:
    """The names so far, by their parts."""

    def __init__(self, version: ViewVersion, namespace: Identifier) -> None:
        self.version = version
        self.namespace = namespace
        self.names: dict[tuple[str, ...], Name] = {}
        self.queries: list[Query] = []
        self.problems: list[str] = []
        self._identifiers = 0

    def run(self) -> None:
        """Raises _TooMany."""
        unread = MAX_CHARACTERS
        if not self.version.representations:
            self.problems.append("The view has no SQL.")
        for representation in self.version.representations[:_MAX_REPRESENTATIONS]:
            dialect = printable(representation.dialect[:40])
            if len(representation.sql) > unread:
                self.problems.append(
                    f"The SQL of dialect '{dialect}' was not parsed: "
                    f"only {MAX_CHARACTERS:,} characters are."
                )
                continue
            unread -= len(representation.sql)
            try:
                query = parse(representation)
                self.queries.append(query)
                for parts in _table_names(query):
                    self._add(parts)
            except Unparsable as error:
                self.problems.append(f"The SQL of dialect '{dialect}' cannot be parsed: {error}.")

    def _add(self, parts: tuple[str, ...]) -> None:
        if parts in self.names:
            return
        if len(self.names) >= MAX_NAMES:
            raise _TooMany(f"The SQL names more than {MAX_NAMES} tables; the first of them count")
        unused = MAX_IDENTIFIERS - self._identifiers
        if unused <= 0:
            raise _TooMany(
                f"More than {MAX_IDENTIFIERS:,} tables may be meant; others do not count"
            )
        distinct = dict.fromkeys(_identifiers(parts, self.version, self.namespace))
        identifiers = tuple(islice(distinct, unused + 1))
        self.names[parts] = Name(_text(parts), identifiers[:unused], parts)
        self._identifiers += len(identifiers) or 1
        if len(identifiers) > unused:
            raise _TooMany(
                f"More than {MAX_IDENTIFIERS:,} tables may be meant; others do not count"
            )


def _text(parts: tuple[str, ...]) -> str:
    """The name with dots between its parts; a part that holds a dot is quoted."""
    text = ".".join(f'"{part}"' if "." in part else part for part in parts)
    return printable(text[:_MAX_NAME_CHARACTERS])


class _TooMany(Exception):
    pass


def _table_names(query: Query) -> Iterator[tuple[str, ...]]:
    """The names of tables in the order of the SQL, without those of common table expressions.

    Raises Unparsable, for functions that may read tables after the names.
    """
    with reporting():
        nodes = list(_sources(query))
    is_complete = True
    for node in nodes:
        if isinstance(node, exp.Table) and (parts := query.parts(node)):
            yield parts
        else:
            is_complete = False
    if not is_complete:
        raise Unparsable("it calls functions that may read tables")


def _sources(query: Query) -> Iterator[exp.Expr]:
    """Tables that are not common table expressions, and functions that may read tables."""
    nodes: list[tuple[exp.Expr, frozenset[str]]] = [(query.statement, frozenset())]
    while nodes:
        node, visible = nodes.pop()
        if isinstance(node, exp.JoinHint | exp.Lock):
            continue  # they name aliases
        if isinstance(node, exp.Table):
            if _may_be_table(node) and not (
                len(node.parts) == 1 and query.normalized(node.this) in visible
            ):
                yield node
        elif isinstance(node, exp.Anonymous) and _may_read(node):
            yield node
        inner: list[tuple[exp.Expr, frozenset[str]]] = []
        clause = node.args.get("with_")
        if isinstance(clause, exp.With):
            names = [query.normalized(cte.args["alias"].this) for cte in clause.expressions]
            if clause.recursive:
                visible = visible.union(names)
            for cte, name in zip(clause.expressions, names, strict=True):
                inner.append((cte, visible))
                visible |= {name}
        inner.extend((child, visible) for child in node.iter_expressions() if child is not clause)
        nodes.extend(reversed(inner))


def _may_be_table(table: exp.Table) -> bool:
    """True if it is a name. Calls are examined separately."""
    return table.args.get("this") is not None and not isinstance(table.this, exp.Func)


def _may_read(function: exp.Anonymous) -> bool:
    """True if a function without a class in the parser is used as a table, or has one as an argument."""
    name = function.name.lower()
    parent = function.parent
    if isinstance(parent, exp.Lateral):
        is_source = not parent.args.get("view")
    else:
        is_source = isinstance(parent, exp.Table | exp.TableFromRows)
    is_pure = name in _PURE_FUNCTIONS and parent is not None and not parent.args.get("db")
    return name == "table" or (is_source and not is_pure)


def _identifiers(
    parts: tuple[str, ...], version: ViewVersion, namespace: Identifier
) -> Iterator[Identifier]:
    """The identifiers that a name may stand for, the most likely ones first, some repeatedly."""
    if len(parts) > _MAX_LEVELS:
        return
    default = version.default_namespace
    if len(parts) == 1:
        relative = [(*default, *parts)]
    elif len(parts) > 2 and parts[0] == version.default_catalog:
        relative = [parts[1:]]
    else:
        # The first part may be a namespace or the name of a catalog.
        relative = [parts, *([parts[1:]] if len(parts) > 2 else [])]
    for names in relative:
        for base in _warehouses(default, namespace):
            for end in _without_metadata(names):
                try:
                    yield check((*base, *end))
                except InvalidIdentifier:
                    continue  # no table has such a name


def _warehouses(default: Identifier, namespace: Identifier) -> list[Identifier]:
    """The namespaces that the client may have seen as its whole catalog: those above the view.

    If the default namespace is the view's own, only one of them fits.
    """
    above = [namespace[:depth] for depth in range(len(namespace) + 1)]
    fitting = [base for base in above if default and (*base, *default) == namespace]
    return fitting or above


def _without_metadata(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The name, and the name of the table if the name may be one of its metadata tables."""
    yield parts
    *above, last = parts
    table, dollar, _ = last.partition("$")
    if dollar and table:
        yield (*above, table)
    if above and (last.lower() in _METADATA_TABLES or last.lower().startswith(_SELECTORS)):
        yield tuple(above)
