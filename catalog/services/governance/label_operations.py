"""x"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count

from catalog import access
from catalog.errors import (
    CatalogError,
    InvalidInput,
    LabelAlreadyExists,
    LabelInUse,
    LabelNotFound,
)
from catalog.models import (
    LabelAssignment,
    LabelColour,
    LabelDefinition,
    LabelPlace,
    Namespace,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.commit import Batch, Operation
from catalog.services.governance.annotation_operations import MAX_DESCRIPTION, AnnotationOperation

MAX_VALUE = 200
MAX_VALUES = 500
_KEY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)


# --- labels --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AssignLabel(AnnotationOperation):
    """Give a label with these values, in place of those that the same thing had of it.

    Raises LabelNotFound, and InvalidInput for a value or a place that the label does not take.
    """

    name = "AssignLabel"
    action = "label.assign"

    key: str
    values: Sequence[str]

    def apply(self, batch: Batch) -> list[str]:
        target_filter = self.locked(batch)
        definition = _definition(self.key)
        values = self._checked(definition)
        before = _assigned_values(definition, self.column, target_filter)
        if before == values:
            return values
        _delete_assignments(definition, self.column, target_filter)
        LabelAssignment.objects.bulk_create(
            LabelAssignment(
                definition=definition,
                **target_filter,
                column=self.column,
                value=value,
                set_by=batch.actor.name,
            )
            for value in values
        )
        self.record(
            batch,
            target_filter,
            {"label": self.key, "values": before},
            {"label": self.key, "values": values},
        )
        return values

    def _checked(self, definition: LabelDefinition) -> list[str]:
        values = list(dict.fromkeys(value.strip() for value in self.values))
        if not values:
            raise InvalidInput(f"Label '{self.key}' needs a value")
        if len(values) > 1 and not definition.is_multiple:
            raise InvalidInput(f"Label '{self.key}' has one value, and {len(values)} are given")
        if self.place not in definition.places:
            raise InvalidInput(
                f"Label '{self.key}' may be put on a {' or '.join(definition.places)}, not on a"
                f" {self.place}"
            )
        if len(values) > MAX_VALUES:
            raise InvalidInput(f"{len(values)} values are given; {MAX_VALUES} are allowed")
        for value in values:
            if definition.values and value not in definition.values:
                raise InvalidInput(
                    f"Label '{self.key}' takes {', '.join(definition.values)}, not"
                    f" '{value[:MAX_VALUE]}'"
                )
            _check_value(value)
        return values


@dataclass(frozen=True, kw_only=True)
class RemoveLabel(AnnotationOperation):
    """Take a label away with all its values. The result is the values. Raises LabelNotFound.

    What the namespaces above have of it holds again.
    """

    name = "RemoveLabel"
    action = "label.remove"

    key: str

    @property
    def is_removal(self) -> bool:
        return True

    def apply(self, batch: Batch) -> list[str]:
        target_filter = self.locked(batch)
        definition = _definition(self.key)
        before = _assigned_values(definition, self.column, target_filter)
        if before:
            _delete_assignments(definition, self.column, target_filter)
            self.record(
                batch, target_filter, {"label": self.key, "values": before}, {"label": self.key}
            )
        return before


def _definition(key: str) -> LabelDefinition:
    """Locked, so that it takes what it takes until the commit."""
    definition = locks.lock_label(key)
    if definition is None:
        raise LabelNotFound(key)
    return definition


def _assigned_values(
    definition: LabelDefinition, column: str, target_filter: Mapping[str, Namespace | Table]
) -> list[str]:
    assignments = LabelAssignment.objects.filter(
        definition=definition, column=column, **target_filter
    )
    return list(assignments.order_by("pk").values_list("value", flat=True))


def _delete_assignments(
    definition: LabelDefinition, column: str, target_filter: Mapping[str, Namespace | Table]
) -> None:
    LabelAssignment.objects.filter(definition=definition, column=column, **target_filter).delete()


def _check_value(value: str) -> None:
    if len(value) > MAX_VALUE or not value.isprintable():
        raise InvalidInput(f"A label's value has at most {MAX_VALUE} characters, all printable")


# --- their definitions ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LabelOperation(Operation):
    """An operation on a label's definition: who may do everything everywhere may."""

    key: str

    def described(self, row: LabelDefinition) -> dict[str, Any]:
        return {
            "description": row.description,
            "colour": row.colour,
            "values": row.values,
            "is_multiple": row.is_multiple,
            "places": row.places,
        }


