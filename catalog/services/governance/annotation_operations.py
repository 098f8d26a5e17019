"""Operations of the commit engine that annotate namespaces, tables and columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from catalog import access
from catalog.access import Principal
from catalog.errors import (
    CatalogError,
    ColumnNotFound,
    InvalidInput,
    PermissionDenied,
)
from catalog.identifiers import Identifier, check_table, label
from catalog.models import (
    Facts,
    LabelTarget,
    MaterializedView,
    Namespace,
    Sensitivity,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.lance.contents import Unreadable
from catalog.services.search import documents as search_documents
from catalog.services.search import table_columns

MAX_DESCRIPTION = 65_536
MAX_LINKS = 50
_MAX_COLUMN = 1_500  # bytes, as an index holds it
_MAX_TITLE = 200
_MAX_URL = 2_000


@dataclass(frozen=True, slots=True)
class Link:
    """A page elsewhere about a namespace or a table."""

    title: str
    url: str


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, read once for several operations: a table may have thousands."""

    table: Identifier

    @cached_property
    def paths(self) -> frozenset[str] | None:
        """None if they are unknown, or too many to be read."""
        row = table_columns.find(self.table)
        if row is None:
            return None  # refused later, on the locked row
        try:
            schema = table_columns.read(row)
        except (CatalogError, Unreadable):
            return None
        if len(schema.columns) >= table_columns.MAX_COLUMNS:
            return None
        return frozenset(column.path for column in schema.columns)


@dataclass(frozen=True, kw_only=True)
class AnnotationOperation(Operation):
    """An operation on the annotations of a namespace, a table or view, or a column of one.

    Requires MANAGE on the namespace or table. Annotations stay with a table when it is renamed;
    annotations of a column belong to its path.
    """

    target: Identifier
    is_table: bool
    column: str = ""
    """Path of a column; empty: the namespace or table itself."""
    source: TableColumns | None = None
    """The columns of the table, if several operations share them."""
    columns: frozenset[str] | None = None
    """Their paths, from ``prepare``; None: unknown, or not needed."""

    @property
    def is_removal(self) -> bool:
        """True if the operation only removes annotations."""
        return False

    def prepare(self) -> Self:
        if self.is_table:
            check_table(self.target)
        if not self.column:
            return self
        if not self.is_table:
            raise InvalidInput(f"Namespace '{label(self.target)}' has no columns")
        if len(self.column.encode(errors="replace")) > _MAX_COLUMN or "\0" in self.column:
            raise InvalidInput("The path of the column is too long, or holds a NUL character")
        source = self.source or TableColumns(self.target)
        return replace(self, columns=source.paths)

    def namespaces(self) -> Iterable[Identifier]:
        return () if self.is_table else (self.target,)

    def tables(self) -> Iterable[Identifier]:
        return (self.target,) if self.is_table else ()

    @property
    def place(self) -> LabelTarget:
        if not self.is_table:
            return LabelTarget.NAMESPACE
        return LabelTarget.COLUMN if self.column else LabelTarget.TABLE

    def locked(self, batch: Batch) -> dict[str, Namespace | Table]:
        """Check the actor's privilege, lock the target and return it as a filter of annotations."""
        # Checked by name, before the row is read: not everybody may know whether it exists.
        named = access.On.table(self.target) if self.is_table else access.On.namespace(self.target)
        access.require(batch.actor, Privilege.MANAGE, named)
        batch.flush()
        if not self.is_table:
            return {"namespace": batch.namespace(self.target)}
        row = batch.table(self.target)
        # Annotations of a column that no longer exists can still be removed.
        missing = self.columns is not None and self.column not in self.columns
        if self.column and missing and not self.is_removal:
            raise ColumnNotFound(self.target, f"Column '{self.column[:200]}' does not exist")
        return {"table": row}

    def record(
        self,
        batch: Batch,
        target_filter: Mapping[str, Namespace | Table],
        before: dict[str, Any],
        after: dict[str, Any],
    ) -> None:
        """Record the change in the audit trail and update the target's search document."""
        column = {"column": self.column} if self.column else {}
        row = target_filter.get("table")
        batch.record(
            label(self.target),
            table=row if isinstance(row, Table) else None,
            before=column | before,
            after=column | after,
        )
        search_documents.enter(*target_filter.values())

    def set_field(self, batch: Batch, field: str, value: Any, empty: Any) -> Any:
        """Set a field of the annotation row and return the value."""
        target_filter = self.locked(batch)
        row = Facts.objects.filter(**target_filter, column=self.column).first()
        before = empty if row is None else getattr(row, field)
        if before == value:
            return value
        row = row or Facts(**target_filter, column=self.column)
        setattr(row, field, value)
        row.updated_by = batch.actor.name
        if row.description or row.sensitivity or row.links:
            row.save()
        else:
            row.delete()
        self.record(batch, target_filter, {field: before}, {field: value})
        return value


