"""Everything that the catalog refuses, as one tree. Classes carry facts, never a status code.

    CatalogError
    ├── InvalidInput                what was asked is malformed
    │   ├── InvalidIdentifier
    │   ├── InvalidLocation
    │   ├── ForeignFile             a file that does not belong to the table
    │   ├── InvalidManifestPath
    │   ├── InvalidTransactionState
    │   ├── InvalidJobState
    │   ├── InvalidApprovalState
    │   ├── InvalidMetadata
    │   ├── SchemaMismatch          data does not have the table's schema
    │   ├── DataTooLarge            more than this server takes in one request
    │   └── ContradictoryInput      well-formed, but it asks for two things at once
    ├── Unsupported                 this server cannot do it
    ├── NotFound
    │   ├── NamespaceNotFound
    │   ├── TableNotFound
    │   ├── VersionNotFound
    │   ├── ManifestNotFound        a version, or one to be entered, without its file
    │   ├── BranchNotFound
    │   ├── TagNotFound
    │   ├── ColumnNotFound
    │   ├── IndexNotFound
    │   ├── TransactionNotFound
    │   ├── JobNotFound
    │   ├── WarehouseNotFound
    │   ├── ViewNotFound
    │   ├── FunctionNotFound
    │   ├── LabelNotFound
    │   ├── PrincipalNotFound
    │   ├── KeyNotFound
    │   ├── TrashItemNotFound
    │   ├── ApprovalNotFound
    │   ├── PlanNotFound
    │   └── PlanTaskNotFound
    ├── Conflict                    what is there already stands against it
    │   ├── NamespaceAlreadyExists
    │   ├── NamespaceNotEmpty
    │   ├── TableAlreadyExists
    │   ├── ViewAlreadyExists
    │   ├── CannotRename            the new name is taken
    │   ├── FunctionAlreadyExists
    │   ├── LabelAlreadyExists
    │   ├── LabelInUse
    │   ├── PrincipalAlreadyExists
    │   ├── LastAdministrator       nobody could administer the catalog any more
    │   ├── VersionAlreadyExists
    │   ├── TagAlreadyExists
    │   ├── BranchAlreadyExists
    │   ├── IndexAlreadyExists
    │   ├── PropertyAlreadySet
    │   ├── LocationTaken
    │   ├── NotRecoverable          its data is gone, or goes
    │   ├── ApprovalOutdated        what was to be approved is not what was asked for any more
    │   ├── RequirementFailed
    │   └── CommitConflict          others kept committing; nothing changed
    ├── InvalidTableState
    │   └── TableHasNoData          it is declared, and nothing was written to it yet
    ├── Unauthenticated
    │   └── TokenExpired            it was good once; get another
    ├── PermissionDenied
    ├── Protected                   until its flag is taken off
    ├── ApprovalRequired            a second person has to approve it
    ├── TooManyAttempts             too many wrong secrets; wait
    ├── ServiceUnavailable          try again later; nothing changed
    │   └── Busy                    others hold what it needs, or wait for it
    └── OutcomeUnknown              the commit was sent, and its answer lost

Each protocol maps these classes in its own ``errors.py``; nothing else knows a status code. The
words are the plain ones of the admin and the management API; Iceberg and Lance replace those that
their clients match, each in its own ``wording.py``.
"""

from collections.abc import Callable, Sequence
from enum import Enum

Identifier = tuple[str, ...]
Name = Callable[[Sequence[str]], str]
"""How whoever shows a message writes the identifiers in it."""


def label(identifier: Sequence[str]) -> str:
    """The way messages name a namespace or a table: ``prod.users``."""
    return ".".join(identifier) if identifier else "(root)"


