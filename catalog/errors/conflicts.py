"""Conflicts with the present state of the catalog."""

from collections.abc import Sequence

from catalog.errors.base import CatalogError, on_branch


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
    """``requested`` is the kind of object that the request would create: ``table`` or ``view``."""

    def __init__(self, table: Sequence[str], *, requested: str = "table") -> None:
        self.table, self.requested = tuple(table), requested
        super().__init__("Table '{table}' exists already", table=self.table)


class ViewAlreadyExists(Conflict):
    """``requested`` is the kind of object that the request would create: ``table`` or ``view``."""

    def __init__(self, view: Sequence[str], *, requested: str = "view") -> None:
        self.view, self.requested = tuple(view), requested
        super().__init__("View '{view}' exists already", view=self.view)


class CannotRename(Conflict):
    """The new name is taken. ``holder`` is the kind of its owner: ``Table`` or ``View``."""

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


class StorageProfileAlreadyExists(Conflict):
    def __init__(self, name: str) -> None:
        super().__init__(f"Storage profile '{name}' exists already")
        self.name = name


class StorageProfileInUse(Conflict):
    """Tables or namespaces need what the change would take away."""

    def __init__(self, name: str, cause: str, *, detail: str) -> None:
        super().__init__(
            "Storage profile '{name}' is in use: {cause}", detail=detail, name=name, cause=cause
        )
        self.name = name


class EngineProfileAlreadyExists(Conflict):
    def __init__(self, name: str) -> None:
        super().__init__(f"Engine profile '{name}' exists already")
        self.name = name


class EngineProfileInUse(Conflict):
    """Policies or active jobs need the profile."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(
            "Engine profile '{name}' is in use: {cause}",
            detail="Choose another profile in these policies, and wait for these jobs or cancel them.",
            name=name,
            cause=cause,
        )
        self.name = name


class PrincipalAlreadyExists(Conflict):
    def __init__(self, name: str, *, detail: str | None = None) -> None:
        text = f"Principal '{name}' exists already, or another has its subject"
        super().__init__(text, detail=detail)
        self.name = name


class LastAdministrator(Conflict):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"'{name}' is the last administrator who can sign in",
            detail="Make another principal an administrator first.",
        )
        self.name = name


class VersionAlreadyExists(Conflict):
    def __init__(self, table: Sequence[str], version: int, branch: str = "") -> None:
        self.table, self.version, self.branch = tuple(table), version, branch
        super().__init__(
            "Table '{table}' has version {version}{on} already",
            table=self.table,
            version=version,
            on=on_branch(branch),
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
    """The location belongs to another table, view or namespace.

    ``holder`` is None if the caller may not browse the owner. ``place`` is the path of its files.
    """

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
    def __init__(self, item: object, cause: str, *, detail: str | None = None) -> None:
        super().__init__(f"'{item}' cannot be restored: {cause}", detail=detail)


class ApprovalOutdated(Conflict):
    def __init__(self, target: str) -> None:
        super().__init__(f"'{target}' has changed since the approval was requested")
        self.target = target


class RequirementFailed(Conflict):
    """A requirement of an Iceberg commit does not hold. Clients match these words."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"Requirement failed: {cause}")


class CommitConflict(Conflict):
    pass


class InvalidTableState(CatalogError):
    pass


class CredentialsRefused(InvalidTableState):
    """Nobody gets credentials for the table before somebody changes the catalog: to try again does not help."""


class TableHasNoData(InvalidTableState):
    def __init__(self, table: Sequence[str]) -> None:
        self.table = tuple(table)
        super().__init__(
            "Table '{table}' is declared and has no data yet",
            detail="Insert into it, or create its first version.",
            table=self.table,
        )
