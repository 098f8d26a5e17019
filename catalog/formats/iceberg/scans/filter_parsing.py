"""Parser of the filters that the REST protocol sends (spec: Expressions)."""

from collections.abc import Callable
from typing import Final

from pyiceberg import expressions as tests
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.types import PrimitiveType, UUIDType

from catalog.errors import InvalidInput
from catalog.formats.iceberg.reading import Document, kind, shown
from catalog.formats.iceberg.scans.expressions import (
    Expression,
    Filter,
    Predicate,
    all_of,
    any_of,
    column_name,
)
from catalog.formats.iceberg.schema import single_values
from catalog.formats.iceberg.schema.schemas import Column, Columns
from catalog.formats.iceberg.schema.single_values import NotExactError, OutOfRangeError

# The limit of JSON itself is twice this. Evaluators recurse once for each level.
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
_TERMS = ("reference", "apply")  # a tuple, because the compared value may be unhashable
_PREFIXES = {"starts-with", "not-starts-with"}


class Names:
    """The columns of a schema by full name, case-sensitive or not."""

    def __init__(self, columns: Columns, *, case_sensitive: bool) -> None:
        self._columns = columns
        self._case_sensitive = case_sensitive
        self._by_name: dict[str, list[Column]] = {}
        for column in columns.values():
            self._by_name.setdefault(self._fold(column.name), []).append(column)

    def _fold(self, name: str) -> str:
        return name if self._case_sensitive else name.lower()

    def find(self, name: str, where: str) -> Column:
        """The column of a name. Raises InvalidInput if no column, or several, have it."""
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


def parse(value: object, names: Names) -> Filter:
    """Parse the JSON of a filter. Raises InvalidInput."""
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
            # Writers order UUIDs differently. Bounds do not cover nulls, which satisfy
            # not-starts-with.
            is_ordered=not isinstance(type_, UUIDType) and op != "not-starts-with",
        )

    def _sides(self, value: Document, name: str) -> tuple[object, object, bool]:
        """The column and the value of a comparison, and True if the value came first."""
        if "term" in value or "value" in value:
            if "left" in value or "right" in value:
                raise InvalidInput(
                    f"filter: {name} has left and right, or term and value, not both"
                )
            for key in ("term", "value"):
                if value.get(key) is None:
                    raise InvalidInput(f"filter: {name} needs {key}")
            return value["term"], value["value"], False
        left_operand, right_operand = _operand_of(value, ("left",), name) + _operand_of(
            value, ("right",), name
        )
        if _is_literal(left_operand):
            if _is_literal(right_operand):
                raise InvalidInput(f"filter: {name} compares a literal with a literal")
            return right_operand, left_operand, True
        if _is_literal(right_operand):
            return left_operand, right_operand, False
        self._reference(right_operand)
        return left_operand, _UNKNOWN, False

    def _reference(self, term: object) -> Column | None:
        """The column of a term; None if it is computed from columns, which must exist."""
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
        """The test for PyIceberg, or a constant; None for a predicate that may always match."""
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
"""Stands for the value of a comparison that depends on the row."""


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
            continue  # no row has this value
    if not accepted:
        return op == "not-in"
    return _SET[op](term, accepted)


def _beyond(op: str, term: tests.Reference, *, above: bool) -> BooleanExpression | bool:
    """The test for a value above, or below, all values of the column's type."""
    if op in {"eq", "not-eq"}:
        return op == "not-eq"
    holds = op in {"lt", "lt-eq"} if above else op in {"gt", "gt-eq"}
    return _UNARY["not-null"](term) if holds else False


def _operands(value: Document, name: str) -> list[object]:
    """The operands of a chain in order, because clients nest ``a and b and c and …`` deeply."""
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
    # Where a literal is allowed, a plain text is a literal.
    return not isinstance(value, dict) or value.get("type") == "literal"


def _literal(value: object) -> object:
    if isinstance(value, dict) and value.get("type") == "literal":
        value = value.get("value")
    if value is None or isinstance(value, (dict, list)):
        raise InvalidInput(f"filter: expected a literal, not {kind(value)}")
    return value


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, str) else kind(value)
