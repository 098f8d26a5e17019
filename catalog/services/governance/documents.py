"""The state of governance as a document, to be reviewed in git and applied.

    version: 1
    principals:
    - {name: etl, kind: service, level: granted, description: loads, is_active: true, groups: [group:jobs]}
    labels:
    - {key: pii, description: "", colour: red, values: ["yes", "no"], is_multiple: false, places: [table, column]}
    namespaces:
    - name: [prod]
      owner: user:ada
      grants: {group:analysts: [read]}
    tables:
    - name: [prod, users]
      labels: {pii: ["yes"]}
      columns: {email: {sensitivity: restricted}}

What a document names is made to be what it says; what it leaves out stays as it is: a principal that
is not in it, a namespace, or, of one that is, its description. But a mapping is whole: ``grants`` are
all grants on that thing, ``labels`` all its labels, ``columns`` all that is said of its columns. So
applying a document twice changes nothing the second time.

Keys, passwords and secrets are in no document; neither are users, who are made where they sign on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from django.db import transaction
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from catalog import access
from catalog.access import On
from catalog.errors import InvalidInput, NamespaceNotFound, PrincipalNotFound, TableNotFound
from catalog.identifiers import Identifier, check, check_table, label
from catalog.models import (
    Facts,
    Grant,
    LabelAssignment,
    LabelColour,
    LabelDefinition,
    LabelPlace,
    MaintenancePolicy,
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
from catalog.services.engine.commit import Operation, commit
from catalog.services.governance import annotation_operations, annotations
from catalog.services.maintenance import policy_operations
from catalog.services.recovery import recovery_operations

VERSION = 1
_AT_ONCE = 500


class _Part(BaseModel):
    # What is misspelled must not be taken for what is left out.
    model_config = ConfigDict(extra="forbid")


class PrincipalPart(_Part):
    name: str
    kind: PrincipalKind
    level: PrincipalLevel | None = None
    description: str | None = None
    is_active: bool | None = None
    groups: list[str] | None = Field(default=None, description="All groups that it is in.")


class LabelPart(_Part):
    key: str
    description: str | None = None
    colour: LabelColour | None = None
    values: list[str] | None = None
    is_multiple: bool | None = None
    places: list[LabelPlace] | None = None


class LinkPart(_Part):
    title: str
    url: str


class ColumnPart(_Part):
    description: str = ""
    sensitivity: Sensitivity | None = None
    labels: dict[str, list[str]] = {}


class _TargetPart(_Part):
    name: list[str]
    owner: str | None = None
    description: str | None = None
    sensitivity: Sensitivity | Literal[""] | None = Field(
        default=None, description="An empty one is inherited."
    )
    links: list[LinkPart] | None = None
    labels: dict[str, list[str]] | None = None
    protected: bool | None = None
    grants: dict[str, list[str]] | None = Field(
        default=None, description="By principal; all that is granted on this very thing."
    )
    maintenance: dict[str, Any] | None = Field(
        default=None, description="What the maintenance policy says here."
    )


class NamespacePart(_TargetPart):
    retention_seconds: int | Literal["inherited"] | None = None
    approvals: list[str] | None = Field(
        default=None, description="What needs a second person, here and below."
    )


class TablePart(_TargetPart):
    columns: dict[str, ColumnPart] | None = None


class Document(_Part):
    version: Literal[1]
    principals: list[PrincipalPart] = []
    labels: list[LabelPart] = []
    namespaces: list[NamespacePart] = []
    tables: list[TablePart] = []


@dataclass(frozen=True)
class Change:
    """One thing that a document wants otherwise than it is."""

    target: str
    what: str
    before: Any
    after: Any
    operations: Sequence[Operation] = ()
    call: Callable[[access.Principal], object] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.target}: {self.what}: {_shown(self.before)} → {_shown(self.after)}"


# --- taking it along -----------------------------------------------------------------------------


def export(*, actor: access.Principal, namespace: Identifier = ()) -> dict[str, Any]:
    """The document of everything, or of a namespace and all below it, as plain values.

    Of namespaces and tables only what is said: those of which nothing is said are left out.
    Administrators only. Raises NamespaceNotFound.
    """
    access.require(actor, Privilege.ALL)
    inside = _inside(namespace)
    document: dict[str, Any] = {"version": VERSION}
    if not namespace:
        document["principals"] = [
            _without_none(_principal(row)) for row in Principal.objects.order_by("name")
        ]
        document["labels"] = [_label(row) for row in LabelDefinition.objects.order_by("key")]
    document["namespaces"] = list(_namespaces(inside))
    document["tables"] = list(_tables(inside))
    return document


def _inside(namespace: Identifier) -> int | None:
    if not namespace:
        return None
    row = Namespace.objects.named(namespace).first()
    if row is None:
        raise NamespaceNotFound(namespace)
    return row.pk


def _namespaces(inside: int | None) -> Iterator[dict[str, Any]]:
    rows = Namespace.objects.live().order_by("pk")
    if inside is not None:
        rows = rows.filter(ancestors__contains=[inside])
    for batch in _batches(rows):
        state = _Told(namespaces=batch)
        for row in batch:
            yield from _if_anything({"name": list(row.path), **_without_none(state.namespace(row))})


def _tables(inside: int | None) -> Iterator[dict[str, Any]]:
    rows = Table.objects.present().select_related("namespace").order_by("pk")
    if inside is not None:
        rows = rows.filter(namespace__ancestors__contains=[inside])
    for batch in _batches(rows):
        state = _Told(tables=batch)
        for row in batch:
            yield from _if_anything(
                {"name": list(row.identifier), **_without_none(state.table(row))}
            )


def _batches(rows: Any) -> Iterator[list[Any]]:
    last = 0
    while batch := list(rows.filter(pk__gt=last)[:_AT_ONCE]):
        yield batch
        last = batch[-1].pk


def _if_anything(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    values = {
        name: value for name, value in entry.items() if value not in ("", [], {}, None, False)
    }
    if len(values) > 1:
        yield values


def _without_none(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}


def _principal(row: Principal) -> dict[str, Any]:
    groups = row.groups.order_by("name").values_list("name", flat=True)
    return {
        "name": row.name,
        "kind": str(row.kind),
        "level": str(row.level),
        "description": row.description,
        "is_active": row.is_active,
        "groups": None if row.kind == PrincipalKind.GROUP else list(groups),
    }


def _label(row: LabelDefinition) -> dict[str, Any]:
    return {
        "key": row.key,
        "description": row.description,
        "colour": str(row.colour),
        "values": list(row.values),
        "is_multiple": row.is_multiple,
        "places": [str(target) for target in row.places],
    }


class _Told:
    """What is said of some namespaces and tables, in five statements."""

    def __init__(
        self, *, namespaces: Sequence[Namespace] = (), tables: Sequence[Table] = ()
    ) -> None:
        targets = {"namespace__in": namespaces} if namespaces else {"table__in": tables}
        self._facts: dict[tuple[str, int, str], Facts] = {}
        self._labels: dict[tuple[str, int, str], dict[str, list[str]]] = {}
        self._grants: dict[tuple[str, int], dict[str, list[str]]] = {}
        self._policies: dict[tuple[str, int], dict[str, Any]] = {}
        if not (namespaces or tables):
            return
        for annotation in Facts.objects.filter(**targets):
            self._facts[*_key(annotation), annotation.column] = annotation
        assignments = LabelAssignment.objects.filter(**targets).select_related("definition")
        for assignment in assignments.order_by("definition__key", "value"):
            of_column = self._labels.setdefault((*_key(assignment), assignment.column), {})
            of_column.setdefault(assignment.definition.key, []).append(assignment.value)
        for grant in Grant.objects.filter(**targets).select_related("principal"):
            words = essence(grant.privileges)
            self._grants.setdefault(_key(grant), {})[grant.principal.name] = words
        for policy in MaintenancePolicy.objects.filter(**targets):
            self._policies[_key(policy)] = dict(policy.values)

    def namespace(self, row: Namespace) -> dict[str, Any]:
        retention = row.retention_seconds
        return {
            **self._target("namespace", row),
            "retention_seconds": "inherited" if retention is None else retention,
            "approvals": sorted(row.guarded),
        } | ({} if retention is not None else {"retention_seconds": None})

    def table(self, row: Table) -> dict[str, Any]:
        return {**self._target("table", row), "columns": self.columns(row)}

    def columns(self, row: Table) -> dict[str, Any]:
        keys = sorted(
            {
                column
                for kind, pk, column in (*self._facts, *self._labels)
                if pk == row.pk and column
            }
        )
        columns: dict[str, Any] = {}
        for column in keys:
            annotation = self._facts.get(("table", row.pk, column))
            entry = {
                "description": annotation.description if annotation else "",
                "sensitivity": (annotation.sensitivity or None) if annotation else None,
                "labels": self._labels.get(("table", row.pk, column), {}),
            }
            columns[column] = {name: value for name, value in entry.items() if value}
        return columns

    def _target(self, kind: str, row: Namespace | Table) -> dict[str, Any]:
        annotation = self._facts.get((kind, row.pk, ""))
        return {
            "owner": row.owner,
            "description": annotation.description if annotation else "",
            "sensitivity": str(annotation.sensitivity) if annotation else "",
            "links": list(annotation.links) if annotation else [],
            "labels": self._labels.get((kind, row.pk, ""), {}),
            "protected": row.is_protected,
            "grants": dict(sorted(self._grants.get((kind, row.pk), {}).items())),
            "maintenance": self._policies.get((kind, row.pk), {}),
        }


def _key(row: Facts | LabelAssignment | Grant | MaintenancePolicy) -> tuple[str, int]:
    if row.namespace_id is not None:
        return "namespace", row.namespace_id
    return "table", row.table_id or 0


# --- bringing it back ----------------------------------------------------------------------------


def read(values: Any) -> Document:
    """A document of plain values. Raises InvalidInput that tells where it is wrong."""
    try:
        return Document.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InvalidInput(f"{where}: {first['msg']}" if where else first["msg"]) from None


def plan(*, actor: access.Principal, document: Document) -> list[Change]:
    """What is otherwise than the document says, in the order in which it would be changed.

    Administrators only. Raises NamespaceNotFound and TableNotFound for what it names and is not
    there, PrincipalNotFound for users, and InvalidInput for what comes twice.
    """
    access.require(actor, Privilege.ALL)
    _refuse_twice(document)
    return [
        *_plan_principals(document.principals),
        *_plan_labels(document.labels),
        *(change for entry in document.namespaces for change in _plan_namespace(entry)),
        *(change for entry in document.tables for change in _plan_table(entry)),
    ]


def apply(*, actor: access.Principal, document: Document) -> list[Change]:
    """Make everything as the document says, all or nothing; returns what was changed.

    Raises as ``plan`` does, and what the single changes raise: nothing is changed then.
    """
    with transaction.atomic():
        changes = plan(actor=actor, document=document)
        for change in changes:
            if change.call is not None:
                change.call(actor)
        operations = [operation for change in changes for operation in change.operations]
        if operations:
            commit(operations, actor=actor)
    known_keys.forget_keys()
    return changes


def _refuse_twice(document: Document) -> None:
    names = [
        *(f"principal '{entry.name}'" for entry in document.principals),
        *(f"label '{entry.key}'" for entry in document.labels),
        *(f"namespace '{label(check(entry.name))}'" for entry in document.namespaces),
        *(f"table '{label(check_table(tuple(entry.name)))}'" for entry in document.tables),
    ]
    names_so_far: set[str] = set()
    for name in names:
        if name in names_so_far:
            raise InvalidInput(f"The document has {name} twice")
        names_so_far.add(name)


def _plan_principals(entries: Iterable[PrincipalPart]) -> Iterator[Change]:
    # Those that are made come first: others may be members of them.
    entries = sorted(entries, key=lambda entry: (entry.kind != PrincipalKind.GROUP, entry.name))
    for entry in entries:
        row = Principal.objects.filter(name=entry.name).first()
        before = {} if row is None else _principal(row)
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
        before = _label(row)
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


def _plan_namespace(entry: NamespacePart) -> Iterator[Change]:
    name = check(entry.name)
    row = Namespace.objects.named(name).first()
    if row is None:
        raise NamespaceNotFound(name)
    before = _Told(namespaces=[row]).namespace(row)
    # Spelled as the catalog spells it.
    target = _Target(row.identifier, entry, before, is_table=False)
    yield from target.changes()
    retention = entry.retention_seconds
    if retention is not None:
        seconds = None if retention == "inherited" else retention
        if seconds != row.retention_seconds:
            yield target.change(
                "retention_seconds",
                row.retention_seconds,
                seconds,
                recovery_operations.SetRetention(namespace=target.name, seconds=seconds),
            )
    if entry.approvals is not None and sorted(entry.approvals) != before["approvals"]:
        yield target.change(
            "approvals",
            before["approvals"],
            sorted(entry.approvals),
            recovery_operations.SetApprovalRule(namespace=target.name, actions=entry.approvals),
        )


def _plan_table(entry: TablePart) -> Iterator[Change]:
    name = check_table(tuple(entry.name))
    row = Table.objects.named(name).select_related("namespace").first()
    if row is None:
        raise TableNotFound(name)
    before = _Told(tables=[row]).table(row)
    target = _Target(row.identifier, entry, before, is_table=True, format=TableFormat(row.format))
    yield from target.changes()
    if entry.columns is None:
        return
    for column in sorted({*entry.columns, *before["columns"]}):
        requested = entry.columns.get(column, ColumnPart())
        current = ColumnPart.model_validate(before["columns"].get(column, {}))
        yield from target.said(requested, current.model_dump(mode="json"), column=column)


@dataclass(frozen=True)
class _Target:
    """What a part says of a namespace or a table, beside what is so now."""

    name: Identifier
    part: _TargetPart
    before: Mapping[str, Any]
    is_table: bool
    format: TableFormat = TableFormat.LANCE

    def change(self, what: str, before: Any, after: Any, *operations: Operation) -> Change:
        return Change(label(self.name), what, before, after, operations)

    def changes(self) -> Iterator[Change]:
        entry, before = self.part, self.before
        named: dict[str, Any] = {"target": self.name, "is_table": self.is_table}
        if entry.owner is not None and entry.owner != before["owner"]:
            operation: Operation = annotation_operations.SetOwner(**named, owner=entry.owner)
            yield self.change("owner", before["owner"], entry.owner, operation)
        yield from self.said(entry, before)
        if entry.links is not None:
            links = [link.model_dump() for link in entry.links]
            if links != before["links"]:
                new = [annotation_operations.Link(**link) for link in links]
                yield self.change(
                    "links",
                    before["links"],
                    links,
                    annotation_operations.SetLinks(**named, links=new),
                )
        if entry.protected is not None and entry.protected != before["protected"]:
            operation = recovery_operations.SetProtection(
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

    def said(
        self, entry: _TargetPart | ColumnPart, before: Mapping[str, Any], column: str = ""
    ) -> Iterator[Change]:
        """Description, sensitivity and labels, which columns have as well."""
        named: dict[str, Any] = {"target": self.name, "is_table": self.is_table, "column": column}
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
                annotation_operations.AssignLabel(**named, key=key, values=values)
                if values
                else annotation_operations.RemoveLabel(**named, key=key)
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
