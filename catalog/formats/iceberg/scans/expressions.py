"""Filter expressions: predicates, their combinations, and their JSON form.

A filter is a tree of predicates without negations: the parser pushes ``not`` down to the predicates.
Each predicate keeps its JSON source, for the residual that the client gets, beside the test that
PyIceberg can evaluate. What PyIceberg cannot evaluate (a transform, a function, a literal that the
column's type does not have) may always match: planning may return too many files, never too few.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg import expressions as tests
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, PrimitiveType

from catalog.formats.iceberg.reading import Document


@dataclass(frozen=True, eq=False)
class Predicate:
    """A condition on a row."""

    source: Document
    """The predicate as the client sent it, with its negations."""
    test: BooleanExpression
    """The part that PyIceberg can evaluate, for the schema of ``schema_of(Filter.types)``."""
    is_exact: bool
    """True if the test is equivalent to the source."""
    is_ordered: bool
    """True if lower and upper bounds can decide the test."""


@dataclass(frozen=True)
class AllOf:
    parts: tuple["Expression", ...]


@dataclass(frozen=True)
class AnyOf:
    parts: tuple["Expression", ...]


Expression = bool | Predicate | AllOf | AnyOf


@dataclass(frozen=True)
class Filter:
    """A parsed filter on the columns of a schema."""

    expression: Expression
    types: Mapping[int, PrimitiveType]
    """The types of the columns in the tests, by id."""


def column_name(id_: int) -> str:
    """The name of a column in tests, independent of case, nesting and renaming."""
    return f"c{id_}"


def schema_of(types: Mapping[int, PrimitiveType]) -> Schema:
    """A flat schema for tests. Every field is optional: a required one may be in an optional struct."""
    return Schema(
        *(NestedField(id_, column_name(id_), type_, False) for id_, type_ in types.items())
    )


def all_of(parts: Iterable[Expression]) -> Expression:
    """The conjunction, simplified by constants."""
    open_: list[Expression] = []
    for operand in parts:
        if operand is False:
            return False
        if isinstance(operand, AllOf):
            open_ += operand.parts
        elif operand is not True:
            open_.append(operand)
    return True if not open_ else open_[0] if len(open_) == 1 else AllOf(tuple(open_))


def any_of(parts: Iterable[Expression]) -> Expression:
    """The disjunction, simplified by constants."""
    open_: list[Expression] = []
    for operand in parts:
        if operand is True:
            return True
        if isinstance(operand, AnyOf):
            open_ += operand.parts
        elif operand is not False:
            open_.append(operand)
    return False if not open_ else open_[0] if len(open_) == 1 else AnyOf(tuple(open_))


def predicates(expression: Expression) -> Iterable[Predicate]:
    if isinstance(expression, Predicate):
        yield expression
    elif isinstance(expression, (AllOf, AnyOf)):
        for operand in expression.parts:
            yield from predicates(operand)


def settle(expression: Expression, decide: Callable[[Predicate], Expression | bool]) -> Expression:
    """The expression with each predicate replaced by the result of ``decide``, simplified."""
    if isinstance(expression, Predicate):
        return decide(expression)
    if isinstance(expression, AllOf):
        return all_of(settle(operand, decide) for operand in expression.parts)
    if isinstance(expression, AnyOf):
        return any_of(settle(operand, decide) for operand in expression.parts)
    return expression


def to_test(
    expression: Expression, test: Callable[[Predicate], BooleanExpression]
) -> BooleanExpression:
    """The expression for PyIceberg's evaluators, with ``test`` applied to each predicate."""
    if isinstance(expression, Predicate):
        return test(expression)
    if isinstance(expression, (AllOf, AnyOf)):
        combine: Any = tests.And if isinstance(expression, AllOf) else tests.Or
        parts = [to_test(operand, test) for operand in expression.parts]
        combined: BooleanExpression = combine(*parts)  # a balanced tree of any number
        return combined
    return AlwaysTrue() if expression else AlwaysFalse()


def to_json(expression: Expression) -> bool | Document:
    """The expression in the protocol's JSON; long chains become balanced trees."""
    if isinstance(expression, Predicate):
        return expression.source
    if isinstance(expression, (AllOf, AnyOf)):
        name = "and" if isinstance(expression, AllOf) else "or"
        return _chain(name, [to_json(operand) for operand in expression.parts])
    return expression


def _chain(name: str, parts: list[bool | Document]) -> bool | Document:
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return {
        "type": name,
        "left": _chain(name, parts[:middle]),
        "right": _chain(name, parts[middle:]),
    }
