import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db.models.functions import Now

from catalog import access
from catalog.access import On
from catalog.errors import (
    ContradictoryInput,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
)
from catalog.identifiers import Identifier, check, digest, label
from catalog.limits import check_map
from catalog.models import Function, GuardedAction, Namespace, Table
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.storage import namespace_claims
from catalog.services.storage.namespace_locations import PROPERTY as _LOCATION
from catalog.services.tables import trash
from catalog.services.tables.approval_gate import Guarded
from catalog.services.tables.table_operations import drop_tables


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
        access.require(batch.actor, Privilege.CREATE, parent)
        existing = batch.find_namespace(self.namespace)
        if existing is not None:
            if self.mode is CreateMode.EXIST_OK:
                return existing
            if self.mode is CreateMode.CREATE:
                raise NamespaceAlreadyExists(self.namespace)
            access.require(batch.actor, Privilege.MANAGE, existing)
            drop_subtree(batch, existing)
        row = Namespace(
            location=_claim(batch, self.properties),
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
        access.require(batch.actor, Privilege.CREATE, On.namespace(()))
        if self.mode is CreateMode.OVERWRITE:
            raise InvalidInput("The root namespace cannot be overwritten")
        if self.mode is CreateMode.CREATE:
            raise NamespaceAlreadyExists(())
        return batch.namespace(())


@dataclass(frozen=True, kw_only=True)
class DropNamespace(Guarded):
    """Drop a namespace; with ``cascade`` everything in it too, else it must be empty.

    The result is the dropped row, or None when there was none and ``missing_ok`` is set. A protected
    one is dropped only where a rule lets a second person approve it, and nothing in it is protected.
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
        if row is None or (self.missing_ok and not access.is_visible(batch.actor, row)):
            if self.missing_ok:
                return None
            raise NamespaceNotFound(self.namespace)
        access.require(batch.actor, Privilege.MANAGE, row)
        if not self.cascade:
            batch.flush()
            tables = Table.objects.present().filter(namespace=row).count()
            children = Namespace.objects.live().filter(parent=row).count()
            functions = Function.objects.filter(namespace=row).count()
            if tables or children or functions:
                raise NamespaceNotEmpty(
                    row.path, tables=tables, namespaces=children, functions=functions
                )
        drop_subtree(batch, row, despite_protection=self._is_approved(batch, row))
        return row

    def _is_approved(self, batch: Batch, row: Namespace) -> bool:
        """Whether a second person approved that a protected namespace goes. Raises ApprovalRequired."""
        if not row.is_protected and self.approved_for is None:
            return False
        batch.flush()
        namespaces = locks.lock_subtrees([row.identifier])
        tables = list(
            Table.objects.present().filter(namespace__in=namespaces).select_related("namespace")
        )
        if GuardedAction.DROP_PROTECTED in trash.rules([row.pk])[row.pk].guarded:
            # Of what cannot be done anyway nobody is asked.
            trash.require_unprotected([*(one for one in namespaces if one.pk != row.pk), *tables])
        content = [sorted(one.pk for one in namespaces), sorted(one.pk for one in tables)]
        return self.require_second(
            batch,
            action=GuardedAction.DROP_PROTECTED,
            what="dropping protected namespace",
            target=row.identifier,
            namespace=row,
            state={
                "namespace": row.pk,
                "is_protected": row.is_protected,
                "namespaces": len(namespaces),
                "tables": len(tables),
                "content": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
            },
        )


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
        access.require(batch.actor, Privilege.MANAGE, row)
        before = row.properties
        removed = [key for key in self.removals if key in before]
        after = {k: v for k, v in before.items() if k not in set(removed)} | dict(self.updates)
        if after != before:
            check_map(f"The properties of namespace '{row}'", after)
            batch.flush()
            row.properties = after
            if after.get(_LOCATION) != before.get(_LOCATION):
                row.location = _claim(batch, after, namespace=row.pk)
            row.save(update_fields=["properties", "location", "updated_at"])
            batch.record(str(row), before={"properties": before}, after={"properties": after})
        missing = [key for key in self.removals if key not in before]
        return PropertyChanges(list(self.updates), removed, missing)


def _claim(
    batch: Batch, properties: Mapping[str, str], *, namespace: int | None = None
) -> str | None:
    """The canonical path of the location that properties name. Raises InvalidLocation, LocationTaken."""
    location = properties.get(_LOCATION)
    if not location:
        return None
    batch.flush()
    return namespace_claims.claim(batch.actor, location, namespace=namespace)


def drop_subtree(batch: Batch, root: Namespace, *, despite_protection: bool = False) -> None:
    """Drop a namespace, all below it and all their tables. The subtree must be locked.

    Raises Protected when anything of it is, but the root alone where a second person approved it.
    """
    batch.flush()
    namespaces = locks.lock_subtrees([root.identifier])
    by_pk = {row.pk: row for row in namespaces}
    tables = locks.lock_tables_in(namespaces)
    for table in tables:
        table.namespace = by_pk[table.namespace_id]
    spared = {root.pk} if despite_protection else set()
    trash.require_unprotected([*(row for row in namespaces if row.pk not in spared), *tables])
    rules = trash.rules(list(by_pk))
    times = [rules[pk].purge_at(batch.now) for pk in by_pk]
    drop_tables(batch, tables, by_pk, action=DropNamespace.action)
    functions = drop_functions(batch, namespaces)
    # As long as anything of it can come back.
    purge_at = max((moment for moment in times if moment is not None), default=None)
    thrown = trash.throw_namespaces(namespaces, batch.transaction, batch.now, purge_at, functions)
    for item in thrown:
        batch.add(item)
    Namespace.objects.filter(pk__in=list(by_pk)).update(dropped_at=Now())
    for row in namespaces:
        batch.forget_namespace(row)
        batch.record(str(row), before={"properties": row.properties}, action=DropNamespace.action)


def drop_functions(
    batch: Batch, namespaces: Sequence[Namespace]
) -> Mapping[int, Sequence[Mapping[str, Any]]]:
    """Drop the functions of namespaces that are locked: functions change under that lock alone.

    Returns what the trash keeps of them, by their namespace's primary key.
    """
    kept = defaultdict(list)
    for function in Function.objects.filter(namespace__in=namespaces).select_related("namespace"):
        target = label((*function.namespace.identifier, function.name))
        batch.record(target, before={"metadata": function.metadata}, action=DropNamespace.action)
        kept[function.namespace_id].append(trash.function_content(function))
        function.delete()
    return kept
