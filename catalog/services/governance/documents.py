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
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.governance import annotation_operations, annotations
from catalog.services.maintenance import policy_operations
from catalog.services.recovery import rule_operations

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
        told = _Told(namespaces=batch)
        for row in batch:
            yield from _if_anything({"name": list(row.path), **_without_none(told.namespace(row))})


def _tables(inside: int | None) -> Iterator[dict[str, Any]]:
    rows = Table.objects.present().select_related("namespace").order_by("pk")
    if inside is not None:
        rows = rows.filter(namespace__ancestors__contains=[inside])
    for batch in _batches(rows):
        told = _Told(tables=batch)
        for row in batch:
            yield from _if_anything(
                {"name": list(row.identifier), **_without_none(told.table(row))}
            )


def _batches(rows: Any) -> Iterator[list[Any]]:
    last = 0
    while batch := list(rows.filter(pk__gt=last)[:_AT_ONCE]):
        yield batch
        last = batch[-1].pk


def _if_anything(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    said = {name: value for name, value in part.items() if value not in ("", [], {}, None, False)}
    if len(said) > 1:
        yield said


def _without_none(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if value is not None}


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
        "places": [str(place) for place in row.places],
    }


class _Told:
    """What is said of some namespaces and tables, in five statements."""

    def __init__(
        self, *, namespaces: Sequence[Namespace] = (), tables: Sequence[Table] = ()
    ) -> None:
        wanted = {"namespace__in": namespaces} if namespaces else {"table__in": tables}
        self._facts: dict[tuple[str, int, str], Facts] = {}
        self._labels: dict[tuple[str, int, str], dict[str, list[str]]] = {}
        self._grants: dict[tuple[str, int], dict[str, list[str]]] = {}
        self._policies: dict[tuple[str, int], dict[str, Any]] = {}
        if not (namespaces or tables):
            return
        for said in Facts.objects.filter(**wanted):
            self._facts[*_key(said), said.column] = said
        given = LabelAssignment.objects.filter(**wanted).select_related("definition")
        for one in given.order_by("definition__key", "value"):
            of_column = self._labels.setdefault((*_key(one), one.column), {})
            of_column.setdefault(one.definition.key, []).append(one.value)
        for grant in Grant.objects.filter(**wanted).select_related("principal"):
            words = essence(grant.privileges)
            self._grants.setdefault(_key(grant), {})[grant.principal.name] = words
        for policy in MaintenancePolicy.objects.filter(**wanted):
            self._policies[_key(policy)] = dict(policy.values)

    def namespace(self, row: Namespace) -> dict[str, Any]:
        kept = row.retention_seconds
        return {
            **self._target("namespace", row),
            "retention_seconds": "inherited" if kept is None else kept,
            "approvals": sorted(row.guarded),
        } | ({} if kept is not None else {"retention_seconds": None})

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
        found: dict[str, Any] = {}
        for column in keys:
            said = self._facts.get(("table", row.pk, column))
            part = {
                "description": said.description if said else "",
                "sensitivity": (said.sensitivity or None) if said else None,
                "labels": self._labels.get(("table", row.pk, column), {}),
            }
            found[column] = {name: value for name, value in part.items() if value}
        return found

    def _target(self, kind: str, row: Namespace | Table) -> dict[str, Any]:
        said = self._facts.get((kind, row.pk, ""))
        return {
            "owner": row.owner,
            "description": said.description if said else "",
            "sensitivity": str(said.sensitivity) if said else "",
            "links": list(said.links) if said else [],
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


def read(found: Any) -> Document:
    """A document of plain values. Raises InvalidInput that tells where it is wrong."""
    try:
        return Document.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
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
        *(change for part in document.namespaces for change in _plan_namespace(part)),
        *(change for part in document.tables for change in _plan_table(part)),
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
        operations = [each for change in changes for each in change.operations]
        if operations:
            commit(operations, actor=actor)
    known_keys.forget_keys()
    return changes


def _refuse_twice(document: Document) -> None:
    names = [
        *(f"principal '{part.name}'" for part in document.principals),
        *(f"label '{part.key}'" for part in document.labels),
        *(f"namespace '{label(check(part.name))}'" for part in document.namespaces),
        *(f"table '{label(check_table(tuple(part.name)))}'" for part in document.tables),
    ]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"The document has {name} twice")
        seen.add(name)


