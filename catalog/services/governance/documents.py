"""Governance documents: compare a document with the catalog, and apply it.

    version: 1
    principals:
    - {name: etl, kind: service, level: granted, description: loads, is_active: true, groups: [group:jobs]}
    labels:
    - {key: pii, description: "", colour: red, values: ["yes", "no"], is_multiple: false, applies_to: [table, column]}
    storage_profiles:
    - {name: lake, kind: s3, roots: ["s3://lake/tables"], region: eu-central-1}
    namespaces:
    - name: [prod]
      owner: user:ada
      storage_profile: lake
      grants: {group:analysts: [read]}
    tables:
    - name: [prod, users]
      labels: {pii: ["yes"]}
      columns: {email: {sensitivity: restricted}}

Applying a document sets the values that it names and leaves everything else unchanged: principals and
namespaces that it does not name, and attributes that an entry leaves out. A mapping is complete:
``grants`` are all direct grants on the object, ``labels`` all its labels, ``columns`` all annotations
of its columns. So applying a document twice changes nothing the second time.

Documents never contain keys, passwords or secrets. They do not create users, who are created when
they sign in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.db import transaction

from catalog import access
from catalog.access import On
from catalog.errors import InvalidInput, NamespaceNotFound, PrincipalNotFound, TableNotFound
from catalog.identifiers import Identifier, check, check_table, label
from catalog.models import (
    LabelDefinition,
    Namespace,
    Principal,
    PrincipalKind,
    PrincipalLevel,
    Sensitivity,
    Table,
    TableFormat,
)
from catalog.privileges import Privilege, closure, essence, parse
from catalog.services.access import grant_operations, known_keys, principals
from catalog.services.engine import locks
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.governance import (
    annotation_operations,
    annotations,
    document_storage,
    label_operations,
)
from catalog.services.governance.document_export import (
    GovernanceState,
    label_entry,
    principal_entry,
)
from catalog.services.governance.document_format import (
    ColumnPart,
    Document,
    LabelPart,
    NamespacePart,
    PrincipalPart,
    TablePart,
    TargetPart,
)
from catalog.services.maintenance import policy_operations
from catalog.services.recovery import rule_operations
from catalog.services.storage.profile_bindings import BindStorageProfile


@dataclass(frozen=True)
class Change:
    """One difference between a document and the catalog."""

    target: str
    aspect: str
    before: Any
    after: Any
    operations: Sequence[Operation] = ()
    call: Callable[[access.Principal], object] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.target}: {self.aspect}: {_shown(self.before)} → {_shown(self.after)}"


def plan(*, actor: access.Principal, document: Document) -> list[Change]:
    """Differences between the document and the catalog, in the order in which they are applied.

    Requires ALL on everything. Raises NamespaceNotFound and TableNotFound for names that do not
    exist, PrincipalNotFound for users that do not exist, and InvalidInput for duplicate entries.
    """
    access.require(actor, Privilege.ALL)
    _refuse_twice(document)
    return [
        *_plan_principals(document.principals),
        *_plan_labels(document.labels),
        *_plan_storage(document),
        *(change for entry in document.namespaces for change in _plan_namespace(entry)),
        *(change for entry in document.tables for change in _plan_table(entry)),
    ]


def apply(*, actor: access.Principal, document: Document) -> list[Change]:
    """Apply a document, all of it or nothing; returns the changes.

    Raises as ``plan``, and the errors of the changes; after an error nothing is changed.
    """
    with transaction.atomic():
        changes = plan(actor=actor, document=document)
        operations = [operation for change in changes for operation in change.operations]
        if document.storage_profiles:
            # Changes of profiles lock the locations, which come after namespaces and tables.
            locks.lock_namespaces(
                [name for operation in operations for name in operation.namespaces()]
            )
            locks.lock_tables([name for operation in operations for name in operation.tables()])
        for change in changes:
            if change.call is not None:
                change.call(actor)
        if operations:
            commit(operations, actor=actor)
    known_keys.forget_keys()
    return changes


def _refuse_twice(document: Document) -> None:
    names = [
        *(f"principal '{entry.name}'" for entry in document.principals),
        *(f"label '{entry.key}'" for entry in document.labels),
        *(f"storage profile '{entry.name}'" for entry in document.storage_profiles),
        *(f"namespace '{label(check(entry.name))}'" for entry in document.namespaces),
        *(f"table '{label(check_table(tuple(entry.name)))}'" for entry in document.tables),
    ]
    names_so_far: set[str] = set()
    for name in names:
        if name in names_so_far:
            raise InvalidInput(f"The document contains {name} twice")
        names_so_far.add(name)


def _plan_principals(entries: Iterable[PrincipalPart]) -> Iterator[Change]:
    # Groups first: other principals may become members of them.
    entries = sorted(entries, key=lambda entry: (entry.kind != PrincipalKind.GROUP, entry.name))
    for entry in entries:
        row = Principal.objects.filter(name=entry.name).first()
        before = {} if row is None else principal_entry(row)
        if row is None and entry.kind == PrincipalKind.USER:
            raise PrincipalNotFound(entry.name)
        if row is not None and row.kind != entry.kind:
            raise InvalidInput(f"Principal '{entry.name}' is a {row.kind}, not a {entry.kind}")
        values = entry.model_dump(exclude={"name", "kind", "groups"}, exclude_none=True)
        changed = {name: value for name, value in values.items() if before.get(name) != value}
        if row is None:
            yield Change(entry.name, "principal", None, values, call=_creating(entry))
        elif changed:
            replaced = {name: before[name] for name in changed}
            yield Change(
                entry.name, "principal", replaced, changed, call=_updating(entry.name, changed)
            )
        if entry.groups is not None and sorted(entry.groups) != (before.get("groups") or []):
            old = before.get("groups") or []
            call = _joining(entry.name, set(old), set(entry.groups))
            yield Change(entry.name, "groups", old, sorted(entry.groups), call=call)


def _creating(entry: PrincipalPart) -> Callable[[access.Principal], object]:
    def call(actor: access.Principal) -> None:
        principals.create_principal(
            actor=actor,
            name=entry.name,
            kind=entry.kind,
            level=entry.level or PrincipalLevel.GRANTED,
            description=entry.description or "",
        )
        if entry.is_active is False:
            principals.update_principal(actor=actor, name=entry.name, is_active=False)

    return call


def _updating(name: str, changed: Mapping[str, Any]) -> Callable[[access.Principal], object]:
    return lambda actor: principals.update_principal(actor=actor, name=name, **changed)


def _joining(name: str, before: set[str], after: set[str]) -> Callable[[access.Principal], object]:
    def call(actor: access.Principal) -> None:
        for group in sorted(after - before):
            principals.add_member(actor=actor, group=group, member=name)
        for group in sorted(before - after):
            principals.remove_member(actor=actor, group=group, member=name)

    return call


def _plan_labels(entries: Iterable[LabelPart]) -> Iterator[Change]:
    for entry in entries:
        row = LabelDefinition.objects.filter(key=entry.key).first()
        values = entry.model_dump(exclude={"key"}, exclude_none=True)
        if row is None:
            yield Change(
                entry.key,
                "label",
                None,
                values,
                call=lambda actor, entry=entry, values=values: annotations.create_label(  # type: ignore[misc]
                    actor=actor, key=entry.key, **values
                ),
            )
            continue
        before = label_entry(row)
        changed = {name: value for name, value in values.items() if before[name] != value}
        if changed:
            replaced = {name: before[name] for name in changed}
            yield Change(
                entry.key,
                "label",
                replaced,
                changed,
                call=lambda actor, entry=entry, changed=changed: annotations.update_label(  # type: ignore[misc]
                    actor=actor, key=entry.key, **changed
                ),
            )


def _plan_storage(document: Document) -> Iterator[Change]:
    document_storage.require_profiles(document.namespaces, document.storage_profiles)
    for change in document_storage.plan_profiles(document.storage_profiles):
        yield Change(change.target, change.aspect, change.before, change.after, call=change.call)


def _plan_namespace(entry: NamespacePart) -> Iterator[Change]:
    name = check(entry.name)
    row = Namespace.objects.named(name).select_related("storage_profile").first()
    if row is None:
        raise NamespaceNotFound(name)
    before = GovernanceState(namespaces=[row]).namespace(row)
    # The name as stored in the catalog.
    target = _TargetPlan(row.identifier, entry, before, is_table=False)
    yield from target.changes()
    retention = entry.retention_seconds
    if retention is not None:
        seconds = None if retention == "inherited" else retention
        if seconds != row.retention_seconds:
            yield target.change(
                "retention_seconds",
                row.retention_seconds,
                seconds,
                rule_operations.SetRetention(namespace=target.name, seconds=seconds),
            )
    if entry.approvals is not None and sorted(entry.approvals) != before["approvals"]:
        yield target.change(
            "approvals",
            before["approvals"],
            sorted(entry.approvals),
            rule_operations.SetApprovalRule(namespace=target.name, actions=entry.approvals),
        )
    profile = entry.storage_profile
    if profile is not None and profile != before["storage_profile"]:
        bind = BindStorageProfile(namespace=target.name, profile=profile or None)
        yield target.change("storage_profile", before["storage_profile"], profile, bind)


def _plan_table(entry: TablePart) -> Iterator[Change]:
    name = check_table(tuple(entry.name))
    row = Table.objects.named(name).select_related("namespace").first()
    if row is None:
        raise TableNotFound(name)
    before = GovernanceState(tables=[row]).table(row)
    target = _TargetPlan(
        row.identifier, entry, before, is_table=True, format=TableFormat(row.format)
    )
    yield from target.changes()
    if entry.columns is None:
        return
    for column in sorted({*entry.columns, *before["columns"]}):
        requested = entry.columns.get(column, ColumnPart())
        current = ColumnPart.model_validate(before["columns"].get(column, {}))
        yield from target.annotation_changes(
            requested, current.model_dump(mode="json"), column=column
        )


@dataclass(frozen=True)
class _TargetPlan:
    """Requested and current state of a namespace or a table."""

    name: Identifier
    entry: TargetPart
    before: Mapping[str, Any]
    is_table: bool
    format: TableFormat = TableFormat.LANCE

    @cached_property
    def _target(self) -> dict[str, Any]:
        source = annotation_operations.TableColumns(self.name)
        return {"target": self.name, "is_table": self.is_table, "source": source}

    def change(self, aspect: str, before: Any, after: Any, *operations: Operation) -> Change:
        return Change(label(self.name), aspect, before, after, operations)

    def changes(self) -> Iterator[Change]:
        entry, before = self.entry, self.before
        if entry.owner is not None and entry.owner != before["owner"]:
            operation: Operation = annotation_operations.SetOwner(**self._target, owner=entry.owner)
            yield self.change("owner", before["owner"], entry.owner, operation)
        yield from self.annotation_changes(entry, before)
        if entry.links is not None:
            links = [link.model_dump() for link in entry.links]
            if links != before["links"]:
                new = [annotation_operations.Link(**link) for link in links]
                operation = annotation_operations.SetLinks(**self._target, links=new)
                yield self.change("links", before["links"], links, operation)
        if entry.protected is not None and entry.protected != before["protected"]:
            operation = rule_operations.SetProtection(
                identifier=self.name,
                is_namespace=not self.is_table,
                is_protected=entry.protected,
            )
            yield self.change("protected", before["protected"], entry.protected, operation)
        if entry.grants is not None:
            yield from self._grants(entry.grants)
        if entry.maintenance is not None and entry.maintenance != before["maintenance"]:
            policy: Operation = (
                policy_operations.SetTablePolicy(
                    table=self.name, format=self.format, values=entry.maintenance
                )
                if self.is_table
                else policy_operations.SetNamespacePolicy(
                    namespace=self.name, values=entry.maintenance
                )
            )
            yield self.change("maintenance", before["maintenance"], entry.maintenance, policy)

    def annotation_changes(
        self, entry: TargetPart | ColumnPart, before: Mapping[str, Any], column: str = ""
    ) -> Iterator[Change]:
        """Changes of description, sensitivity and labels, which columns have as well."""
        named = {**self._target, "column": column}
        of = f"column {column}, " if column else ""
        if entry.description is not None and entry.description != before["description"]:
            operation: Operation = annotation_operations.SetDescription(
                **named, description=entry.description
            )
            yield self.change(
                f"{of}description", before["description"], entry.description, operation
            )
        requested = entry.sensitivity if not column else entry.sensitivity or ""
        if requested is not None and requested != (before["sensitivity"] or ""):
            sensitivity = Sensitivity(requested) if requested else None
            operation = annotation_operations.SetClassification(**named, sensitivity=sensitivity)
            yield self.change(f"{of}sensitivity", before["sensitivity"], str(requested), operation)
        if entry.labels is None:
            return
        for key in sorted({*entry.labels, *before["labels"]}):
            values, old = entry.labels.get(key, []), before["labels"].get(key, [])
            if sorted(values) == sorted(old):
                continue
            operation = (
                label_operations.AssignLabel(**named, key=key, values=values)
                if values
                else label_operations.RemoveLabel(**named, key=key)
            )
            yield self.change(f"{of}label {key}", old, values, operation)

    def _grants(self, requested: Mapping[str, Sequence[str]]) -> Iterator[Change]:
        on = On.table(self.name) if self.is_table else On.namespace(self.name)
        for principal in sorted({*requested, *self.before["grants"]}):
            privileges = parse(requested.get(principal, []))
            old = parse(self.before["grants"].get(principal, []))
            if closure(privileges) != closure(old):
                operation = grant_operations.SetGrant(
                    on=on, principal=principal, privileges=privileges
                )
                yield self.change(
                    f"grant to {principal}",
                    essence(closure(old)),
                    essence(closure(privileges)),
                    operation,
                )


def _shown(value: Any) -> str:
    if value in (None, "", [], {}):
        return "nothing"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."
