"""What people say of namespaces, tables and columns, and the labels that they may give."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    LabelPlace,
    Namespace,
    Sensitivity,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.engine.commit import Batch, Operation
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


@dataclass(frozen=True, kw_only=True)
class AnnotationOperation(Operation):
    """An operation on what is said of a namespace, a table or view, or a column of one.

    Who may MANAGE the namespace or table may say it. What was said stays with the table when that
    is renamed; what is said of a column goes by its path.
    """

    target: Identifier
    is_table: bool
    column: str = ""
    """The path of a column; empty: the namespace or table itself."""
    columns: frozenset[str] | None = None
    """The table's columns, from ``prepare``; None: not known, or not needed."""

    @property
    def is_removal(self) -> bool:
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
        return replace(self, columns=_column_paths(row))

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
        """Enter the change in the audit trail, and in the document by which the row is found."""
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
        """Set a field of the row of facts, and return the value."""
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


def _column_paths(row: Table) -> frozenset[str] | None:
    try:
        schema = table_columns.read(row)
    except (CatalogError, Unreadable):
        return None
    if len(schema.columns) >= table_columns.MAX_COLUMNS:
        return None
    return frozenset(column.path for column in schema.columns)


@dataclass(frozen=True, kw_only=True)
class SetDescription(AnnotationOperation):
    """Describe a namespace, a table or a column in Markdown; an empty text takes it away."""

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
    """Say how sensitive a namespace, a table or a column is; None: as what it lies in."""

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
        self.set_field(batch, "links", links, [])
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
class SetOwner(AnnotationOperation):
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
        target_filter = self.locked(batch)
        (row,) = target_filter.values()
        access.require(batch.actor, Privilege.ALL, row)
        if row.owner == self.owner:
            return self.owner
        if self.owner and access.named(self.owner) is None:
            raise InvalidInput(f"There is no principal '{self.owner[:200]}' who could own it")
        self._require_own_rights(batch.actor, row)
        before, row.owner = row.owner, self.owner
        row.save(update_fields=["owner", "updated_at"])
        self.record(batch, target_filter, {"owner": before}, {"owner": self.owner})
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
