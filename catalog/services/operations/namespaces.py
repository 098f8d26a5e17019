from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from django.db.models.functions import Now

from catalog.errors import (
    ContradictoryInput,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
)
from catalog.identifiers import Identifier, check, digest, label
from catalog.models import Function, Namespace, Table
from catalog.services import access, locks
from catalog.services.access import Action
from catalog.services.commit import Batch, Operation
from catalog.services.operations.tables import drop_tables


class CreateMode(StrEnum):
    """What to do when the namespace exists (spec: CreateNamespaceRequest.mode)."""

    CREATE = "create"
    EXIST_OK = "exist_ok"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, kw_only=True)
class CreateNamespace(Operation):
    """Create a namespace in an existing one. The result is its row.

    Overwrite drops the one that is there, with everything in it, and makes an empty one.
    """

    name = "CreateNamespace"
    action = "namespace.create"

    namespace: Identifier
    mode: CreateMode = CreateMode.CREATE
    properties: Mapping[str, str] = field(default_factory=dict)

    def prepare(self) -> "CreateNamespace":
        check(self.namespace)
        return self

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace[:-1], self.namespace)

    def subtrees(self) -> Iterable[Identifier]:
        return (self.namespace,) if self.mode is CreateMode.OVERWRITE and self.namespace else ()

    def apply(self, batch: Batch) -> Namespace:
        if not self.namespace:
            return self._root(batch)
        parent = batch.namespace(self.namespace[:-1])
        access.require(batch.actor, Action.WRITE, parent)
        existing = batch.find_namespace(self.namespace)
        if existing is not None:
            if self.mode is CreateMode.EXIST_OK:
                return existing
            if self.mode is CreateMode.CREATE:
                raise NamespaceAlreadyExists(self.namespace)
            drop_subtree(batch, existing)
        row = Namespace(
            path=list(self.namespace),
            digest=digest(self.namespace),
            parent=parent,
            name=self.namespace[-1],
            properties=dict(self.properties),
            owner=batch.actor.name,
        )
        batch.add(row)
        batch.record(str(row), after={"properties": row.properties})
        return row

    def _root(self, batch: Batch) -> Namespace:
        access.require(batch.actor, Action.WRITE)
        if self.mode is CreateMode.OVERWRITE:
            raise InvalidInput("The root namespace cannot be overwritten")
        if self.mode is CreateMode.CREATE:
            raise NamespaceAlreadyExists(())
        return batch.namespace(())


@dataclass(frozen=True, kw_only=True)
class DropNamespace(Operation):
    """Drop a namespace; with ``cascade`` everything in it too, else it must be empty.

    The result is the dropped row, or None when there was none and ``missing_ok`` is set.
    """

    name = "DropNamespace"
    action = "namespace.drop"

    namespace: Identifier
    cascade: bool = False
    missing_ok: bool = False

    def prepare(self) -> "DropNamespace":
        if not self.namespace:
            raise InvalidInput("The root namespace cannot be dropped")
        return self

    def subtrees(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> Namespace | None:
        row = batch.find_namespace(self.namespace)
        if row is None:
            access.require(batch.actor, Action.WRITE)
            if self.missing_ok:
                return None
            raise NamespaceNotFound(self.namespace)
        access.require(batch.actor, Action.WRITE, row)
        if not self.cascade:
            batch.flush()
            tables = Table.objects.present().filter(namespace=row).count()
            children = Namespace.objects.live().filter(parent=row).count()
            functions = Function.objects.filter(namespace=row).count()
            if tables or children or functions:
                raise NamespaceNotEmpty(
                    row.path, tables=tables, namespaces=children, functions=functions
                )
        drop_subtree(batch, row)
        return row


@dataclass(frozen=True)
class PropertyChanges:
    """What became of the properties that an update named, in its order."""

    updated: list[str]
    removed: list[str]
    missing: list[str]
    """What was to be removed and was not there."""


@dataclass(frozen=True, kw_only=True)
class UpdateNamespaceProperties(Operation):
    """Set and remove properties of a namespace; the others stay. The result is PropertyChanges."""

    name = "UpdateNamespaceProperties"
    action = "namespace.update"

    namespace: Identifier
    removals: Sequence[str] = ()
    updates: Mapping[str, str] = field(default_factory=dict)

    def prepare(self) -> "UpdateNamespaceProperties":
        named = Counter([*self.removals, *self.updates])
        twice = [key for key, times in named.items() if times > 1]
        if twice:
            raise ContradictoryInput(f"Properties are named more than once: {', '.join(twice)}")
        return self

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def apply(self, batch: Batch) -> PropertyChanges:
        row = batch.namespace(self.namespace)
        access.require(batch.actor, Action.WRITE, row)
        before = row.properties
        removed = [key for key in self.removals if key in before]
        after = {k: v for k, v in before.items() if k not in set(removed)} | dict(self.updates)
        if after != before:
            batch.flush()
            row.properties = after
            row.save(update_fields=["properties", "updated_at"])
            batch.record(str(row), before={"properties": before}, after={"properties": after})
        missing = [key for key in self.removals if key not in before]
        return PropertyChanges(list(self.updates), removed, missing)


def drop_subtree(batch: Batch, root: Namespace) -> None:
    """Drop a namespace, all below it and all their tables. The subtree must be locked."""
    batch.flush()
    namespaces = locks.lock_subtrees([root.identifier])
    drop_tables(batch, locks.lock_tables_in(namespaces), {row.pk: row for row in namespaces})
    drop_functions(batch, namespaces)
    Namespace.objects.filter(pk__in=[row.pk for row in namespaces]).update(dropped_at=Now())
    for row in namespaces:
        batch.forget_namespace(row)
        batch.record(str(row), before={"properties": row.properties})


def drop_functions(batch: Batch, namespaces: Sequence[Namespace]) -> None:
    """Drop the functions of namespaces that are locked: functions change under that lock alone."""
    for function in Function.objects.filter(namespace__in=namespaces).select_related("namespace"):
        target = label((*function.namespace.identifier, function.name))
        batch.record(target, before={"metadata": function.metadata})
        function.delete()
