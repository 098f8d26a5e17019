"""What people say of namespaces, tables and columns, and the labels that they may give."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from django.db.models import Count

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    CatalogError,
    ColumnNotFound,
    InvalidInput,
    LabelAlreadyExists,
    LabelInUse,
    LabelNotFound,
    PermissionDenied,
)
from catalog.identifiers import Identifier, check_table, label
from catalog.models import (
    Facts,
    LabelAssignment,
    LabelColour,
    LabelDefinition,
    LabelPlace,
    Namespace,
    Sensitivity,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.commit import Batch, Operation
from catalog.services.lance.contents import Unreadable
from catalog.services.search import documents as search_documents
from catalog.services.search import table_columns

MAX_DESCRIPTION = 65_536
MAX_LINKS = 50
MAX_VALUE = 200
MAX_VALUES = 500
_MAX_COLUMN = 1_500  # bytes, as an index holds it
_MAX_TITLE = 200
_MAX_URL = 2_000
_KEY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Link:
    """A page elsewhere about a namespace or a table."""

    title: str
    url: str


@dataclass(frozen=True, kw_only=True)
class FactOperation(Operation):
    """An operation on what is said of a namespace, a table or view, or a column of one.

    Who may MANAGE the namespace or table may say it. What was said stays with the table when that
    is renamed; what is said of a column goes by its path.
    """

    target: Identifier
    is_table: bool
    column: str = ""
    """The path of a column; empty: the namespace or table itself."""
    known: frozenset[str] | None = None
    """The table's columns, from ``prepare``; None: not known, or not needed."""

    @property
    def takes_away(self) -> bool:
        """Whether nothing is said afterwards that was not said before."""
        return False

    def prepare(self) -> Self:
        if self.is_table:
            check_table(self.target)
        if not self.column:
            return self
        if not self.is_table:
            raise InvalidInput("A namespace has no columns")
        if len(self.column.encode(errors="replace")) > _MAX_COLUMN or "\0" in self.column:
            raise InvalidInput("The path of the column is too long, or holds a NUL character")
        row = table_columns.find(self.target)
        if row is None:
            return self  # refused later, on the locked row
        return replace(self, known=_paths(row))

    def namespaces(self) -> Iterable[Identifier]:
        return () if self.is_table else (self.target,)

    def tables(self) -> Iterable[Identifier]:
        return (self.target,) if self.is_table else ()

    @property
    def place(self) -> LabelPlace:
        if not self.is_table:
            return LabelPlace.NAMESPACE
        return LabelPlace.COLUMN if self.column else LabelPlace.TABLE

    def locked(self, batch: Batch) -> dict[str, Namespace | Table]:
        """The row as the filter of what is said of it, once the actor may manage it."""
        # Asked by name, before the rows: whether there is one, not everybody may know.
        named = access.On.table(self.target) if self.is_table else access.On.namespace(self.target)
        access.require(batch.actor, Privilege.MANAGE, named)
        batch.flush()
        if not self.is_table:
            return {"namespace": batch.namespace(self.target)}
        row = batch.table(self.target)
        # From a column that is there no more, all can still be taken.
        missing = self.known is not None and self.column not in self.known
        if self.column and missing and not self.takes_away:
            raise ColumnNotFound(self.target, f"Column '{self.column[:200]}' does not exist")
        return {"table": row}

    def done(
        self,
        batch: Batch,
        of_this: Mapping[str, Namespace | Table],
        before: dict[str, Any],
        after: dict[str, Any],
    ) -> None:
        """Enter the change in the audit trail, and in the document by which the row is found."""
        column = {"column": self.column} if self.column else {}
        row = of_this.get("table")
        batch.record(
            label(self.target),
            table=row if isinstance(row, Table) else None,
            before=column | before,
            after=column | after,
        )
        search_documents.enter(*of_this.values())

    def say(self, batch: Batch, field: str, value: Any, empty: Any) -> Any:
        """Set a field of the row of facts, and return the value."""
        of_this = self.locked(batch)
        row = Facts.objects.filter(**of_this, column=self.column).first()
        before = empty if row is None else getattr(row, field)
        if before == value:
            return value
        row = row or Facts(**of_this, column=self.column)
        setattr(row, field, value)
        row.updated_by = batch.actor.name
        if row.description or row.sensitivity or row.links:
            row.save()
        else:
            row.delete()
        self.done(batch, of_this, {field: before}, {field: value})
        return value


def _paths(row: Table) -> frozenset[str] | None:
    try:
        schema = table_columns.read(row)
    except (CatalogError, Unreadable):
        return None
    if len(schema.columns) >= table_columns.MOST:
        return None
    return frozenset(column.path for column in schema.columns)


@dataclass(frozen=True, kw_only=True)
class SetDescription(FactOperation):
    """Describe a namespace, a table or a column in Markdown; an empty text takes it away."""

    name = "SetDescription"
    action = "description.set"

    description: str

    @property
    def takes_away(self) -> bool:
        return not self.description

    def prepare(self) -> Self:
        if len(self.description) > MAX_DESCRIPTION:
            raise InvalidInput(
                f"The description has {len(self.description)} characters; {MAX_DESCRIPTION} are"
                " allowed"
            )
        return super().prepare()

    def apply(self, batch: Batch) -> str:
        description: str = self.say(batch, "description", self.description, "")
        return description


@dataclass(frozen=True, kw_only=True)
class SetClassification(FactOperation):
    """Say how sensitive a namespace, a table or a column is; None: as what it lies in."""

    name = "SetClassification"
    action = "classification.set"

    sensitivity: Sensitivity | None

    @property
    def takes_away(self) -> bool:
        return self.sensitivity is None

    def apply(self, batch: Batch) -> Sensitivity | None:
        self.say(
            batch, "sensitivity", "" if self.sensitivity is None else self.sensitivity.value, ""
        )
        return self.sensitivity


