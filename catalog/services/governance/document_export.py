"""Export of the governance state as a document."""

from collections.abc import Iterator, Sequence
from typing import Any

from catalog import access
from catalog.errors import NamespaceNotFound
from catalog.identifiers import Identifier
from catalog.models import (
    Facts,
    Grant,
    LabelAssignment,
    LabelDefinition,
    MaintenancePolicy,
    Namespace,
    Principal,
    PrincipalKind,
    StorageProfile,
    Table,
)
from catalog.privileges import Privilege, essence
from catalog.services.governance.document_format import VERSION
from catalog.services.governance.document_storage import storage_entry

_BATCH = 500


def export(*, actor: access.Principal, namespace: Identifier = ()) -> dict[str, Any]:
    """Export everything, or a namespace and everything below it, as a document of plain values.

    Leaves out empty values, and namespaces and tables without any other value. Requires ALL on
    everything. Raises NamespaceNotFound.
    """
    access.require(actor, Privilege.ALL)
    inside = _inside(namespace)
    document: dict[str, Any] = {"version": VERSION}
    if not namespace:
        document["principals"] = [
            _without_none(principal_entry(row)) for row in Principal.objects.order_by("name")
        ]
        document["labels"] = [label_entry(row) for row in LabelDefinition.objects.order_by("key")]
        document["storage_profiles"] = [
            storage_entry(row) for row in StorageProfile.objects.order_by("name")
        ]
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
    rows = Namespace.objects.live().select_related("storage_profile").order_by("pk")
    if inside is not None:
        rows = rows.filter(ancestors__contains=[inside])
    for batch in _batches(rows):
        state = GovernanceState(namespaces=batch)
        for row in batch:
            yield from _unless_empty(
                {"name": list(row.path), **_without_none(state.namespace(row))}
            )


def _tables(inside: int | None) -> Iterator[dict[str, Any]]:
    rows = Table.objects.present().select_related("namespace").order_by("pk")
    if inside is not None:
        rows = rows.filter(namespace__ancestors__contains=[inside])
    for batch in _batches(rows):
        state = GovernanceState(tables=batch)
        for row in batch:
            yield from _unless_empty(
                {"name": list(row.identifier), **_without_none(state.table(row))}
            )


def _batches(rows: Any) -> Iterator[list[Any]]:
    last = 0
    while batch := list(rows.filter(pk__gt=last)[:_BATCH]):
        yield batch
        last = batch[-1].pk


def _unless_empty(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    values = {
        name: value for name, value in entry.items() if value not in ("", [], {}, None, False)
    }
    if len(values) > 1:
        yield values


def _without_none(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}


def principal_entry(row: Principal) -> dict[str, Any]:
    groups = row.groups.order_by("name").values_list("name", flat=True)
    return {
        "name": row.name,
        "kind": str(row.kind),
        "level": str(row.level),
        "description": row.description,
        "is_active": row.is_active,
        "groups": None if row.kind == PrincipalKind.GROUP else list(groups),
    }


def label_entry(row: LabelDefinition) -> dict[str, Any]:
    return {
        "key": row.key,
        "description": row.description,
        "colour": str(row.colour),
        "values": list(row.values),
        "is_multiple": row.is_multiple,
        "applies_to": [str(target) for target in row.applies_to],
    }


class GovernanceState:
    """Governance state of some namespaces or tables, read in four statements."""

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
        # Documents describe a lasting state, and applying one leaves grants that expire as they are.
        lasting = Grant.objects.filter(**targets, expires_at=None)
        for grant in lasting.select_related("principal"):
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
            "storage_profile": row.storage_profile.name if row.storage_profile is not None else "",
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