def _plan_principals(parts: Iterable[PrincipalPart]) -> Iterator[Change]:
    # Those that are made come first: others may be members of them.
    parts = sorted(parts, key=lambda part: (part.kind != PrincipalKind.GROUP, part.name))
    for part in parts:
        row = Principal.objects.filter(name=part.name).first()
        before = {} if row is None else _principal(row)
        if row is None and part.kind == PrincipalKind.USER:
            raise PrincipalNotFound(part.name)
        if row is not None and row.kind != part.kind:
            raise InvalidInput(f"Principal '{part.name}' is a {row.kind}, not a {part.kind}")
        wanted = part.model_dump(exclude={"name", "kind", "groups"}, exclude_none=True)
        changed = {name: value for name, value in wanted.items() if before.get(name) != value}
        if row is None:
            yield Change(part.name, "principal", None, wanted, call=_creating(part))
        elif changed:
            told = {name: before[name] for name in changed}
            yield Change(part.name, "principal", told, changed, call=_updating(part.name, changed))
        if part.groups is not None and sorted(part.groups) != (before.get("groups") or []):
            old = before.get("groups") or []
            call = _joining(part.name, set(old), set(part.groups))
            yield Change(part.name, "groups", old, sorted(part.groups), call=call)


def _creating(part: PrincipalPart) -> Callable[[access.Principal], object]:
    def call(actor: access.Principal) -> None:
        principals.create_principal(
            actor=actor,
            name=part.name,
            kind=part.kind,
            level=part.level or PrincipalLevel.GRANTED,
            description=part.description or "",
        )
        if part.is_active is False:
            principals.update_principal(actor=actor, name=part.name, is_active=False)

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


def _plan_labels(parts: Iterable[LabelPart]) -> Iterator[Change]:
    for part in parts:
        row = LabelDefinition.objects.filter(key=part.key).first()
        wanted = part.model_dump(exclude={"key"}, exclude_none=True)
        if row is None:
            yield Change(
                part.key,
                "label",
                None,
                wanted,
                call=lambda actor, part=part, wanted=wanted: annotations.create_label(  # type: ignore[misc]
                    actor=actor, key=part.key, **wanted
                ),
            )
            continue
        before = _label(row)
        changed = {name: value for name, value in wanted.items() if before[name] != value}
        if changed:
            told = {name: before[name] for name in changed}
            yield Change(
                part.key,
                "label",
                told,
                changed,
                call=lambda actor, part=part, changed=changed: annotations.update_label(  # type: ignore[misc]
                    actor=actor, key=part.key, **changed
                ),
            )


def _plan_namespace(part: NamespacePart) -> Iterator[Change]:
    name = check(part.name)
    row = Namespace.objects.named(name).first()
    if row is None:
        raise NamespaceNotFound(name)
    before = _Told(namespaces=[row]).namespace(row)
    # Spelled as the catalog spells it.
    target = _Target(row.identifier, part, before, is_table=False)
    yield from target.changes()
    kept = part.retention_seconds
    if kept is not None:
        seconds = None if kept == "inherited" else kept
        if seconds != row.retention_seconds:
            yield target.change(
                "retention_seconds",
                row.retention_seconds,
                seconds,
                rule_operations.SetRetention(namespace=target.name, seconds=seconds),
            )
    if part.approvals is not None and sorted(part.approvals) != before["approvals"]:
        yield target.change(
            "approvals",
            before["approvals"],
            sorted(part.approvals),
            rule_operations.SetApprovalRule(namespace=target.name, actions=part.approvals),
        )


