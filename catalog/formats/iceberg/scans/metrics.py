"""Whether a data file may have matching rows, by its metrics (specification: Scan Planning)."""

from collections.abc import Mapping
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, visit
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

_MAX_LITERALS = 200
"""A longer list of values is not compared with the bounds of every file."""


class Evaluator:
    """Evaluates a test without negations, bound to a schema once, for any number of files."""

    def __init__(self, schema: Schema, test: BooleanExpression) -> None:
        self._test = bind(schema, test, case_sensitive=True)

    def may_match(self, file: DataFile) -> bool:
        """False if no row of the file can match.

        Raises ValueError, TypeError and others for bounds that are not of the column's type.
        """
        if file.record_count <= 0:
            return bool(file.record_count)  # some writers record -1 for an unknown number
        return bool(visit(self._test, _Visitor(file)))


class _Visitor(BoundBooleanExpressionVisitor[bool]):
    def __init__(self, file: DataFile) -> None:
        self._values: Mapping[int, int] = file.value_counts or {}
        self._nulls: Mapping[int, int] = file.null_value_counts or {}
        self._nans: Mapping[int, int] = file.nan_value_counts or {}
        self._lower: Mapping[int, bytes] = file.lower_bounds or {}
        self._upper: Mapping[int, bytes] = file.upper_bounds or {}

    def visit_true(self) -> bool:
        return True

    def visit_false(self) -> bool:
        return False

    def visit_not(self, child_result: bool) -> bool:
        raise ValueError("a negation")

    def visit_and(self, left_result: bool, right_result: bool) -> bool:
        return left_result and right_result

    def visit_or(self, left_result: bool, right_result: bool) -> bool:
        return left_result or right_result

    def visit_is_null(self, term: BoundTerm) -> bool:
        return self._nulls.get(_id(term)) != 0

    def visit_not_null(self, term: BoundTerm) -> bool:
        return not self._has_only(self._nulls, term)

    def visit_is_nan(self, term: BoundTerm) -> bool:
        return self._nans.get(_id(term)) != 0 and self.visit_not_null(term)

    def visit_not_nan(self, term: BoundTerm) -> bool:
        return not self._has_only(self._nans, term)

    def visit_less_than(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        lower, _ = self._bounds(term)
        return self._is_comparable(term) and (lower is None or lower < literal.value)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        lower, _ = self._bounds(term)
        return self._is_comparable(term) and (lower is None or lower <= literal.value)

    def visit_greater_than(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        _, upper = self._bounds(term)
        return self._is_comparable(term) and (upper is None or upper > literal.value)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        _, upper = self._bounds(term)
        return self._is_comparable(term) and (upper is None or upper >= literal.value)

    def visit_equal(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        return self.visit_in(term, {literal.value})

    def visit_not_equal(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        return True  # bounds need not be values of the column

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> bool:
        if not self._is_comparable(term):
            return False
        if len(literals) > _MAX_LITERALS:
            return True
        lower, upper = self._bounds(term)
        return any(
            (lower is None or lower <= value) and (upper is None or value <= upper)
            for value in literals
        )

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> bool:
        return True

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        prefix, (lower, upper) = literal.value, self._bounds(term)
        return (
            self.visit_not_null(term)
            and (lower is None or lower[: len(prefix)] <= prefix)
            and (upper is None or upper[: len(prefix)] >= prefix)
        )

    def visit_not_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> bool:
        if self._nulls.get(_id(term)) != 0:
            return True
        bounds = self._bounds(term)
        return not all(bound is not None and bound.startswith(literal.value) for bound in bounds)

    def _is_comparable(self, term: BoundTerm) -> bool:
        """True if the column may have values other than null and NaN."""
        return not (self._has_only(self._nulls, term) or self._has_only(self._nans, term))

    def _has_only(self, counts: Mapping[int, int], term: BoundTerm) -> bool:
        count = counts.get(_id(term))
        return bool(count) and count == self._values.get(_id(term))

    def _bounds(self, term: BoundTerm) -> tuple[Any, Any]:
        """The bounds of a column. None: unknown; NaN as the lower one makes both unreliable."""
        type_ = term.ref().field.field_type
        if not isinstance(type_, PrimitiveType):
            return None, None
        lower, upper = (
            from_bytes(type_, bounds[_id(term)]) if _id(term) in bounds else None
            for bounds in (self._lower, self._upper)
        )
        if lower != lower:  # noqa: PLR0124 -- NaN
            return None, None
        return lower, None if upper != upper else upper  # noqa: PLR0124


def _id(term: BoundTerm) -> int:
    return term.ref().field.field_id
