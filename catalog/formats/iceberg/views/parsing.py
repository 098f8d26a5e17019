"""Parse the SQL of Iceberg views, within limits: any client may write it."""

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialects
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from catalog.formats.iceberg.describe_views import Representation

MAX_DEPTH = 40
"""Nested brackets. The parser needs 20 calls for a level, and quadratic time for some types."""
_CALLS = 200  # The clock is read once in so many calls, because reading it is a system call.

# Its warnings quote SQL of clients.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
# Engines that store names in lower case.
_LOWER = {"athena", "presto", "trino"}
_FAULTS = (SqlglotError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of the parser: invalid SQL, and SQL for which the parser has a fault."""


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a representation, in the dialect that it names."""

    dialect: str
    statement: exp.Query | exp.Values
    reader: sqlglot.Dialect

    def parts(self, table: exp.Table) -> tuple[str, ...]:
        """The parts of the name of a table; empty for a function, and for a name without a text."""
        names = tuple(part.name for part in table.parts if isinstance(part, exp.Identifier))
        if len(names) != len(table.parts) or not all(names):
            return ()
        return tuple(name.lower() for name in names) if self.dialect in _LOWER else names

    def normalized(self, identifier: exp.Expr) -> str:
        """The form in which the dialect compares the name of a common table expression."""
        return self.reader.normalize_identifier(identifier.copy()).name


def parse(representation: Representation) -> Query:
    """Raises Unparsable."""
    dialect = representation.dialect.strip().lower()
    # An unknown dialect is parsed as standard SQL.
    reader = sqlglot.Dialect.get_or_raise(dialect if dialect in _dialects() else "")
    with reporting():
        tokens = reader.tokenize(representation.sql)
        _require_flat(tokens)
        statements = reader.parser().parse(tokens, representation.sql)
        if len(statements) != 1 or not isinstance(statements[0], exp.Query | exp.Values):
            raise Unparsable("it is not a single query")
    return Query(dialect, statements[0], reader)


@contextmanager
def reporting() -> Iterator[None]:
    """Raise Unparsable for the errors of the parser, and of code that reads its result."""
    try:
        yield
    except RecursionError:
        raise Unparsable("it is nested too deeply") from None
    except _FAULTS as error:
        raise Unparsable(_reason(error)) from None


class TooSlow(BaseException):
    """The time is over. No Exception, which the parser might handle."""


def within(seconds: float, work: Callable[[], None]) -> None:
    """Do the work in this thread. Raises TooSlow after the seconds of CPU time.

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
            raise TooSlow

    previous, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(check)
    try:
        work()
    finally:
        sys.setprofile(previous)
        if collects:
            gc.enable()


def printable(text: str) -> str:
    """The text without control characters, and without those that reorder others on the screen."""
    return "".join(character if character.isprintable() else "�" for character in text)


class Unparsable(Exception):
    pass


@cache
def _dialects() -> frozenset[str]:
    return frozenset(dialect.value for dialect in Dialects)


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
            raise Unparsable("it is nested too deeply")
