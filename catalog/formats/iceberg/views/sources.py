"""The tables and views that the SQL of an Iceberg view names.

The specification resolves a name without a namespace in the default namespace, and a name without a
catalog in the default catalog. Names of catalogs are configured by clients, and a client may see a
namespace of this server as its whole catalog (its warehouse). So a name may stand for several
identifiers; those that exist count.
"""

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialects
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from catalog.errors import InvalidIdentifier
from catalog.formats.iceberg.describe_views import Representation, ViewVersion
from catalog.identifiers import Identifier, check

MAX_CHARACTERS = 65_536
"""Characters of SQL that are parsed, of all dialects together."""
MAX_DEPTH = 40
"""Nested brackets. The parser needs 20 calls for a level, and quadratic time for some types."""
MAX_NAMES = 500
MAX_SECONDS = 3.0
"""CPU time for a view. The parser backtracks: it takes exponential time for some short SQL."""
_CALLS = 200  # The clock is read once in so many calls, because reading it is a system call.
MAX_IDENTIFIERS = 2_000
"""Identifiers of all names together. A name without any counts as one."""
MAX_PROBLEMS = 10
_MAX_REPRESENTATIONS = 20
_MAX_NAME_CHARACTERS = 1_000
_MAX_LEVELS = 100

# Its warnings quote SQL of clients.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
# Engines that store names in lower case.
_LOWER = {"athena", "presto", "trino"}
# Parts of a table that Spark and Trino read as tables: ``t.snapshots``, ``t.branch_x``, ``t$files``.
_METADATA_TABLES = frozenset(
    {
        *("all_data_files", "all_delete_files", "all_entries", "all_files", "all_manifests"),
        *("data_files", "delete_files", "entries", "files", "history", "manifests"),
        *("metadata_log_entries", "partitions", "position_deletes", "refs", "snapshots"),
    }
)
_FAULTS = (SqlglotError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of the parser: invalid SQL, and SQL for which the parser has a fault."""
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


@dataclass(frozen=True, slots=True)
class Sources:
    """What a view reads, as far as its SQL can be parsed."""

    names: tuple[Name, ...] = ()
    problems: tuple[str, ...] = ()
    """Sentences about SQL that was not parsed; empty if the names are complete."""


def read(version: ViewVersion, namespace: Identifier) -> Sources:
    """The names in the SQL of a view's version. ``namespace`` holds the view.

    After MAX_SECONDS of CPU time, the names so far are returned, with a problem.
    """
    if len(version.default_namespace) > _MAX_LEVELS:
        return Sources(problems=(f"The default namespace has more than {_MAX_LEVELS} levels.",))
    if len(namespace) > _MAX_LEVELS:
        return Sources(problems=(f"The namespace has more than {_MAX_LEVELS} levels.",))
    reading = _Reading(version, namespace)
    limits: list[str] = []
    try:
        _within(MAX_SECONDS, reading.run)
    except _TooSlow:
        limits.append(
            f"The SQL takes more than {MAX_SECONDS:g} seconds to parse; the rest was not parsed."
        )
    except _TooMany as error:
        limits.append(f"{error}.")
    if len(version.representations) > _MAX_REPRESENTATIONS:
        limits.append(f"Only {_MAX_REPRESENTATIONS} representations of the view are parsed.")
    return Sources(tuple(reading.names.values()), (*limits, *reading.problems)[:MAX_PROBLEMS])


class _Reading:
    """The names so far, by their parts."""

    def __init__(self, version: ViewVersion, namespace: Identifier) -> None:
        self.version = version
        self.namespace = namespace
        self.names: dict[tuple[str, ...], Name] = {}
        self.problems: list[str] = []
        self._identifiers = 0

    def run(self) -> None:
        """Raises _TooMany."""
        unread = MAX_CHARACTERS
        if not self.version.representations:
            self.problems.append("The view has no SQL.")
        for representation in self.version.representations[:_MAX_REPRESENTATIONS]:
            dialect = _printable(representation.dialect[:40])
            if len(representation.sql) > unread:
                self.problems.append(
                    f"The SQL of dialect '{dialect}' was not parsed: "
                    f"only {MAX_CHARACTERS:,} characters are."
                )
                continue
            unread -= len(representation.sql)
            try:
                for parts in _table_names(representation):
                    self._add(parts)
            except _Unparsable as error:
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
        self.names[parts] = Name(_text(parts), identifiers[:unused])
        self._identifiers += len(identifiers) or 1
        if len(identifiers) > unused:
            raise _TooMany(
                f"More than {MAX_IDENTIFIERS:,} tables may be meant; others do not count"
            )


def _text(parts: tuple[str, ...]) -> str:
    """The name with dots between its parts; a part that holds a dot is quoted."""
    text = ".".join(f'"{part}"' if "." in part else part for part in parts)
    return _printable(text[:_MAX_NAME_CHARACTERS])


class _TooMany(Exception):
    pass


class _TooSlow(BaseException):
    """The time is over. No Exception, which the parser might handle."""


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do the work in this thread. Raises _TooSlow after the seconds of CPU time.

    The interpreter calls a profile function at every call, so this ends any Python code, in any
    thread. Signals only reach the main thread. The function is called no more once it has raised, and
    an exception in a finalizer is ignored: so the garbage collector, which calls finalizers, must wait.
    """
    until = time.thread_time() + seconds
    calls = 0

    def check(*_event: object) -> None:
        nonlocal calls
        calls += 1
        if calls % _CALLS == 0 and time.thread_time() > until:
            raise _TooSlow

    previous, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(check)
    try:
        work()
    finally:
        sys.setprofile(previous)
        if collects:
            gc.enable()


def _printable(text: str) -> str:
    """The text without control characters, and without those that reorder others on the screen."""
    return "".join(character if character.isprintable() else "�" for character in text)


class _Unparsable(Exception):
    pass


@cache
def _dialects() -> frozenset[str]:
    return frozenset(dialect.value for dialect in Dialects)


def _table_names(representation: Representation) -> Iterator[tuple[str, ...]]:
    """The names of tables in the order of the SQL, without those of common table expressions.

    Raises _Unparsable, for functions that may read tables after the names.
    """
    dialect = representation.dialect.strip().lower()
    # An unknown dialect is parsed as standard SQL.
    reader = sqlglot.Dialect.get_or_raise(dialect if dialect in _dialects() else "")
    try:
        tokens = reader.tokenize(representation.sql)
        _require_flat(tokens)
        statements = reader.parser().parse(tokens, representation.sql)
        if len(statements) != 1 or not isinstance(statements[0], exp.Query | exp.Values):
            raise _Unparsable("it is not a single query")
        nodes = list(_sources(statements[0], reader))
    except RecursionError:
        raise _Unparsable("it is nested too deeply") from None
    except _FAULTS as error:
        raise _Unparsable(_reason(error)) from None
    is_complete = True
    for node in nodes:
        parts = node.parts if isinstance(node, exp.Table) else []
        names = tuple(part.name for part in parts if isinstance(part, exp.Identifier))
        if names and len(names) == len(parts) and all(names):
            yield tuple(name.lower() for name in names) if dialect in _LOWER else names
        else:
            is_complete = False
    if not is_complete:
        raise _Unparsable("it calls functions that may read tables")


def _sources(statement: exp.Expr, dialect: sqlglot.Dialect) -> Iterator[exp.Expr]:
    """Tables that are not common table expressions, and functions that may read tables."""
    nodes: list[tuple[exp.Expr, frozenset[str]]] = [(statement, frozenset())]
    while nodes:
        node, visible = nodes.pop()
        if isinstance(node, exp.JoinHint | exp.Lock):
            continue  # they name aliases
        if isinstance(node, exp.Table):
            if _may_be_table(node) and not (
                len(node.parts) == 1 and _normalized(node.this, dialect) in visible
            ):
                yield node
        elif isinstance(node, exp.Anonymous) and _may_read(node):
            yield node
        inner: list[tuple[exp.Expr, frozenset[str]]] = []
        clause = node.args.get("with_")
        if isinstance(clause, exp.With):
            names = [_normalized(cte.args["alias"].this, dialect) for cte in clause.expressions]
            if clause.recursive:
                visible = visible.union(names)
            for cte, name in zip(clause.expressions, names, strict=True):
                inner.append((cte, visible))
                visible |= {name}
        inner.extend((child, visible) for child in node.iter_expressions() if child is not clause)
        nodes.extend(reversed(inner))


def _normalized(identifier: exp.Expr, dialect: sqlglot.Dialect) -> str:
    """The form in which the dialect compares the name of a common table expression."""
    return dialect.normalize_identifier(identifier.copy()).name


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


def _reason(error: Exception) -> str:
    details = getattr(error, "errors", None)
    if details:
        first = details[0]
        return f"line {first.get('line')}, column {first.get('col')}"
    return "it is not valid SQL"


def _require_flat(tokens: Sequence[Token]) -> None:
    depth = 0
    for token in tokens:
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
        if depth > MAX_DEPTH:
            raise _Unparsable("it is nested too deeply")


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