def _plan_table(part: TablePart) -> Iterator[Change]:
    name = check_table(tuple(part.name))
    row = Table.objects.named(name).select_related("namespace").first()
    if row is None:
        raise TableNotFound(name)
    before = _Told(tables=[row]).table(row)
    target = _Target(row.identifier, part, before, is_table=True, format=TableFormat(row.format))
    yield from target.changes()
    if part.columns is None:
        return
    for column in sorted({*part.columns, *before["columns"]}):
        wanted = part.columns.get(column, ColumnPart())
        old = ColumnPart.model_validate(before["columns"].get(column, {}))
        yield from target.said(wanted, old.model_dump(mode="json"), column=column)


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
        part, before = self.part, self.before
        named: dict[str, Any] = {"target": self.name, "is_table": self.is_table}
        if part.owner is not None and part.owner != before["owner"]:
            operation: Operation = annotation_operations.SetOwner(**named, owner=part.owner)
            yield self.change("owner", before["owner"], part.owner, operation)
        yield from self.said(part, before)
        if part.links is not None:
            links = [link.model_dump() for link in part.links]
            if links != before["links"]:
                new = [annotation_operations.Link(**link) for link in links]
                yield self.change(
                    "links",
                    before["links"],
                    links,
                    annotation_operations.SetLinks(**named, links=new),
                )
        if part.protected is not None and part.protected != before["protected"]:
            operation = rule_operations.SetProtection(
                identifier=self.name,
                is_namespace=not self.is_table,
                is_protected=part.protected,
            )
            yield self.change("protected", before["protected"], part.protected, operation)
        if part.grants is not None:
            yield from self._grants(part.grants)
        if part.maintenance is not None and part.maintenance != before["maintenance"]:
            policy: Operation = (
                policy_operations.SetTablePolicy(
                    table=self.name, format=self.format, values=part.maintenance
                )
                if self.is_table
                else policy_operations.SetNamespacePolicy(
                    namespace=self.name, values=part.maintenance
                )
            )
            yield self.change("maintenance", before["maintenance"], part.maintenance, policy)

    def said(
        self, part: _TargetPart | ColumnPart, before: Mapping[str, Any], column: str = ""
    ) -> Iterator[Change]:
        """Description, sensitivity and labels, which columns have as well."""
        named: dict[str, Any] = {"target": self.name, "is_table": self.is_table, "column": column}
        of = f"column {column}, " if column else ""
        if part.description is not None and part.description != before["description"]:
            operation: Operation = annotation_operations.SetDescription(
                **named, description=part.description
            )
            yield self.change(
                f"{of}description", before["description"], part.description, operation
            )
        told = part.sensitivity if not column else part.sensitivity or ""
        if told is not None and told != (before["sensitivity"] or ""):
            wanted = Sensitivity(told) if told else None
            operation = annotation_operations.SetClassification(**named, sensitivity=wanted)
            yield self.change(f"{of}sensitivity", before["sensitivity"], str(told), operation)
        if part.labels is None:
            return
        for key in sorted({*part.labels, *before["labels"]}):
            values, old = part.labels.get(key, []), before["labels"].get(key, [])
            if sorted(values) == sorted(old):
                continue
            operation = (
                annotation_operations.AssignLabel(**named, key=key, values=values)
                if values
                else annotation_operations.RemoveLabel(**named, key=key)
            )
            yield self.change(f"{of}label {key}", old, values, operation)

    def _grants(self, wanted: Mapping[str, Sequence[str]]) -> Iterator[Change]:
        on = On.table(self.name) if self.is_table else On.namespace(self.name)
        for principal in sorted({*wanted, *self.before["grants"]}):
            privileges = parse(wanted.get(principal, []))
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
        return ", ".join(str(each) for each in value)
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."