@dataclass(frozen=True, kw_only=True)
class SetDescription(AnnotationOperation):
    """Describe a namespace, a table or a column in Markdown; an empty text removes the description."""

    name = "SetDescription"
    action = "description.set"

    description: str

    @property
    def is_removal(self) -> bool:
        return not self.description

    def prepare(self) -> Self:
        if len(self.description) > MAX_DESCRIPTION:
            raise InvalidInput(
                f"The description has {len(self.description)} characters; {MAX_DESCRIPTION} are"
                " allowed"
            )
        return super().prepare()

    def apply(self, batch: Batch) -> str:
        description: str = self.set_field(batch, "description", self.description, "")
        return description


@dataclass(frozen=True, kw_only=True)
class SetClassification(AnnotationOperation):
    """Set the sensitivity of a namespace, a table or a column; None: inherit it."""

    name = "SetClassification"
    action = "classification.set"

    sensitivity: Sensitivity | None

    @property
    def is_removal(self) -> bool:
        return self.sensitivity is None

    def apply(self, batch: Batch) -> Sensitivity | None:
        self.set_field(
            batch, "sensitivity", "" if self.sensitivity is None else self.sensitivity.value, ""
        )
        return self.sensitivity


@dataclass(frozen=True, kw_only=True)
class SetLinks(AnnotationOperation):
    """Replace the links of a namespace or a table."""

    name = "SetLinks"
    action = "links.set"

    links: Sequence[Link]

    def prepare(self) -> Self:
        if self.column:
            raise InvalidInput("A column cannot have links; set them on its table")
        if len(self.links) > MAX_LINKS:
            raise InvalidInput(f"{len(self.links)} links exceed the limit of {MAX_LINKS}")
        for link in self.links:
            check_link(link)
        return super().prepare()

    def apply(self, batch: Batch) -> Sequence[Link]:
        links = [{"title": link.title.strip(), "url": link.url.strip()} for link in self.links]
        self.set_field(batch, "links", links, [])
        return self.links


def check_link(link: Link) -> None:
    """Check a link. Raises InvalidInput without a title or without an http or https URL."""
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
        # Characters that a browser would drop or reinterpret.
        or any(not c.isprintable() or c.isspace() or c in '"<>\\^`{|}' for c in url)
    ):
        raise InvalidInput(f"The link '{link.title[:40]}' must be an http or https URL")


@dataclass(frozen=True, kw_only=True)
class SetOwner(AnnotationOperation):
    """Set the owner of a namespace or a table; an empty name removes the owner.

    An owner has every privilege on the object, so only principals with every privilege may change
    the owner, and only those whose privileges have no end may set one. A materialized view is
    refreshed with the privileges of its owner, so only an administrator may make another principal
    its owner, and a limited key must permit to read its source. Raises InvalidInput if the principal does not exist or is inactive, and
    PermissionDenied.
    """

    name = "SetOwner"
    action = "owner.set"

    owner: str

    def prepare(self) -> Self:
        if self.column:
            raise InvalidInput("A column cannot have an owner; set the owner of its table")
        return super().prepare()

    def apply(self, batch: Batch) -> str:
        target_filter = self.locked(batch)
        (row,) = target_filter.values()
        access.require(batch.actor, Privilege.ALL, row)
        if row.owner == self.owner:
            return self.owner
        if self.owner and access.named(self.owner) is None:
            raise InvalidInput(
                f"Principal '{self.owner[:200]}' does not exist or is inactive, so it cannot be an owner"
            )
        self._require_lasting(batch.actor, row)
        self._require_own_rights(batch.actor, row)
        before, row.owner = row.owner, self.owner
        row.save(update_fields=["owner", "updated_at"])
        self.record(batch, target_filter, {"owner": before}, {"owner": self.owner})
        return self.owner

    def _require_lasting(self, actor: Principal, row: Namespace | Table) -> None:
        """Raise PermissionDenied if ownership, which has no end, would outlast the actor's privileges."""
        if self.owner and access.held_until(actor, row, None) != Privilege.ALL:
            raise PermissionDenied(
                f"'{actor.name}' administers '{row}' for a limited time, so it may not set an owner"
            )

    def _require_own_rights(self, actor: Principal, row: Namespace | Table) -> None:
        """Raise PermissionDenied if a view would be refreshed with privileges that the actor does not have.

        Those are the privileges of another principal, or its own without the limits of its key.
        """
        if not (isinstance(row, Table) and row.is_materialized and self.owner):
            return
        is_own = self.owner in actor.names
        if is_own and actor.within is not None:
            view = MaterializedView.objects.select_related("source__namespace").get(table=row)
            if not access.holds(actor, Privilege.READ, view.source):
                raise PermissionDenied(
                    f"'{actor.name}' may not become the owner of view '{row}' with a key that is limited to a"
                    " namespace: the key may not read the source of the view, and its refreshes would",
                    detail="Use a key without this limit.",
                )
        if not is_own and not actor.holds_everywhere(Privilege.ALL):
            raise PermissionDenied(
                f"'{actor.name}' may not make '{self.owner}' the owner of view '{row}', which is"
                " refreshed with the privileges of its owner",
                detail="Ask an administrator to do it.",
            )
