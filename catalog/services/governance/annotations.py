"""Annotations of namespaces, tables and columns: change them, and resolve the effective ones.

Labels and sensitivities are inherited from the nearest ancestor that has one. Descriptions, links and
owners are not inherited.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from catalog import access
from catalog.access import Principal
from catalog.errors import LabelNotFound, NamespaceNotFound, TableNotFound
from catalog.identifiers import Identifier, label
from catalog.models import (
    Facts,
    LabelAssignment,
    LabelColour,
    LabelDefinition,
    LabelTarget,
    Namespace,
    SearchDocument,
    Sensitivity,
    Table,
)
from catalog.privileges import Privilege
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation
from catalog.services.governance import annotation_operations, label_operations
from catalog.services.governance.annotation_operations import Link


@dataclass(frozen=True, slots=True)
class GivenLabel:
    """Effective values of a label."""

    key: str
    values: tuple[str, ...]
    colour: str
    source: str
    """Dotted name of the object that carries the label: the object itself or an ancestor."""
    is_inherited: bool


@dataclass(frozen=True, slots=True)
class ColumnAnnotations:
    """Schema and annotations of a column."""

    path: str
    type: str
    """Empty: the column no longer exists, or the schema has not been read yet."""
    comment: str
    """Comment of the schema."""
    description: str = ""
    sensitivity: Sensitivity | None = None
    labels: tuple[GivenLabel, ...] = ()


@dataclass(frozen=True, slots=True)
class Annotations:
    """Annotations of a namespace, a table or a view, with the inherited ones."""

    identifier: Identifier
    kind: str
    """namespace, table or view."""
    format: str | None
    owner: str
    description: str
    """Markdown; ``render`` converts it to HTML."""
    links: tuple[Link, ...]
    labels: tuple[GivenLabel, ...]
    """Effective labels: own and inherited ones."""
    said_sensitivity: Sensitivity | None
    sensitivity: Sensitivity | None
    """Effective sensitivity: the own one, or that of the nearest ancestor."""
    sensitivity_source: str
    """Dotted name of the object that sets the effective sensitivity; empty: none."""
    highest_sensitivity: Sensitivity | None
    """Highest of the effective sensitivity and those of the columns."""
    columns: tuple[ColumnAnnotations, ...]
    """Columns of the schema, if it has been read, and then other annotated columns."""


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Changes to the annotations of a column; None: unchanged."""

    description: str | None = None
    sensitivity: Sensitivity | None = None
    sets_sensitivity: bool = False
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Values by key; no values: remove the label."""


@dataclass(frozen=True, slots=True)
class Changes(ColumnChanges):
    """Changes to the annotations of a namespace or a table; None: unchanged."""

    owner: str | None = None
    links: Sequence[Link] | None = None
    columns: Mapping[str, ColumnChanges] = field(default_factory=dict)


# --- effective annotations -----------------------------------------------------------------------


def table_annotations(*, actor: Principal, table: Identifier) -> Annotations:
    """Annotations of a table or view. Raises NamespaceNotFound, TableNotFound. Four statements."""
    access.require(actor, Privilege.BROWSE, access.On.table(table))
    row = Table.objects.named(table).select_related("namespace").first()
    if row is None:
        if not Namespace.objects.named(table[:-1]).exists():
            raise NamespaceNotFound(table[:-1])
        raise TableNotFound(table)
    return annotations_of(row)


def namespace_annotations(*, actor: Principal, namespace: Identifier) -> Annotations:
    """Annotations of a namespace. Raises NamespaceNotFound."""
    access.require(actor, Privilege.BROWSE, access.On.namespace(namespace))
    row = Namespace.objects.named(namespace).first()
    if row is None:
        raise NamespaceNotFound(namespace)
    return annotations_of(row)


def annotations_of(row: Table | Namespace) -> Annotations:
    """Annotations of a row, without an access check. Three statements.

    The namespace of a table should be loaded.
    """
    is_table = isinstance(row, Table)
    above = row.namespace if isinstance(row, Table) else row
    # Ancestors, nearest first.
    chain = [pk for pk in reversed(above.ancestors) if is_table or pk != row.pk]
    own = Q(table=row) if is_table else Q(namespace=row)
    annotations = list(
        Facts.objects.filter(own | Q(namespace__in=chain)).select_related("namespace")
    )
    assignments = list(
        LabelAssignment.objects.filter(own | Q(namespace__in=chain))
        .select_related("definition", "namespace")
        .order_by("definition__key", "pk")
    )
    of_row = [annotation for annotation in annotations if _is_of(annotation, row)]
    own_annotation = (
        next((annotation for annotation in of_row if not annotation.column), None) or Facts()
    )
    sensitivity, source = _nearest_sensitivity(row, own_annotation, annotations, chain)
    column_sensitivities = [
        Sensitivity(annotation.sensitivity)
        for annotation in of_row
        if annotation.column and annotation.sensitivity
    ]
    ranked = sorted(
        [*column_sensitivities, *([sensitivity] if sensitivity else [])],
        key=lambda annotation: annotation.rank,
    )
    return Annotations(
        identifier=row.identifier,
        kind=row.kind if isinstance(row, Table) else "namespace",
        format=row.format if isinstance(row, Table) else None,
        owner=row.owner,
        description=own_annotation.description,
        links=tuple(
            Link(annotation["title"], annotation["url"]) for annotation in own_annotation.links
        ),
        labels=tuple(_effective_labels(row, assignments, chain)),
        said_sensitivity=Sensitivity(own_annotation.sensitivity)
        if own_annotation.sensitivity
        else None,
        sensitivity=sensitivity,
        sensitivity_source=source,
        highest_sensitivity=ranked[-1] if ranked else None,
        columns=tuple(_columns(row, of_row, assignments)) if isinstance(row, Table) else (),
    )


def _is_of(entry: Facts | LabelAssignment, row: Table | Namespace) -> bool:
    return (entry.table_id if isinstance(row, Table) else entry.namespace_id) == row.pk


def _nearest_sensitivity(
    row: Table | Namespace,
    own_annotation: Facts,
    annotations: Iterable[Facts],
    chain: Sequence[int],
) -> tuple[Sensitivity | None, str]:
    if own_annotation.sensitivity:
        return Sensitivity(own_annotation.sensitivity), label(row.identifier)
    above = {
        annotation.namespace_id: annotation
        for annotation in annotations
        if annotation.namespace_id and annotation.sensitivity
    }
    for pk in chain:
        if (nearest := above.get(pk)) is not None:
            return Sensitivity(nearest.sensitivity), str(nearest.namespace)
    return None, ""


def _effective_labels(
    row: Table | Namespace, assignments: Iterable[LabelAssignment], chain: Sequence[int]
) -> Iterable[GivenLabel]:
    by_key: dict[str, dict[int | None, list[LabelAssignment]]] = {}
    for assignment in assignments:
        if assignment.column:
            continue
        holder = None if _is_of(assignment, row) else assignment.namespace_id
        by_key.setdefault(assignment.definition.key, {}).setdefault(holder, []).append(assignment)
    for key, holders in by_key.items():
        nearest = next(pk for pk in (None, *chain) if pk in holders)
        effective = holders[nearest]
        yield GivenLabel(
            key=key,
            values=tuple(assignment.value for assignment in effective),
            colour=effective[0].definition.colour,
            source=label(row.identifier) if nearest is None else str(effective[0].namespace),
            is_inherited=nearest is not None,
        )


def _columns(
    row: Table, of_row: Iterable[Facts], assignments: Iterable[LabelAssignment]
) -> Iterable[ColumnAnnotations]:
    annotations = {entry.column: entry for entry in of_row if entry.column}
    labels: dict[str, dict[str, list[LabelAssignment]]] = {}
    for entry in assignments:
        if entry.column:
            labels.setdefault(entry.column, {}).setdefault(entry.definition.key, []).append(entry)
    schema_columns = (
        SearchDocument.objects.filter(table=row).values_list("columns", flat=True).first() or []
    )
    paths = {path for path, *_ in schema_columns}
    missing = sorted((annotations.keys() | labels.keys()) - paths)
    for path, type_, comment in [*schema_columns, *([path, "", ""] for path in missing)]:
        annotation = annotations.get(path)
        yield ColumnAnnotations(
            path=path,
            type=type_,
            comment=comment,
            description=annotation.description if annotation else "",
            sensitivity=Sensitivity(annotation.sensitivity)
            if annotation and annotation.sensitivity
            else None,
            labels=tuple(
                GivenLabel(
                    key=key,
                    values=tuple(entry.value for entry in values),
                    colour=values[0].definition.colour,
                    source=label((*row.identifier, path)),
                    is_inherited=False,
                )
                for key, values in labels.get(path, {}).items()
            ),
        )


# --- changes -------------------------------------------------------------------------------------


def annotate_table(*, actor: Principal, table: Identifier, changes: Changes) -> None:
    """Change annotations of a table or view and its columns: all of them, or none.

    Raises NamespaceNotFound, TableNotFound, ColumnNotFound, LabelNotFound, InvalidInput and
    PermissionDenied.
    """
    _commit(actor, table, changes, is_table=True)


def annotate_namespace(*, actor: Principal, namespace: Identifier, changes: Changes) -> None:
    """Change annotations of a namespace: all of them, or none. Raises as ``annotate_table``."""
    _commit(actor, namespace, changes, is_table=False)


def _commit(actor: Principal, target: Identifier, changes: Changes, *, is_table: bool) -> None:
    operations = list(_operations(target, "", changes, is_table=is_table))
    if changes.links is not None:
        operations.append(
            annotation_operations.SetLinks(target=target, is_table=is_table, links=changes.links)
        )
    source = annotation_operations.TableColumns(target)
    for path, of_column in changes.columns.items():
        operations += _operations(target, path, of_column, is_table=is_table, source=source)
    if changes.owner is not None:
        # Last: with the ownership the actor may lose the privilege for the other changes.
        operations.append(
            annotation_operations.SetOwner(target=target, is_table=is_table, owner=changes.owner)
        )
    if operations:
        commit(operations, actor=actor)
    else:
        on = access.On.table(target) if is_table else access.On.namespace(target)
        access.require(actor, Privilege.MANAGE, on)


def _operations(
    target: Identifier,
    column: str,
    changes: ColumnChanges,
    *,
    is_table: bool,
    source: annotation_operations.TableColumns | None = None,
) -> Iterable[Operation]:
    where: dict[str, Any] = {
        "target": target,
        "is_table": is_table,
        "column": column,
        "source": source,
    }
    if changes.description is not None:
        yield annotation_operations.SetDescription(**where, description=changes.description)
    if changes.sets_sensitivity:
        yield annotation_operations.SetClassification(**where, sensitivity=changes.sensitivity)
    for key, values in changes.labels.items():
        if values:
            yield label_operations.AssignLabel(**where, key=key, values=values)
        else:
            yield label_operations.RemoveLabel(**where, key=key)


# --- labels --------------------------------------------------------------------------------------


def list_labels() -> list[LabelDefinition]:
    """All label definitions, by key; every principal may see them. One statement."""
    return list(LabelDefinition.objects.order_by("key"))


def find_label(*, key: str) -> LabelDefinition:
    """The definition of a label. Raises LabelNotFound."""
    definition = LabelDefinition.objects.filter(key=key).first()
    if definition is None:
        raise LabelNotFound(key)
    return definition


def create_label(
    *,
    actor: Principal,
    key: str,
    description: str = "",
    colour: LabelColour = LabelColour.GREY,
    values: Sequence[str] = (),
    is_multiple: bool = False,
    applies_to: Sequence[LabelTarget] = tuple(LabelTarget),
) -> LabelDefinition:
    """Define a label. Raises LabelAlreadyExists, InvalidInput, PermissionDenied."""
    create = label_operations.CreateLabel(
        key=key,
        description=description,
        colour=colour,
        values=values,
        is_multiple=is_multiple,
        applies_to=applies_to,
    )
    row: LabelDefinition = commit([create], actor=actor).results[0]
    return row


def update_label(
    *,
    actor: Principal,
    key: str,
    description: str | None = None,
    colour: LabelColour | None = None,
    values: Sequence[str] | None = None,
    is_multiple: bool | None = None,
    applies_to: Sequence[LabelTarget] | None = None,
) -> LabelDefinition:
    """Change a label; None: unchanged. Raises LabelNotFound, LabelInUse, InvalidInput."""
    update = label_operations.UpdateLabel(
        key=key,
        description=description,
        colour=colour,
        values=values,
        is_multiple=is_multiple,
        applies_to=applies_to,
    )
    row: LabelDefinition = commit([update], actor=actor).results[0]
    return row


def delete_label(*, actor: Principal, key: str) -> None:
    """Delete a label without assignments. Raises LabelNotFound, LabelInUse."""
    commit([label_operations.DeleteLabel(key=key)], actor=actor)
