"""Projection of a filter onto the partitions of one spec (spec: Scan Planning).

Each predicate is projected twice: ``may`` is true for every partition that may have a matching row,
``must`` only for partitions in which all rows match.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any
from uuid import UUID

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    Or,
)
from pyiceberg.expressions.visitors import bind, expression_evaluator, manifest_evaluator
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform, UnknownTransform, VoidTransform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from catalog.formats.iceberg.reading import Document
from catalog.formats.iceberg.scans import expressions
from catalog.formats.iceberg.scans.expressions import Expression, Filter, Predicate
from catalog.formats.iceberg.schema import single_values

# Errors of evaluators for values of a promoted type, or of a type that PyIceberg does not compare.
_NOT_EVALUABLE = (
    ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError
)  # fmt: skip
_FIRST_FIELD_ID = 1000
_NO_SOURCE = -1

Evaluator = Callable[[Record], bool]


class Partitions:
    """Evaluates a filter for the partitions of a spec."""

    def __init__(
        self, document: Document, types: Mapping[int, PrimitiveType], filter: Filter
    ) -> None:
        """``types`` are the types of all possible partition source columns."""
        self.spec_id: int = document.get("spec-id", 0)
        self._filter = filter
        self._spec = PartitionSpec(
            *(_field(field, i) for i, field in enumerate(document.get("fields") or ())),
            spec_id=self.spec_id,
        )
        self.is_unpartitioned = all(
            isinstance(field.transform, VoidTransform) for field in self._spec.fields
        )
        self._schema = expressions.schema_of({**types, **filter.types})
        self._may: dict[Predicate, Evaluator | None] = {}
        self._must: dict[Predicate, Evaluator | None] = {}
        self._residuals: dict[tuple[object, ...], Expression] = {}

    @cached_property
    def _type(self) -> Schema:
        return Schema(*self._spec.partition_type(self._schema).fields)

    # -- manifests and files

    @cached_property
    def may_hold(self) -> Callable[[ManifestFile], bool]:
        """A function that returns True if a manifest may name a file with a matching row."""
        try:
            test = expressions.to_test(self._filter.expression, self._project_ordered)
            evaluate = manifest_evaluator(self._spec, self._schema, test, case_sensitive=True)
        except _NOT_EVALUABLE:
            return lambda _: True

        def may_hold(manifest: ManifestFile) -> bool:
            try:
                return evaluate(manifest)
            except _NOT_EVALUABLE:
                return True

        return may_hold

    def values(self, file: DataFile) -> tuple[Any, ...]:
        """A file's partition values in the form of PyIceberg's literals."""
        raw_values = (file.partition[i] for i in range(len(file.partition)))
        return tuple(value.bytes if isinstance(value, UUID) else value for value in raw_values)

    def residual(self, values: tuple[Any, ...]) -> Expression:
        """The part of the filter left to test for rows of a partition; False if none matches."""
        # 0.0 == -0.0 and 1 == True: different values must have different keys.
        key = tuple((type(value), str(value)) for value in values)
        if key not in self._residuals:
            self._residuals[key] = self._settle(values)
        return self._residuals[key]

    def to_json(self, values: tuple[Any, ...]) -> list[object]:
        types = [field.field_type for field in self._type.fields]
        return [
            single_values.to_json(_primitive(types[i]) if i < len(types) else None, value)
            for i, value in enumerate(values)
        ]

    # -- predicates

    def _settle(self, values: tuple[Any, ...]) -> Expression:
        if any(isinstance(value, float) and value != value for value in values):  # noqa: PLR0124 -- NaN
            return self._filter.expression  # engines treat NaN differently
        partition = Record(*values)

        def decide(predicate: Predicate) -> Expression:
            if not self._holds(self._may, predicate, partition, otherwise=True):
                return False
            return (
                True
                if predicate.is_exact
                and self._holds(self._must, predicate, partition, otherwise=False)
                else predicate
            )

        return expressions.settle(self._filter.expression, decide)

    def _holds(
        self,
        evaluators: dict[Predicate, Evaluator | None],
        predicate: Predicate,
        partition: Record,
        *,
        otherwise: bool,
    ) -> bool:
        if predicate not in evaluators:
            project = self._project if evaluators is self._may else self._project_strictly
            try:
                evaluators[predicate] = expression_evaluator(
                    self._type, project(predicate), case_sensitive=True
                )
            except _NOT_EVALUABLE:
                evaluators[predicate] = None
        evaluate = evaluators[predicate]
        if evaluate is None:
            return otherwise
        try:
            return evaluate(partition)
        except _NOT_EVALUABLE:
            return otherwise

    def _project_ordered(self, predicate: Predicate) -> BooleanExpression:
        return self._project(predicate) if predicate.is_ordered else AlwaysTrue()

    def _project(self, predicate: Predicate) -> BooleanExpression:
        """A test that is true for a partition that may have matching rows."""
        bound = self._bind(predicate)
        if not isinstance(bound, BoundPredicate):
            return bound
        projected: BooleanExpression = AlwaysTrue()
        for field in self._parts(bound):
            try:
                projection = field.transform.project(field.name, bound)
            except _NOT_EVALUABLE:
                continue
            if projection is not None:
                projected = And(projected, projection)
        return projected

    def _project_strictly(self, predicate: Predicate) -> BooleanExpression:
        """A test that is true only for a partition in which all rows match."""
        bound = self._bind(predicate)
        if not isinstance(bound, BoundPredicate):
            return bound
        projected: BooleanExpression = AlwaysFalse()
        for field in self._parts(bound):
            try:
                projection = field.transform.strict_project(field.name, bound)
            except _NOT_EVALUABLE:
                continue
            if projection is not None:
                projected = Or(projected, projection)
        return projected

    def _bind(self, predicate: Predicate) -> BooleanExpression:
        return bind(self._schema, predicate.test, case_sensitive=True)

    def _parts(self, predicate: BoundPredicate) -> list[PartitionField]:
        return self._spec.fields_by_source_id(predicate.term.ref().field.field_id)


def _field(document: Document, index: int) -> PartitionField:
    several = document.get("source-ids")
    # Transforms of several columns cannot be evaluated, so they exclude no partition.
    source = document.get("source-id") if several is None else None
    transform: Transform[Any, Any]
    try:
        name = document.get("transform")
        transform = parse_transform(name) if several is None else UnknownTransform(str(name))
    except (TypeError, ValueError):
        transform = UnknownTransform(str(document.get("transform")))
    return PartitionField(
        source_id=source if isinstance(source, int) else _NO_SOURCE,
        field_id=document.get("field-id", _FIRST_FIELD_ID + index),
        transform=transform,
        name=f"p{index}",
    )


def _primitive(type_: object) -> PrimitiveType | None:
    return type_ if isinstance(type_, PrimitiveType) else None