class CatalogError(Exception):
    """Base of all refusals. ``operation`` is the index of the failing operation of a batch.

    ``template`` is the message in plain words, and ``facts`` fill its placeholders; without facts it
    is the message as it is. An identifier among the facts is a tuple. A protocol may have another
    template for a class, and its own way of writing identifiers.
    """

    operation: int | None = None

    def __init__(self, template: str, *, detail: str | None = None, **facts: object) -> None:
        self.template = template
        self.facts = facts
        self.detail = detail
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The plain message, with complete identifiers."""
        return self.worded(label)

    def worded(self, name: Name, template: str | None = None) -> str:
        """The message, with identifiers as ``name`` writes them. ``template`` None: the plain one."""
        text = self.template if template is None else template
        if not self.facts:
            return text
        # Values are inserted as they are: braces in them mean nothing.
        return text.format_map(
            {
                key: name(value) if isinstance(value, tuple) else value
                for key, value in self.facts.items()
            }
        )

    def __str__(self) -> str:
        return self.message

    def reword(self, message: str) -> None:
        """Replace the message by one that names nothing which a protocol would write differently."""
        self.template, self.facts = message, {}


def _on_branch(branch: str) -> str:
    return f" on branch '{branch}'" if branch else ""


class InvalidInput(CatalogError):
    pass


class InvalidIdentifier(InvalidInput):
    pass


class LocationFault(Enum):
    """What is wrong with a location, as far as clients tell such refusals apart."""

    SCHEME = "scheme"
    """It is in a storage that this server does not serve."""
    OUTSIDE = "outside"
    """It is not below a directory in which tables may lie."""
    TRAVERSAL = "traversal"
    """It leads upwards."""
    OTHER = "other"


class InvalidLocation(InvalidInput):
    def __init__(
        self,
        location: str,
        cause: str,
        *,
        fault: LocationFault = LocationFault.OTHER,
        detail: str | None = None,
    ) -> None:
        self.location, self.fault = location, fault
        super().__init__(
            "Location {location!r} {cause}", detail=detail, location=location, cause=cause
        )


class ForeignFile(InvalidInput):
    """A file that may not be read, or changed, for a table.

    The text is the same for another table's file, a system file and one that does not exist.
    """

    def __init__(self, path: str, table: Identifier, verb: str = "read") -> None:
        self.path, self.table = path, table
        super().__init__(
            "File '{path}' does not belong to table '{table}', and may not be {verb} for it",
            path=path if len(path) <= _SHOWN_PATH else f"{path[:_SHOWN_PATH]}…",
            table=table,
            verb=verb,
        )


_SHOWN_PATH = 500


class InvalidManifestPath(InvalidInput):
    def __init__(self, path: str, cause: str) -> None:
        super().__init__(f"Manifest path {path!r} {cause}")
        self.path = path


class InvalidTransactionState(InvalidInput):
    def __init__(self, transaction: object, status: str, wanted: str) -> None:
        super().__init__(f"Transaction '{transaction}' is {status} and cannot become {wanted}")


class InvalidJobState(InvalidInput):
    def __init__(self, job: int, status: str, wanted: str) -> None:
        super().__init__(f"Job {job} is {status} and cannot be {wanted}")
        self.job, self.status = job, status


class InvalidApprovalState(InvalidInput):
    def __init__(self, approval: int, status: str, wanted: str) -> None:
        super().__init__(f"Approval request {approval} is {status} and cannot be {wanted}")
        self.approval, self.status = approval, status


class InvalidMetadata(InvalidInput):
    """Iceberg metadata, or an update of it, that is malformed. The message names the path to it."""


class SchemaMismatch(InvalidInput):
    pass


class DataTooLarge(InvalidInput):
    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The request carries more than {limit} bytes of data",
            detail="MONODON_MAX_DATA_BYTES sets the limit; insert in several requests.",
        )


class ContradictoryInput(InvalidInput):
    pass


class Unsupported(CatalogError):
    pass


class NotFound(CatalogError):
    pass


class NamespaceNotFound(NotFound):
    def __init__(self, namespace: Sequence[str]) -> None:
        self.namespace = tuple(namespace)
        super().__init__("Namespace '{namespace}' does not exist", namespace=self.namespace)

    @property
    def identifier(self) -> tuple[str, ...]:
        return self.namespace


class TableNotFound(NotFound):
    def __init__(self, table: Sequence[str], *, detail: str | None = None) -> None:
        self.table = tuple(table)
        super().__init__("Table '{table}' does not exist", detail=detail, table=self.table)

    @property
    def identifier(self) -> tuple[str, ...]:
        return self.table


class VersionNotFound(NotFound):
    def __init__(self, table: Sequence[str], version: int | None, branch: str = "") -> None:
        self.table, self.version, self.branch = tuple(table), version, branch
        super().__init__(
            "Table '{table}' has no {which}{on}",
            table=self.table,
            which="version yet" if version is None else f"version {version}",
            on=_on_branch(branch),
        )


class ManifestNotFound(NotFound):
    """The manifest of a version is not in storage."""

    def __init__(
        self, table: Sequence[str], version: int, path: str, *, detail: str | None = None
    ) -> None:
        super().__init__(
            f"Version {version} of table '{label(table)}' has no manifest: there is no file {path!r}",
            detail=detail,
        )
        self.table, self.version, self.path = tuple(table), version, path


class BranchNotFound(NotFound):
    def __init__(self, table: Sequence[str], branch: str) -> None:
        self.table, self.branch = tuple(table), branch
        super().__init__(
            "Table '{table}' has no branch '{branch}'", table=self.table, branch=branch
        )


class TagNotFound(NotFound):
    def __init__(self, table: Sequence[str], tag: str) -> None:
        self.table, self.tag = tuple(table), tag
        super().__init__("Table '{table}' has no tag '{tag}'", table=self.table, tag=tag)


class ColumnNotFound(NotFound):
    def __init__(self, table: Sequence[str], cause: str) -> None:
        self.table = tuple(table)
        super().__init__("Table '{table}': {cause}", table=self.table, cause=cause)


class IndexNotFound(NotFound):
    def __init__(self, table: Sequence[str], index: str) -> None:
        self.table, self.index = tuple(table), index
        super().__init__("Table '{table}' has no index '{index}'", table=self.table, index=index)


class TransactionNotFound(NotFound):
    def __init__(self, transaction: str) -> None:
        super().__init__(f"Transaction '{transaction}' does not exist")
        self.transaction = transaction


class JobNotFound(NotFound):
    def __init__(self, job: object) -> None:
        super().__init__(f"Job '{job}' does not exist")
        self.job = job


class WarehouseNotFound(NotFound):
    def __init__(self, warehouse: str) -> None:
        super().__init__(f"Warehouse '{warehouse}' does not exist")
        self.warehouse = warehouse


class ViewNotFound(NotFound):
    def __init__(self, view: Sequence[str], *, detail: str | None = None) -> None:
        self.view = tuple(view)
        super().__init__("View '{view}' does not exist", detail=detail, view=self.view)

    @property
    def identifier(self) -> tuple[str, ...]:
        return self.view


class FunctionNotFound(NotFound):
    def __init__(self, function: Sequence[str]) -> None:
        self.function = tuple(function)
        super().__init__("Function '{function}' does not exist", function=self.function)


class LabelNotFound(NotFound):
    def __init__(self, key: str) -> None:
        super().__init__(f"Label '{key}' does not exist")
        self.key = key


class WebhookNotFound(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"Webhook '{name}' does not exist")
        self.name = name


class PrincipalNotFound(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"Principal '{name}' does not exist")
        self.name = name


class KeyNotFound(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"API key '{name}' does not exist")
        self.name = name


class TrashItemNotFound(NotFound):
    def __init__(self, what: object) -> None:
        super().__init__(f"Nothing in the trash is '{what}'")
        self.what = what


class ApprovalNotFound(NotFound):
    def __init__(self, approval: object) -> None:
        super().__init__(f"Approval request '{approval}' does not exist")
        self.approval = approval


class PlanNotFound(NotFound):
    def __init__(self, plan: str) -> None:
        super().__init__(f"Scan plan '{plan}' does not exist or has ended")
        self.plan = plan


class PlanTaskNotFound(NotFound):
    def __init__(self, task: str) -> None:
        super().__init__(f"Plan task '{task}' does not exist or has ended")
        self.task = task


class Conflict(CatalogError):
    pass


class NamespaceAlreadyExists(Conflict):
    def __init__(self, namespace: Sequence[str]) -> None:
        self.namespace = tuple(namespace)
        super().__init__("Namespace '{namespace}' exists already", namespace=self.namespace)


class NamespaceNotEmpty(Conflict):
    def __init__(
        self, namespace: Sequence[str], *, tables: int, namespaces: int, functions: int = 0
    ) -> None:
        held = [_count(tables, "table"), _count(namespaces, "namespace")]
        if functions:
            held.append(_count(functions, "function"))
        self.namespace = tuple(namespace)
        super().__init__(
            "Namespace '{namespace}' is not empty: it holds {contents}",
            detail="Drop what it holds first, or drop it with behavior Cascade.",
            namespace=self.namespace,
            contents=" and ".join(held),
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


class TableAlreadyExists(Conflict):
    """``wanted`` is the kind of thing that was to have this name: ``table`` or ``view``."""

    def __init__(self, table: Sequence[str], *, wanted: str = "table") -> None:
        self.table, self.wanted = tuple(table), wanted
        super().__init__("Table '{table}' exists already", table=self.table)


class ViewAlreadyExists(Conflict):
    """``wanted`` is the kind of thing that was to have this name: ``table`` or ``view``."""

    def __init__(self, view: Sequence[str], *, wanted: str = "view") -> None:
        self.view, self.wanted = tuple(view), wanted
        super().__init__("View '{view}' exists already", view=self.view)


class CannotRename(Conflict):
    """A table or view holds the new name. ``holder`` says which: ``Table`` or ``View``."""

    def __init__(self, source: Sequence[str], target: Sequence[str], holder: str) -> None:
        self.source, self.target, self.holder = tuple(source), tuple(target), holder
        super().__init__(
            "Cannot rename {source} to {target}. {holder} already exists",
            source=self.source,
            target=self.target,
            holder=holder,
        )


class FunctionAlreadyExists(Conflict):
    def __init__(self, function: Sequence[str]) -> None:
        self.function = tuple(function)
        super().__init__("Function '{function}' exists already", function=self.function)


class LabelAlreadyExists(Conflict):
    def __init__(self, key: str) -> None:
        super().__init__(f"Label '{key}' exists already")
        self.key = key


class LabelInUse(Conflict):
    def __init__(self, key: str, cause: str) -> None:
        super().__init__(
            f"Label '{key}' cannot be changed so: {cause}",
            detail="Take it away there first.",
        )
        self.key = key


class PrincipalAlreadyExists(Conflict):
    def __init__(self, name: str, *, detail: str | None = None) -> None:
        text = f"Principal '{name}' exists already, or another has its subject"
        super().__init__(text, detail=detail)
        self.name = name


class LastAdministrator(Conflict):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"'{name}' is the last administrator who can still come in",
            detail="Make somebody else an administrator first.",
        )
        self.name = name


class VersionAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], version: int, branch: str = "") -> None:
        self.table, self.version, self.branch = tuple(table), version, branch
        super().__init__(
            "Table '{table}' has version {version}{on} already",
            table=self.table,
            version=version,
            on=_on_branch(branch),
        )


class TagAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], tag: str) -> None:
        self.table, self.tag = tuple(table), tag
        super().__init__("Table '{table}' has tag '{tag}' already", table=self.table, tag=tag)


class BranchAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], branch: str) -> None:
        self.table, self.branch = tuple(table), branch
        super().__init__(
            "Table '{table}' has branch '{branch}' already", table=self.table, branch=branch
        )


class IndexAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], index: str) -> None:
        self.table, self.index = tuple(table), index
        super().__init__(
            "Table '{table}' has index '{index}' already", table=self.table, index=index
        )


class PropertyAlreadySet(Conflict):
    def __init__(self, key: str) -> None:
        super().__init__(f"Property '{key}' is set already")
        self.key = key


class LocationTaken(Conflict):
    """``holder`` None: one that the caller may not browse. ``place`` is where its files lie."""

    def __init__(
        self,
        location: str,
        holder: Sequence[str] | None = None,
        *,
        kind: str = "table",
        place: str = "",
    ) -> None:
        self.location = location
        if holder is None:
            super().__init__(
                "Location '{location}' belongs to another {kind}", location=location, kind=kind
            )
            return
        super().__init__(
            "Location '{location}' belongs to {kind} '{holder}'{place}",
            location=location,
            kind=kind,
            holder=tuple(holder),
            place=f" ({place})" if place else "",
        )


class NotRecoverable(Conflict):
    def __init__(self, what: object, cause: str, *, detail: str | None = None) -> None:
        super().__init__(f"'{what}' cannot be brought back: {cause}", detail=detail)


class ApprovalOutdated(Conflict):
    def __init__(self, target: str) -> None:
        super().__init__(f"'{target}' is not any more what it was when this was asked for")
        self.target = target


class RequirementFailed(Conflict):
    """What an Iceberg commit was made against is no longer so. Clients match these words."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"Requirement failed: {cause}")


