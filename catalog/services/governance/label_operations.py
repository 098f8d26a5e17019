"""Operations of the commit engine that define labels, and assign and remove them."""

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
    LabelTarget,
    Namespace,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.governance.annotation_operations import MAX_DESCRIPTION, AnnotationOperation

MAX_VALUE = 200
MAX_VALUES = 500
_KEY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)


# --- labels --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AssignLabel(AnnotationOperation):
    """Assign a label with values, which replace the previous values of this label.

    Raises LabelNotFound, and InvalidInput for a value or a target that the label does not allow.
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
            raise InvalidInput(f"Label '{self.key}' requires a value")
        if len(values) > 1 and not definition.is_multiple:
            raise InvalidInput(f"Label '{self.key}' takes one value, not {len(values)}")
        if self.place not in definition.applies_to:
            raise InvalidInput(
                f"Label '{self.key}' can be assigned to a {' or '.join(definition.applies_to)}, not to a"
                f" {self.place}"
            )
        if len(values) > MAX_VALUES:
            raise InvalidInput(f"{len(values)} values exceed the limit of {MAX_VALUES}")
        for value in values:
            if definition.values and value not in definition.values:
                raise InvalidInput(
                    f"Label '{self.key}' allows {', '.join(definition.values)}, not"
                    f" '{value[:MAX_VALUE]}'"
                )
            _check_value(value)
        return values


@dataclass(frozen=True, kw_only=True)
class RemoveLabel(AnnotationOperation):
    """Remove a label with all its values. Returns the values. Raises LabelNotFound.

    Values of the parent namespaces apply again.
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
    """Lock a label definition, so that it does not change until the commit. Raises LabelNotFound."""
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
        raise InvalidInput(
            f"A label's value must be printable and at most {MAX_VALUE} characters long"
        )


# --- definitions ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LabelOperation(Operation):
    """An operation on the definition of a label. Requires ALL on everything."""

    key: str

    def described(self, row: LabelDefinition) -> dict[str, Any]:
        return {
            "description": row.description,
            "colour": row.colour,
            "values": row.values,
            "is_multiple": row.is_multiple,
            "applies_to": row.applies_to,
        }


@dataclass(frozen=True, kw_only=True)
class CreateLabel(LabelOperation):
    """Define a label. Returns its row. Raises LabelAlreadyExists, InvalidInput."""

    name = "CreateLabel"
    action = "label.create"

    description: str = ""
    colour: LabelColour = LabelColour.GREY
    values: Sequence[str] = ()
    """Allowed values; empty: any text."""
    is_multiple: bool = False
    applies_to: Sequence[LabelTarget] = tuple(LabelTarget)

    def prepare(self) -> "CreateLabel":
        if not _KEY.fullmatch(self.key):
            raise InvalidInput(
                "A label's key must have up to 63 characters of a-z, 0-9, '_', '-' and '.', and begin"
                " with a letter or a digit"
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
            applies_to=[target.value for target in self.applies_to],
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
    """Change the definition of a label; None leaves a value unchanged. Returns its row.

    Raises LabelNotFound, InvalidInput, and LabelInUse if existing assignments violate the change.
    """

    name = "UpdateLabel"
    action = "label.update"

    description: str | None = None
    colour: LabelColour | None = None
    values: Sequence[str] | None = None
    is_multiple: bool | None = None
    applies_to: Sequence[LabelTarget] | None = None

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
        if self.applies_to is not None:
            row.applies_to = [target.value for target in self.applies_to]
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
    """Delete the definition of a label without assignments. Raises LabelNotFound, LabelInUse."""

    name = "DeleteLabel"
    action = "label.delete"

    def apply(self, batch: Batch) -> None:
        access.require(batch.actor, Privilege.ALL)
        row = _definition(self.key)
        number = LabelAssignment.objects.filter(definition=row).count()
        if number:
            raise LabelInUse(self.key, f"it has {number} assignments")
        before = self.described(row)
        row.delete()
        batch.record(self.key, before=before)


def check_definition(row: LabelDefinition) -> None:
    """Check the definition of a label. Raises InvalidInput."""
    if not row.applies_to or len(set(row.applies_to)) < len(row.applies_to):
        raise InvalidInput("'applies_to' of a label must not be empty or contain duplicates")
    if len(row.values) > MAX_VALUES or len(set(row.values)) < len(row.values):
        raise InvalidInput(f"A label allows at most {MAX_VALUES} values, without duplicates")
    for value in row.values:
        _check_value(value)
        if not value or value != value.strip():
            raise InvalidInput("A label's values must not be empty or have surrounding spaces")
    if len(row.description) > MAX_DESCRIPTION:
        raise InvalidInput(f"A description must not exceed {MAX_DESCRIPTION} characters")


def _require_assignments_fit(row: LabelDefinition) -> None:
    """Raise LabelInUse if an existing assignment violates the new definition."""
    assignments = LabelAssignment.objects.filter(definition=row)
    if row.values:
        other = assignments.exclude(value__in=row.values).values_list("value", flat=True).first()
        if other is not None:
            raise LabelInUse(row.key, f"value '{other}' is assigned")
    for target, affected in (
        (LabelTarget.NAMESPACE, assignments.exclude(namespace=None)),
        (LabelTarget.TABLE, assignments.filter(column="").exclude(table=None)),
        (LabelTarget.COLUMN, assignments.exclude(column="")),
    ):
        if target not in row.applies_to and affected.exists():
            raise LabelInUse(row.key, f"it is assigned to a {target}")
    if not row.is_multiple:
        of_one = assignments.order_by().values("namespace", "table", "column")
        if of_one.annotate(number=Count("pk")).filter(number__gt=1).exists():
            raise LabelInUse(row.key, "an object has several of its values")