@dataclass(frozen=True, kw_only=True)
class SetLinks(FactOperation):
    """Name the pages about a namespace or a table, in place of those that were named."""

    name = "SetLinks"
    action = "links.set"

    links: Sequence[Link]

    def prepare(self) -> Self:
        if self.column:
            raise InvalidInput("A column has no links: put them on its table")
        if len(self.links) > MAX_LINKS:
            raise InvalidInput(f"{len(self.links)} links are given; {MAX_LINKS} are allowed")
        for link in self.links:
            check_link(link)
        return super().prepare()

    def apply(self, batch: Batch) -> Sequence[Link]:
        links = [{"title": link.title.strip(), "url": link.url.strip()} for link in self.links]
        self.say(batch, "links", links, [])
        return self.links


def check_link(link: Link) -> None:
    """Raises InvalidInput for a link without a title, or that is no http or https URL."""
    if not link.title.strip() or len(link.title) > _MAX_TITLE:
        raise InvalidInput(f"A link needs a title of 1 to {_MAX_TITLE} characters")
    url = link.url.strip()
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if (
        parts.scheme.lower() not in {"http", "https"}
        or not host
        or len(url) > _MAX_URL
        # What a browser would drop or read as something else.
        or any(not c.isprintable() or c.isspace() or c in '"<>\\^`{|}' for c in url)
    ):
        raise InvalidInput(f"The link '{link.title[:40]}' must be an http or https URL")


@dataclass(frozen=True, kw_only=True)
class SetOwner(FactOperation):
    """Make a principal the owner of a namespace or a table; an empty name: nobody owns it.

    Who owns something may do everything with it, so only who may do that already gives it away.
    A materialized view is refreshed with the rights of its owner, so only an administrator makes
    somebody else its owner. Raises InvalidInput where no such principal is active, and
    PermissionDenied.
    """

    name = "SetOwner"
    action = "owner.set"

    owner: str

    def prepare(self) -> Self:
        if self.column:
            raise InvalidInput("A column has no owner: its table has")
        return super().prepare()

    def apply(self, batch: Batch) -> str:
        of_this = self.locked(batch)
        (row,) = of_this.values()
        access.require(batch.actor, Privilege.ALL, row)
        if row.owner == self.owner:
            return self.owner
        if self.owner and access.named(self.owner) is None:
            raise InvalidInput(f"There is no principal '{self.owner[:200]}' who could own it")
        self._require_own_rights(batch.actor, row)
        before, row.owner = row.owner, self.owner
        row.save(update_fields=["owner", "updated_at"])
        self.done(batch, of_this, {"owner": before}, {"owner": self.owner})
        return self.owner

    def _require_own_rights(self, actor: Principal, row: Namespace | Table) -> None:
        """Raises PermissionDenied for a view that would be refreshed with somebody else's rights."""
        is_view = isinstance(row, Table) and row.is_materialized
        is_own = not self.owner or self.owner in actor.names
        if is_view and not is_own and not actor.holds_everywhere(Privilege.ALL):
            raise PermissionDenied(
                f"'{actor.name}' may not make '{self.owner}' the owner of view '{row}', which is"
                " refreshed with the rights of its owner",
                detail="An administrator may.",
            )


# --- labels --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AssignLabel(FactOperation):
    """Give a label with these values, in place of those that the same thing had of it.

    Raises LabelNotFound, and InvalidInput for a value or a place that the label does not take.
    """

    name = "AssignLabel"
    action = "label.assign"

    key: str
    values: Sequence[str]

    def apply(self, batch: Batch) -> list[str]:
        of_this = self.locked(batch)
        definition = _definition(self.key)
        values = self._checked(definition)
        before = _given(definition, self.column, of_this)
        if before == values:
            return values
        _remove(definition, self.column, of_this)
        LabelAssignment.objects.bulk_create(
            LabelAssignment(
                definition=definition,
                **of_this,
                column=self.column,
                value=value,
                set_by=batch.actor.name,
            )
            for value in values
        )
        self.done(
            batch,
            of_this,
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
class RemoveLabel(FactOperation):
    """Take a label away with all its values. The result is the values. Raises LabelNotFound.

    What the namespaces above have of it holds again.
    """

    name = "RemoveLabel"
    action = "label.remove"

    key: str

    @property
    def takes_away(self) -> bool:
        return True

    def apply(self, batch: Batch) -> list[str]:
        of_this = self.locked(batch)
        definition = _definition(self.key)
        before = _given(definition, self.column, of_this)
        if before:
            _remove(definition, self.column, of_this)
            self.done(batch, of_this, {"label": self.key, "values": before}, {"label": self.key})
        return before


def _definition(key: str) -> LabelDefinition:
    """Locked, so that it takes what it takes until the commit."""
    definition = locks.lock_label(key)
    if definition is None:
        raise LabelNotFound(key)
    return definition


def _given(
    definition: LabelDefinition, column: str, of_this: Mapping[str, Namespace | Table]
) -> list[str]:
    assignments = LabelAssignment.objects.filter(definition=definition, column=column, **of_this)
    return list(assignments.order_by("pk").values_list("value", flat=True))


def _remove(
    definition: LabelDefinition, column: str, of_this: Mapping[str, Namespace | Table]
) -> None:
    LabelAssignment.objects.filter(definition=definition, column=column, **of_this).delete()


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
        _require_fitting(row)
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


def _require_fitting(row: LabelDefinition) -> None:
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
