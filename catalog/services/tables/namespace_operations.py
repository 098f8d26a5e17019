"""Operations that create, change and drop namespaces."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from catalog import access
from catalog.access import On, Principal
from catalog.errors import (
    ContradictoryInput,
    InvalidInput,
    NamespaceAlreadyExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    PermissionDenied,
)
from catalog.identifiers import Identifier, check, digest, label
from catalog.limits import check_map
from catalog.models import Function, GuardedAction, Namespace, Table
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import Privilege
from catalog.services.engine import locks
from catalog.services.engine.batch import Batch
from catalog.services.engine.operation import Operation
from catalog.services.engine.prepared.new_rows import new_row
from catalog.services.storage import namespace_claims
from catalog.services.storage.namespace_locations import PROPERTY as _LOCATION
from catalog.services.tables import trash
from catalog.services.tables.approval_gate import GatedOperation
from catalog.services.tables.table_operations import drop_tables


class CreateMode(StrEnum):
    """Behavior when the namespace exists (spec: CreateNamespaceRequest.mode)."""

    CREATE = "create"
    EXIST_OK = "exist_ok"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, kw_only=True)
class CreateNamespace(Operation):
    """Create a namespace in an existing one. The result is its row.

    Overwrite drops the existing namespace with everything in it, and creates an empty one with the
    same storage profile. If it is bound to one, that requires MANAGE without an end: the actor owns the new one.
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

    def creates_in(self) -> Identifier | None:
        # An existing namespace is the usual case of EXIST_OK.
        is_new = self.mode is CreateMode.CREATE and self.namespace
        return self.namespace[:-1] if is_new else None

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
            _require_lasting_if_bound(batch.actor, existing)
            drop_subtree(batch, existing)
        if parent._state.adding:  # created by this batch, which inserts all namespaces together
            batch.flush()
        row = new_row(
            Namespace,
            {"parent": parent},
            location=_claim(batch, self.properties, within=parent.identifier),
            path=list(self.namespace),
            digest=digest(self.namespace),
            name=self.namespace[-1],
            properties=dict(self.properties),
            owner=batch.actor.name,
            storage_profile_id=None if existing is None else existing.storage_profile_id,
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


def _require_lasting_if_bound(actor: Principal, row: Namespace) -> None:
    """Raise PermissionDenied if a temporary manager would own a namespace that is bound to a storage profile."""
    if row.storage_profile_id is None or access.holds_lasting(actor, Privilege.MANAGE, row):
        return
    raise PermissionDenied(
        "'{actor}' manages '{row}' for a limited time, so they may not overwrite it: it is bound to a storage profile",
        actor=actor.name,
        row=row.identifier,
    )


@dataclass(frozen=True, kw_only=True)
class DropNamespace(GatedOperation):
    """Drop a namespace, which must be empty without ``cascade``.

    The result is the dropped row, or None if the namespace does not exist and ``missing_ok`` is
    set. A protected namespace is dropped only if a rule lets a second person approve it and nothing
    in it is protected.
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

    def namespaces(self) -> Iterable[Identifier]:
        return (self.namespace,)

    def subtrees(self) -> Iterable[Identifier]:
        return (self.namespace,) if self.cascade else ()

    def apply(self, batch: Batch) -> Namespace | None:
        row = batch.find_namespace(self.namespace)
        if row is None or (self.missing_ok and not access.is_visible(batch.actor, row)):
            if self.missing_ok:
                return None
            raise NamespaceNotFound(self.namespace)
        access.require(batch.actor, Privilege.MANAGE, row)
        if not self.cascade:
            batch.flush()
            tables, children, functions = _count_contents(row)
            if tables or children or functions:
                raise NamespaceNotEmpty(
                    row.path, tables=tables, namespaces=children, functions=functions
                )
        is_approved = self._is_approved(batch, row)
        if self.cascade:
            drop_subtree(batch, row, despite_protection=is_approved)
        else:
            _drop_empty(batch, row, despite_protection=is_approved)
        return row

    def _is_approved(self, batch: Batch, row: Namespace) -> bool:
        """True if a second person approved the drop of a protected namespace.

        Raises ApprovalRequired.
        """
        if not row.is_protected and self.approved_for is None:
            return False
        batch.flush()
        namespaces = locks.lock_subtrees([row.identifier])
        tables = list(
            Table.objects.present().filter(namespace__in=namespaces).select_related("namespace")
        )
        if GuardedAction.DROP_PROTECTED in trash.rules([row.pk])[row.pk].guarded:
            # Do not request an approval for a drop that protected contents prevent anyway.
            trash.require_unprotected(
                [*(below for below in namespaces if below.pk != row.pk), *tables]
            )
        content = [
            sorted(namespace.pk for namespace in namespaces),
            sorted(table.pk for table in tables),
        ]
        return self.require_approval(
            batch,
            action=GuardedAction.DROP_PROTECTED,
            description="dropping protected namespace",
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
    """Result of an update of properties, in the order of the request."""

    updated: list[str]
    removed: list[str]
    missing: list[str]
    """Properties to remove that did not exist."""


@dataclass(frozen=True, kw_only=True)
class UpdateNamespaceProperties(Operation):
    """Set and remove properties of a namespace; other properties stay.

    The result is PropertyChanges.
    """

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
                row.location = _claim(batch, after, within=row.identifier, namespace=row.pk)
            row.save(update_fields=["properties", "location", "updated_at"])
            batch.record(str(row), before={"properties": before}, after={"properties": after})
        missing = [key for key in self.removals if key not in before]
        return PropertyChanges(list(self.updates), removed, missing)


_CONTENTS = """
    SELECT
        (SELECT count(*) FROM catalog_table WHERE namespace_id = %s::bigint AND state <> 'dropped'),
        (SELECT count(*) FROM catalog_namespace WHERE parent_id = %s::bigint AND dropped_at IS NULL),
        (SELECT count(*) FROM catalog_function WHERE namespace_id = %s::bigint)
"""


def _count_contents(row: Namespace) -> tuple[int, int, int]:
    """The numbers of tables, of child namespaces and of functions in a namespace."""
    cursor = hot_cursor()
    cursor.execute(_CONTENTS, [row.pk] * 3)
    tables, children, functions = cursor.fetchone()
    return tables, children, functions


def _claim(
    batch: Batch,
    properties: Mapping[str, str],
    *,
    within: Identifier,
    namespace: int | None = None,
) -> str | None:
    """Claim the location that the properties name and return its canonical path.

    Raises InvalidLocation, LocationTaken.
    """
    location = properties.get(_LOCATION)
    if not location:
        return None
    batch.flush()
    return namespace_claims.claim(batch.actor, location, within=within, namespace=namespace)


_MARK_DROPPED = """
    UPDATE catalog_namespace SET dropped_at = statement_timestamp()
    WHERE id = ANY(string_to_array(%s, ',')::bigint[])
"""


def drop_subtree(batch: Batch, root: Namespace, *, despite_protection: bool = False) -> None:
    """Drop a namespace, all namespaces below it and their tables. The subtree must be locked.

    Raises Protected if anything in it is protected. With ``despite_protection``, which a second
    person approved, the root itself may be protected.
    """
    batch.flush()
    namespaces = locks.lock_subtrees([root.identifier])
    by_pk = {row.pk: row for row in namespaces}
    tables = locks.lock_tables_in(namespaces)
    for table in tables:
        table.namespace = by_pk[table.namespace_id]
    exempt = {root.pk} if despite_protection else set()
    trash.require_unprotected([*(row for row in namespaces if row.pk not in exempt), *tables])
    drop_tables(batch, tables, by_pk, action=DropNamespace.action)
    functions = drop_functions(batch, namespaces)
    _drop_namespaces(batch, namespaces, functions)


def _drop_empty(batch: Batch, row: Namespace, *, despite_protection: bool) -> None:
    """Drop a locked namespace that contains nothing. Raises Protected as ``drop_subtree`` does."""
    if not despite_protection:
        trash.require_unprotected([row])
    _drop_namespaces(batch, [row], {})


def _drop_namespaces(
    batch: Batch,
    namespaces: Sequence[Namespace],
    functions: Mapping[int, Sequence[Mapping[str, Any]]],
) -> None:
    """Mark namespaces as dropped and put them into the trash, with their functions."""
    rules = trash.rules([row.pk for row in namespaces])
    times = [rules[row.pk].purge_at(batch.now) for row in namespaces]
    # The namespaces stay as long as any table in them can be restored.
    purge_at = max((moment for moment in times if moment is not None), default=None)
    items = trash.build_namespace_items(
        namespaces, batch.transaction, batch.now, purge_at, functions
    )
    for item in items:
        batch.add(item)
    hot_cursor().execute(_MARK_DROPPED, [",".join(str(row.pk) for row in namespaces)])
    for row in namespaces:
        batch.forget_namespace(row)
        batch.record(str(row), before={"properties": row.properties}, action=DropNamespace.action)


_HAS_FUNCTIONS = """
    SELECT 1 FROM catalog_function WHERE namespace_id = ANY(string_to_array(%s, ',')::bigint[])
    LIMIT 1
"""


def drop_functions(
    batch: Batch, namespaces: Sequence[Namespace]
) -> Mapping[int, Sequence[Mapping[str, Any]]]:
    """Drop the functions of locked namespaces; functions change only under that lock.

    Returns the contents that the trash keeps of them, by their namespace's primary key.
    """
    contents: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    cursor = hot_cursor()
    cursor.execute(_HAS_FUNCTIONS, [",".join(str(row.pk) for row in namespaces)])
    if cursor.fetchone() is None:
        return contents
    for function in Function.objects.filter(namespace__in=namespaces).select_related("namespace"):
        target = label((*function.namespace.identifier, function.name))
        batch.record(target, before={"metadata": function.metadata}, action=DropNamespace.action)
        contents[function.namespace_id].append(trash.function_content(function))
        function.delete()
    return contents