@dataclass(frozen=True, kw_only=True)
class CreateLabel(LabelOperation):
    """Define a label. The result is its row. Raises LabelAlreadyExists, InvalidInput."""

    name = "CreateLabel"
    action = "label.create"

    description: str = ""
    colour: LabelColour = LabelColour.GREY
    values: Sequence[str] = ()
    """None: any text is a value."""
    is_multiple: bool = False
    places: Sequence[LabelPlace] = tuple(LabelPlace)

    def prepare(self) -> "CreateLabel":
        if not _KEY.fullmatch(self.key):
            raise InvalidInput(
                "A label's key has up to 63 of a-z, 0-9, '_', '-' and '.', and begins with a letter"
                " or a digit"
            )
        return self

    def apply(self, batch: Batch) -> LabelDefinition:
        access.require(batch.actor, Privilege.ALL)
        row = LabelDefinition(
            key=self.key,
            description=self.description,
            colour=self.colour.value,
            values=list(self.values),
            is_multiple=self.is_multiple,
            places=[target.value for target in self.places],
            created_by=batch.actor.name,
        )
        check_definition(row)
        batch.flush()
        row.save(force_insert=True)
        batch.record(self.key, after=self.described(row))
        return row

    def conflict(self, constraint: str) -> CatalogError | None:
        return LabelAlreadyExists(self.key) if "labeldefinition_key" in constraint else None


@dataclass(frozen=True, kw_only=True)
class UpdateLabel(LabelOperation):
    """Change a label's definition; what is None stays. The result is its row.

    Raises LabelNotFound, InvalidInput, and LabelInUse when it was given as it could not be any more.
    """

    name = "UpdateLabel"
    action = "label.update"

    description: str | None = None
    colour: LabelColour | None = None
    values: Sequence[str] | None = None
    is_multiple: bool | None = None
    places: Sequence[LabelPlace] | None = None

    def apply(self, batch: Batch) -> LabelDefinition:
        access.require(batch.actor, Privilege.ALL)
        row = _definition(self.key)
        before = self.described(row)
        if self.description is not None:
            row.description = self.description
        if self.colour is not None:
            row.colour = self.colour.value
        if self.values is not None:
            row.values = list(self.values)
        if self.is_multiple is not None:
            row.is_multiple = self.is_multiple
        if self.places is not None:
            row.places = [target.value for target in self.places]
        check_definition(row)
        after = self.described(row)
        if after == before:
            return row
        _require_assignments_fit(row)
        batch.flush()
        row.save()
        batch.record(self.key, before=before, after=after)
        return row


@dataclass(frozen=True, kw_only=True)
class DeleteLabel(LabelOperation):
    """Do away with a label that nothing has. Raises LabelNotFound, LabelInUse."""

    name = "DeleteLabel"
    action = "label.delete"

    def apply(self, batch: Batch) -> None:
        access.require(batch.actor, Privilege.ALL)
        row = _definition(self.key)
        number = LabelAssignment.objects.filter(definition=row).count()
        if number:
            raise LabelInUse(self.key, f"{number} assignments have it")
        before = self.described(row)
        row.delete()
        batch.record(self.key, before=before)


def check_definition(row: LabelDefinition) -> None:
    """Raises InvalidInput for a definition that makes no sense."""
    if not row.places or len(set(row.places)) < len(row.places):
        raise InvalidInput("A label needs places where it may be put, each once")
    if len(row.values) > MAX_VALUES or len(set(row.values)) < len(row.values):
        raise InvalidInput(f"A label has at most {MAX_VALUES} values, each once")
    for value in row.values:
        _check_value(value)
        if not value or value != value.strip():
            raise InvalidInput("A label's values are not empty, and have no blanks around them")
    if len(row.description) > MAX_DESCRIPTION:
        raise InvalidInput(f"A description has at most {MAX_DESCRIPTION} characters")


def _require_assignments_fit(row: LabelDefinition) -> None:
    """Raises LabelInUse when the label was given as the new definition does not let it."""
    assignments = LabelAssignment.objects.filter(definition=row)
    if row.values:
        other = assignments.exclude(value__in=row.values).values_list("value", flat=True).first()
        if other is not None:
            raise LabelInUse(row.key, f"value '{other}' is given")
    for target, affected in (
        (LabelPlace.NAMESPACE, assignments.exclude(namespace=None)),
        (LabelPlace.TABLE, assignments.filter(column="").exclude(table=None)),
        (LabelPlace.COLUMN, assignments.exclude(column="")),
    ):
        if target not in row.places and affected.exists():
            raise LabelInUse(row.key, f"a {target} has it")
    if not row.is_multiple:
        of_one = assignments.order_by().values("namespace", "table", "column")
        if of_one.annotate(number=Count("pk")).filter(number__gt=1).exists():
            raise LabelInUse(row.key, "something has several of its values")
