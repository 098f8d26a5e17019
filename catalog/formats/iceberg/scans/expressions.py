"""Filters of the REST protocol: what the server can test of them, and what it leaves to the client.

A filter is a tree of predicates without negations: ``not`` is carried down to them while reading.
Each predicate keeps the words in which it was sent, for the residual that the client gets, beside
what PyIceberg can test of it. What cannot be tested (a transform, a function, a literal that the
column's type does not have) may always match: planning may return too many files, never too few.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg import expressions as tests
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import (
    NestedField,
    PrimitiveType,
    UUIDType,
)

from catalog.errors import InvalidInput
from catalog.formats.iceberg.reading import Document, kind, shown
from catalog.formats.iceberg.schema import single_values
from catalog.formats.iceberg.schema.schemas import Column, Columns
from catalog.formats.iceberg.schema.single_values import NotExactError, OutOfRangeError

# Filters arrive as JSON, whose own limit is twice this; evaluators call themselves for each level.
MAX_DEPTH: Final = 100

_Make = Callable[..., BooleanExpression]
_UNARY: dict[str, _Make] = {
    "is-null": tests.IsNull,
    "not-null": tests.NotNull,
    "is-nan": tests.IsNaN,
    "not-nan": tests.NotNaN,
}
_COMPARISON: dict[str, _Make] = {
    "lt": tests.LessThan,
    "lt-eq": tests.LessThanOrEqual,
    "gt": tests.GreaterThan,
    "gt-eq": tests.GreaterThanOrEqual,
    "eq": tests.EqualTo,
    "not-eq": tests.NotEqualTo,
    "starts-with": tests.StartsWith,
    "not-starts-with": tests.NotStartsWith,
}
_SET: dict[str, _Make] = {"in": tests.In, "not-in": tests.NotIn}
_PAIRS = (
    ("is-null", "not-null"),
    ("is-nan", "not-nan"),
    ("lt", "gt-eq"),
    ("gt", "lt-eq"),
    ("eq", "not-eq"),
    ("starts-with", "not-starts-with"),
    ("in", "not-in"),
)
_OPPOSITE = {operator: other for pair in _PAIRS for operator, other in (pair, pair[::-1])}
_MIRRORED = {
    "lt": "gt",
    "lt-eq": "gt-eq",
    "gt": "lt",
    "gt-eq": "lt-eq",
    "eq": "eq",
    "not-eq": "not-eq",
}
_TERMS = ("reference", "apply")  # compared, not hashed: it may be anything
_PREFIXES = {"starts-with", "not-starts-with"}


@dataclass(frozen=True, eq=False)
class Predicate:
    """One test of a row."""

    source: Document
    """As the client sent it, with the negations around it."""
    test: BooleanExpression
    """What of it can be tested, on ``Filter.schema``."""
    is_exact: bool
    """Whether the test says all that the source says."""
    is_ordered: bool
    """Whether lower and upper bounds can answer it."""


@dataclass(frozen=True)
class AllOf:
    parts: tuple["Expression", ...]


@dataclass(frozen=True)
class AnyOf:
    parts: tuple["Expression", ...]


Expression = bool | Predicate | AllOf | AnyOf


@dataclass(frozen=True)
class Filter:
    """A filter that was read for the columns of a schema."""

    expression: Expression
    types: Mapping[int, PrimitiveType]
    """The columns that the tests are about."""


def column_name(id_: int) -> str:
    """What a column is called in tests: nothing that depends on case, nesting or renaming."""
    return f"c{id_}"


def schema_of(types: Mapping[int, PrimitiveType]) -> Schema:
    """A flat schema for tests. All is optional: a required field may lie in an optional struct."""
    return Schema(
        *(NestedField(id_, column_name(id_), type_, False) for id_, type_ in types.items())
    )


# --- names -------------------------------------------------------------------------------------


class Names:
    """The columns of a schema by full name, whether case counts or not."""

    def __init__(self, columns: Columns, *, case_sensitive: bool) -> None:
        self._columns = columns
        self._case_sensitive = case_sensitive
        self._by_name: dict[str, list[Column]] = {}
        for column in columns.values():
            self._by_name.setdefault(self._fold(column.name), []).append(column)

    def _fold(self, name: str) -> str:
        return name if self._case_sensitive else name.lower()

    def find(self, name: str, where: str) -> Column:
        """Raises InvalidInput for a name of no column, or of several."""
        matches = self._by_name.get(self._fold(name), [])
        if not matches:
            raise InvalidInput(f"{where}: there is no column {shown(name)}")
        if len(matches) > 1:
            names = ", ".join(shown(column.name) for column in matches)
            raise InvalidInput(f"{where}: {shown(name)} may be any of {names}")
        return matches[0]

    def by_id(self, id_: int, where: str) -> Column:
        column = self._columns.get(id_)
        if column is None:
            raise InvalidInput(f"{where}: there is no column with id {id_}")
        return column


# --- reading -----------------------------------------------------------------------------------


def parse(value: object, names: Names) -> Filter:
    """A filter as the protocol spells it. Raises InvalidInput."""
    reader = _Reader(names)
    return Filter(reader.read(value, negated=False, depth=0), reader.types)


class _Reader:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.types: dict[int, PrimitiveType] = {}

    def read(self, value: object, *, negated: bool, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise InvalidInput(f"filter: nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, bool):
            return value is not negated
        if not isinstance(value, dict):
            raise InvalidInput(f"filter: expected a predicate, not {kind(value)}")
        name = value.get("type")
        if not isinstance(name, str):
            raise InvalidInput(f"filter: {kind(name)} is no type of a predicate")
        if name in {"true", "false"}:
            return (name == "true") is not negated
        if name == "not":
            return self.read(value.get("child"), negated=not negated, depth=depth + 1)
        if name in {"and", "or"}:
            parts = [
                self.read(operand, negated=negated, depth=depth + 1)
                for operand in _operands(value, name)
            ]
            return all_of(parts) if (name == "and") != negated else any_of(parts)
        if name in _OPPOSITE:
            return self._predicate(value, name, negated)
        raise InvalidInput(f"filter: {shown(name)} is no type of a predicate")

    def _predicate(self, value: Document, name: str, negated: bool) -> Expression:
        op = _OPPOSITE[name] if negated else name
        if name in _UNARY:
            (term,) = _operand_of(value, ("child", "term"), name)
            literals: list[object] = []
        elif name in _SET:
            (term,) = _operand_of(value, ("child", "term"), name)
            literals = [_literal(literal) for literal in _values(value)]
        else:
            term, other, mirrored = self._sides(value, name)
            if other is _UNKNOWN or (mirrored and op not in _MIRRORED):
                self._reference(term)
                return self._untested(value, negated)
            literals = [_literal(other)]
            op = _MIRRORED[op] if mirrored else op
        column = self._reference(term)
        if column is None:
            return self._untested(value, negated)
        test = self._test(op, column, literals)
        if isinstance(test, bool):
            return test
        source = value if not negated else {**value, "type": _OPPOSITE[name]}
        type_ = self.types.get(column.id)
        return Predicate(
            source,
            AlwaysTrue() if test is None else test,
            is_exact=test is not None,
            # Writers differ in the order of UUIDs; and no bound tells of nulls, which do not start
            # with anything.
            is_ordered=not isinstance(type_, UUIDType) and op != "not-starts-with",
        )

    def _sides(self, value: Document, name: str) -> tuple[object, object, bool]:
        """The column of a comparison, what it is compared with, and whether that came first."""
        if "term" in value or "value" in value:
            if "left" in value or "right" in value:
                raise InvalidInput(
                    f"filter: {name} has left and right, or term and value, not both"
                )
            for key in ("term", "value"):
                if value.get(key) is None:
                    raise InvalidInput(f"filter: {name} needs {key}")
            return value["term"], value["value"], False
        left, right = _operand_of(value, ("left",), name) + _operand_of(value, ("right",), name)
        if _is_literal(left):
            if _is_literal(right):
                raise InvalidInput(f"filter: {name} compares a literal with a literal")
            return right, left, True
        if _is_literal(right):
            return left, right, False
        self._reference(right)
        return left, _UNKNOWN, False

    def _reference(self, term: object) -> Column | None:
        """The column that a term is; None for what is computed of columns, which must exist."""
        if isinstance(term, str):
            return self.names.find(term, "filter")
        if not isinstance(term, dict):
            raise InvalidInput(f"filter: expected the name of a column, not {kind(term)}")
        match term.get("type"):
            case "reference":
                if type(term.get("id")) is int:
                    return self.names.by_id(term["id"], "filter")
                name = term.get("name", term.get("term"))
                if not isinstance(name, str):
                    raise InvalidInput("filter: a reference needs a name or an id")
                return self.names.find(name, "filter")
            case "transform":
                if not isinstance(term.get("transform"), str):
                    raise InvalidInput("filter: a transform needs its name")
                self._reference(term.get("term"))
                return None
            case "apply":
                for argument in _list(term.get("arguments"), "arguments"):
                    if isinstance(argument, dict) and argument.get("type") in _TERMS:
                        self._reference(argument)
                return None
            case other:
                raise InvalidInput(f"filter: {_shown(other)} is no type of a term")

    def _untested(self, value: Document, negated: bool) -> Predicate:
        source = {"type": "not", "child": value} if negated else value
        return Predicate(source, AlwaysTrue(), is_exact=False, is_ordered=False)

    def _test(
        self, op: str, column: Column, literals: list[object]
    ) -> BooleanExpression | bool | None:
        """What PyIceberg can test; a constant; or None, which may always match."""
        if not column.below_structs_only:
            raise InvalidInput(
                f"filter: {shown(column.name)} lies in a list or a map, of which a row has many values"
            )
        _check_type(op, column)
        type_ = single_values.parse_type(column.type)
        if type_ is None:
            return None
        self.types[column.id] = type_
        term = tests.Reference(column_name(column.id))
        if op in _UNARY:
            return _UNARY[op](term)
        try:
            if op in _SET:
                return _set_test(op, term, type_, literals)
            return _COMPARISON[op](term, single_values.literal(type_, literals[0]))
        except NotExactError:
            return None
        except OutOfRangeError as beyond:
            return _beyond(op, term, above=beyond.above)
        except ValueError as error:
            raise InvalidInput(f"filter: {shown(column.name)}: {error}") from None


_UNKNOWN = object()
"""In the place of a literal: something that is known only for each row."""


def _check_type(op: str, column: Column) -> None:
    name, type_ = shown(column.name), column.type
    if isinstance(type_, dict):
        if op not in {"is-null", "not-null"}:
            raise InvalidInput(f"filter: {name} is a {type_.get('type')}, which {op} cannot test")
    elif op in {"is-nan", "not-nan"} and type_ not in {"float", "double"}:
        raise InvalidInput(f"filter: {name} is of type {type_}, which has no NaN")
    elif op in _PREFIXES and type_ != "string":
        raise InvalidInput(f"filter: {name} is of type {type_}, which has no prefixes")


def _set_test(
    op: str, term: tests.Reference, type_: PrimitiveType, literals: list[object]
) -> BooleanExpression | bool:
    accepted = set()
    for value in literals:
        try:
            accepted.add(single_values.literal(type_, value))
        except OutOfRangeError:
            continue  # no row has it
    if not accepted:
        return op == "not-in"
    return _SET[op](term, accepted)


def _beyond(op: str, term: tests.Reference, *, above: bool) -> BooleanExpression | bool:
    """The test of a value that is above all of its type, or below them."""
    if op in {"eq", "not-eq"}:
        return op == "not-eq"
    holds = op in {"lt", "lt-eq"} if above else op in {"gt", "gt-eq"}
    return _UNARY["not-null"](term) if holds else False


def _operands(value: Document, name: str) -> list[object]:
    """The operands of a chain, in order: clients nest ``a and b and c and …`` to any depth."""
    operands: list[object] = []
    waiting: list[object] = [value]
    while waiting:
        operand = waiting.pop()
        if isinstance(operand, dict) and operand.get("type") == name:
            for side in ("left", "right"):
                if operand.get(side) is None:
                    raise InvalidInput(f"filter: {name} needs {side}")
            waiting += [operand["right"], operand["left"]]
        else:
            operands.append(operand)
    return operands


def _operand_of(value: Document, keys: tuple[str, ...], name: str) -> list[object]:
    operands = [value[key] for key in keys if value.get(key) is not None]
    if len(operands) != 1:
        raise InvalidInput(f"filter: {name} needs {' or '.join(keys)}")
    return operands


def _values(value: Document) -> list[object]:
    values = value.get("values")
    if isinstance(values, dict) and values.get("type") == "literals":
        values = values.get("values")
    return _list(values, "values")


def _list(value: object, key: str) -> list[object]:
    if not isinstance(value, list):
        raise InvalidInput(f"filter: {key} must be an array, not {kind(value)}")
    return value


def _is_literal(value: object) -> bool:
    # Where a literal may stand, a bare text is one.
    return not isinstance(value, dict) or value.get("type") == "literal"


def _literal(value: object) -> object:
    if isinstance(value, dict) and value.get("type") == "literal":
        value = value.get("value")
    if value is None or isinstance(value, (dict, list)):
        raise InvalidInput(f"filter: expected a literal, not {kind(value)}")
    return value


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, str) else kind(value)


# --- combining ---------------------------------------------------------------------------------


def all_of(parts: Iterable[Expression]) -> Expression:
    """The conjunction, without what is settled."""
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
    """The disjunction, without what is settled."""
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
    """The expression with each predicate replaced by what is known of it."""
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
    """The expression for PyIceberg's evaluators, made of a test for each predicate."""
    if isinstance(expression, Predicate):
        return test(expression)
    if isinstance(expression, (AllOf, AnyOf)):
        combine: Any = tests.And if isinstance(expression, AllOf) else tests.Or
        parts = [to_test(operand, test) for operand in expression.parts]
        combined: BooleanExpression = combine(*parts)  # a balanced tree of any number
        return combined
    return AlwaysTrue() if expression else AlwaysFalse()


def to_json(expression: Expression) -> bool | Document:
    """The expression in the protocol's words; long chains become balanced trees."""
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
