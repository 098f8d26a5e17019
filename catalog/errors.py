"""Everything that the catalog refuses, as one tree. Classes carry facts, never a status code.

    CatalogError
    ├── InvalidInput                what was asked is malformed
    │   ├── InvalidIdentifier
    │   ├── InvalidLocation
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
    └── OutcomeUnknown              the commit was sent, and its answer lost

Each protocol maps these classes in its own ``errors.py``; nothing else knows a status code.
"""

from collections.abc import Sequence


def label(identifier: Sequence[str]) -> str:
    """The way messages name a namespace or a table: ``prod.users``."""
    return ".".join(identifier) if identifier else "(root)"


class CatalogError(Exception):
    """Base of all refusals. ``operation`` is the index of the failing operation of a batch."""

    operation: int | None = None

    def __init__(self, message: str, *, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class InvalidInput(CatalogError):
    pass


class InvalidIdentifier(InvalidInput):
    pass


class InvalidLocation(InvalidInput):
    def __init__(self, location: str, cause: str, *, detail: str | None = None) -> None:
        super().__init__(f"Location {location!r} {cause}", detail=detail)
        self.location = location


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
        super().__init__(f"Namespace '{label(namespace)}' does not exist")
        self.namespace = tuple(namespace)

    @property
    def identifier(self) -> tuple[str, ...]:
        return self.namespace


class TableNotFound(NotFound):
    def __init__(self, table: Sequence[str], *, detail: str | None = None) -> None:
        super().__init__(f"Table '{label(table)}' does not exist", detail=detail)
        self.table = tuple(table)

    @property
    def identifier(self) -> tuple[str, ...]:
        return self.table


class VersionNotFound(NotFound):
    def __init__(self, table: Sequence[str], version: int | None, branch: str = "") -> None:
        on = f" on branch '{branch}'" if branch else ""
        which = "version yet" if version is None else f"version {version}"
        super().__init__(f"Table '{label(table)}' has no {which}{on}")
        self.table, self.version, self.branch = tuple(table), version, branch


class BranchNotFound(NotFound):
    def __init__(self, table: Sequence[str], branch: str) -> None:
        super().__init__(f"Table '{label(table)}' has no branch '{branch}'")
        self.table, self.branch = tuple(table), branch


class TagNotFound(NotFound):
    def __init__(self, table: Sequence[str], tag: str) -> None:
        super().__init__(f"Table '{label(table)}' has no tag '{tag}'")
        self.table, self.tag = tuple(table), tag


class ColumnNotFound(NotFound):
    def __init__(self, table: Sequence[str], cause: str) -> None:
        super().__init__(f"Table '{label(table)}': {cause}")
        self.table = tuple(table)


class IndexNotFound(NotFound):
    def __init__(self, table: Sequence[str], index: str) -> None:
        super().__init__(f"Table '{label(table)}' has no index '{index}'")
        self.table, self.index = tuple(table), index


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
        super().__init__(f"View '{label(view)}' does not exist", detail=detail)
        self.view = tuple(view)

    @property
    def identifier(self) -> tuple[str, ...]:
        return self.view


class FunctionNotFound(NotFound):
    def __init__(self, function: Sequence[str]) -> None:
        super().__init__(f"Function '{label(function)}' does not exist")
        self.function = tuple(function)


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
        super().__init__(f"Namespace '{label(namespace)}' exists already")
        self.namespace = tuple(namespace)


class NamespaceNotEmpty(Conflict):
    def __init__(
        self, namespace: Sequence[str], *, tables: int, namespaces: int, functions: int = 0
    ) -> None:
        held = [_count(tables, "table"), _count(namespaces, "namespace")]
        if functions:
            held.append(_count(functions, "function"))
        super().__init__(
            f"Namespace '{label(namespace)}' is not empty: it holds {' and '.join(held)}",
            detail="Drop what it holds first, or drop it with behavior Cascade.",
        )
        self.namespace = tuple(namespace)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


class TableAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str]) -> None:
        super().__init__(f"Table '{label(table)}' exists already")
        self.table = tuple(table)


class ViewAlreadyExists(Conflict):
    def __init__(self, view: Sequence[str]) -> None:
        super().__init__(f"View '{label(view)}' exists already")
        self.view = tuple(view)


class FunctionAlreadyExists(Conflict):
    def __init__(self, function: Sequence[str]) -> None:
        super().__init__(f"Function '{label(function)}' exists already")
        self.function = tuple(function)


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
        on = f" on branch '{branch}'" if branch else ""
        super().__init__(f"Table '{label(table)}' has version {version}{on} already")
        self.table, self.version, self.branch = tuple(table), version, branch


class TagAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], tag: str) -> None:
        super().__init__(f"Table '{label(table)}' has tag '{tag}' already")
        self.table, self.tag = tuple(table), tag


class BranchAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], branch: str) -> None:
        super().__init__(f"Table '{label(table)}' has branch '{branch}' already")
        self.table, self.branch = tuple(table), branch


class IndexAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], index: str) -> None:
        super().__init__(f"Table '{label(table)}' has index '{index}' already")
        self.table, self.index = tuple(table), index


class PropertyAlreadySet(Conflict):
    def __init__(self, key: str) -> None:
        super().__init__(f"Property '{key}' is set already")
        self.key = key


class LocationTaken(Conflict):
    def __init__(self, location: str, owner: str) -> None:
        super().__init__(f"Location '{location}' belongs to {owner}")
        self.location = location


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
        super().__init__(
            f"Table '{label(table)}' is declared and has no data yet",
            detail="Insert into it, or create its first version.",
        )
        self.table = tuple(table)


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
    """Names all that is protected among what was to be dropped, as ``table 'prod.users'``."""

    def __init__(self, things: Sequence[str]) -> None:
        shown = ", ".join(things[:_NAMED])
        more = f" and {len(things) - _NAMED} more" if len(things) > _NAMED else ""
        verb = "is" if len(things) == 1 else "are"
        super().__init__(
            f"{shown[:1].upper()}{shown[1:]}{more} {verb} protected",
            detail="Who may manage it has to take the protection off first.",
        )
        self.things = tuple(things)


_NAMED = 10


class ApprovalRequired(CatalogError):
    """``request`` is the number of what waits for a second person now; None: nothing was asked."""

    request: int | None = None
    draft: object = None
    """What the request is made of."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what[:1].upper()}{what[1:]} needs the approval of a second person")
        self.what = what

    def ask(self, request: int) -> None:
        """Tell the number of the request."""
        self.request = request
        self.message += f": request {request} waits for it"


class ServiceUnavailable(CatalogError):
    pass


class OutcomeUnknown(CatalogError):
    """The database was lost while it committed: the change is there, or it is not."""