class CommitConflict(Conflict):
    pass


class InvalidTableState(CatalogError):
    pass


class TableHasNoData(InvalidTableState):
    def __init__(self, table: Sequence[str]) -> None:
        self.table = tuple(table)
        super().__init__(
            "Table '{table}' is declared and has no data yet",
            detail="Insert into it, or create its first version.",
            table=self.table,
        )


class Unauthenticated(CatalogError):
    pass


class TokenExpired(Unauthenticated):
    def __init__(self) -> None:
        super().__init__("The access token has expired")


class PermissionDenied(CatalogError):
    pass


class TooManyAttempts(CatalogError):
    """``seconds``: how long to wait, rounded up."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"Too many wrong credentials; try again in {seconds} seconds")
        self.seconds = seconds


class Protected(CatalogError):
    """``things``: all that is protected among what was to be dropped, each with its kind."""

    def __init__(self, things: Sequence[tuple[str, Sequence[str]]]) -> None:
        self.things = tuple((kind, tuple(identifier)) for kind, identifier in things)
        super().__init__(
            "{things} protected",
            detail="Who may manage it has to take the protection off first.",
        )

    def worded(self, name: Name, template: str | None = None) -> str:
        shown = ", ".join(f"{kind} '{name(path)}'" for kind, path in self.things[:_NAMED])
        more = f" and {len(self.things) - _NAMED} more" if len(self.things) > _NAMED else ""
        verb = "is" if len(self.things) == 1 else "are"
        text = self.template if template is None else template
        return text.format(things=f"{shown[:1].upper()}{shown[1:]}{more} {verb}")


_NAMED = 10


class ApprovalRequired(CatalogError):
    """``request`` is the number of what waits for a second person now; None: nothing was asked."""

    request: int | None = None
    draft: object = None
    """What the request is made of."""

    def __init__(self, what: str, target: Sequence[str]) -> None:
        """``what`` is the action, up to the kind of its target: ``dropping namespace``."""
        self.what, self.target = what, tuple(target)
        super().__init__(
            "{what} '{target}' needs the approval of a second person",
            what=f"{what[:1].upper()}{what[1:]}",
            target=self.target,
        )

    def ask(self, request: int) -> None:
        """Tell the number of the request."""
        self.request = request
        self.template += ": request {request} waits for it"
        self.facts["request"] = request


class ServiceUnavailable(CatalogError):
    pass


class Busy(ServiceUnavailable):
    """Others hold a lock that the request needs, or too many wait for it; nothing was changed."""


class OutcomeUnknown(CatalogError):
    """The database was lost while it committed: the change is there, or it is not."""
