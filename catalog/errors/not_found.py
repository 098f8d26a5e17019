"""Things that do not exist."""

from collections.abc import Sequence

from catalog.errors.base import CatalogError, label, on_branch


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
            on=on_branch(branch),
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


class StorageProfileNotFound(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"Storage profile '{name}' does not exist")
        self.name = name


class EngineProfileNotFound(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"Engine profile '{name}' does not exist")
        self.name = name


class StorageTestNotFound(NotFound):
    def __init__(self, test: object) -> None:
        super().__init__(f"Test {test} of the storage profile does not exist")
        self.test = test


class PrincipalNotFound(NotFound):
    def __init__(self, name: str, similar: str = "") -> None:
        remedy = f"; did you mean '{similar}'?" if similar else ""
        super().__init__(f"Principal '{name}' does not exist{remedy}")
        self.name = name


class KeyNotFound(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"API key '{name}' does not exist")
        self.name = name


class TrashItemNotFound(NotFound):
    def __init__(self, item: object) -> None:
        super().__init__(f"Trash item '{item}' does not exist")
        self.item = item


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
