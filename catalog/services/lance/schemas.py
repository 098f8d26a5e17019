"""Change the columns of Lance tables.

Fields have paths (``a.b``, with backticks around a name with a dot). A path is case-sensitive and
identifies exactly one field; messages and answers use the spelling of Lance.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance.dataset import LanceDataset

from catalog.access import Principal
from catalog.errors import (
    ColumnNotFound,
    ContradictoryInput,
    InvalidInput,
    Unsupported,
)
from catalog.formats import arrow_json
from catalog.formats.lance import paths as lance_paths
from catalog.formats.lance import sql as lance_sql
from catalog.formats.lance import sql_growth
from catalog.identifiers import Identifier
from catalog.limits import check_map
from catalog.services.lance import commits, data_operations, time_limits
from catalog.services.lance import computed as lance_computed
from catalog.services.lance.commits import Written

Path = tuple[str, ...]

EXTENSION_METADATA = "ARROW:extension:"
_TYPE_METADATA = (EXTENSION_METADATA, "lance-encoding:", "lance-schema:")
"""Prefixes of the metadata that describes a field's type or its storage."""

_PANIC = "Task was aborted"
_NO_CODE = "the catalog does not run pickled code"


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column to add: with an expression, as a computed column, or as a virtual column."""

    name: str
    expression: str | None = None
    """Expression that is evaluated once for the existing rows."""
    computed: str | None = None
    """Expression that is stored and evaluated by backfills."""
    is_virtual: bool = False


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of a field; attributes that are None stay unchanged."""

    path: str
    rename: str | None = None
    nullable: bool | None = None
    data_type: object = None
    """The type in the form of ``catalog.formats.arrow_json``."""
    is_virtual: bool = False


def add_columns(
    *, actor: Principal, table: Identifier, columns: Sequence[NewColumn], branch: str = ""
) -> Written[None]:
    """Add columns in one version, either all with expressions or all computed.

    Raises ColumnNotFound, InvalidInput for names that exist or are invalid and for expressions that
    cannot be evaluated, and Unsupported for virtual columns.
    """
    if not columns:
        raise InvalidInput("There is nothing to add: 'new_columns' is empty")
    names = [column.name for column in columns]
    numbers = Counter(names)
    for column in columns:
        _check_new(column, is_repeated=numbers[column.name] > 1)
    computed = {column.name: column.computed for column in columns if column.computed is not None}
    evaluated = {
        column.name: column.expression for column in columns if column.expression is not None
    }
    sql_growth.check_values(evaluated.values())
    if computed and evaluated:
        raise InvalidInput(
            "Columns with an 'expression' and computed columns cannot be added at once",
            detail="Lance makes a version for each of the two; add them in two requests.",
        )

    def work(dataset: LanceDataset) -> None:
        if evaluated:
            _evaluate(dataset, evaluated)
            return
        _require_absent(dataset, computed)
        fields = [
            lance_computed.declare(dataset, table, name, expression)
            for name, expression in computed.items()
        ]
        dataset.add_columns(pa.schema(fields))

    return commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.AlterTableAddColumns,
        work=work,
        summary={"columns": names} | ({"computed": computed} if computed else {}),
        limited_since=time_limits.of_write(*evaluated.values(), *computed.values()),
    )


def alter_columns(
    *, actor: Principal, table: Identifier, alterations: Sequence[Alteration], branch: str = ""
) -> Written[None]:
    """Change names, types and nullability of fields in one version.

    A type change removes the field's metadata in Lance; a second version restores it. Raises
    ColumnNotFound, InvalidInput for values that cannot be cast, a name that exists and a field that
    a computed column reads, and Unsupported for virtual columns.
    """
    if not alterations:
        raise InvalidInput("There is nothing to alter: 'alterations' is empty")
    parsed = [
        (lance_paths.split(alteration.path), _change(alteration)) for alteration in alterations
    ]
    for path, times in Counter(path for path, _ in parsed).items():
        if times > 1:
            raise InvalidInput(f"Column '{lance_paths.join(path)}' is altered twice")
    return commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.AlterTableAlterColumns,
        work=lambda dataset: _alter(dataset, table, parsed),
        limited_since=time_limits.of_write(),
        summary={
            "alterations": [
                {"path": lance_paths.join(path), **_audit_details(change)}
                for path, change in parsed
            ]
        },
    )


def drop_columns(
    *, actor: Principal, table: Identifier, columns: Sequence[str], branch: str = ""
) -> Written[None]:
    """Drop fields in one version. A cleanup of the older versions removes their data.

    Raises ColumnNotFound, InvalidInput for all columns at once and for a field that a computed
    column reads, and Unsupported for a name with a backtick, which Lance does not drop.
    """
    if not columns:
        raise InvalidInput("There is nothing to drop: 'columns' is empty")
    paths = list(dict.fromkeys(lance_paths.split(column) for column in columns))

    def work(dataset: LanceDataset) -> None:
        find_fields(dataset, table, paths)
        _require_unread(dataset, paths, unless=paths)
        for path in paths:
            if "`" in path[-1]:
                raise Unsupported(
                    f"Lance cannot drop column '{lance_paths.join(path)}', for its backtick",
                    detail="Rename it first.",
                )
        dataset.drop_columns([lance_paths.join(path) for path in paths])

    return commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.AlterTableDropColumns,
        work=work,
        summary={"columns": [lance_paths.join(path) for path in paths]},
    )


def _evaluate(dataset: LanceDataset, expressions: dict[str, str]) -> None:
    try:
        dataset.add_columns(expressions)
    except RuntimeError as error:
        if _PANIC not in str(error):
            raise
        raise Unsupported(
            "Lance could not evaluate the expressions", detail="It cannot read a part of a map."
        ) from error


def add_null_columns(
    *, actor: Principal, table: Identifier, schema: pa.Schema, branch: str = ""
) -> Written[None]:
    """Add columns without values in one version. The fields' metadata is dropped, since it could declare a
    computed column.

    Raises InvalidInput for names that exist or are invalid, and for a field that may not be null.
    """
    check_map("The columns", schema.names)
    if not schema.names:
        raise InvalidInput("There is nothing to add: the schema has no fields")
    lance_paths.check_names(schema)
    for field in schema:
        if not field.nullable:
            raise InvalidInput(
                f"Column '{field.name}' may not be null, but has no values",
                detail="Add a nullable column, or one with an SQL expression.",
            )
    added = pa.schema([pa.field(field.name, field.type) for field in schema])

    def work(dataset: LanceDataset) -> None:
        _require_absent(dataset, added.names)
        dataset.add_columns(added)

    return commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.AlterTableAddColumns,
        work=work,
        summary={"columns": added.names},
    )


def _require_absent(dataset: LanceDataset, names: Iterable[str]) -> None:
    present = frozenset(dataset.schema.names)
    for name in names:
        if name in present:
            raise InvalidInput(f"Column '{name}' already exists")


def _check_new(column: NewColumn, *, is_repeated: bool) -> None:
    lance_paths.check_name(column.name)
    if is_repeated:
        raise InvalidInput(f"Column '{column.name}' is added twice")
    if column.is_virtual:
        raise Unsupported(
            f"Column '{column.name}' is a virtual column: {_NO_CODE}",
            detail="Give an 'expression', or 'computed' for one that is kept.",
        )
    if column.expression is None and column.computed is None:
        raise InvalidInput(f"Column '{column.name}' needs an 'expression' or 'computed'")
    if column.expression is not None and column.computed is not None:
        raise ContradictoryInput(f"Column '{column.name}' has an 'expression' and 'computed'")
    lance_sql.check(column.expression or column.computed or "")


def _change(alteration: Alteration) -> dict[str, Any]:
    """Return an alteration in the form of pylance, without its path."""
    if alteration.is_virtual:
        raise Unsupported(f"Column '{alteration.path}' cannot become virtual: {_NO_CODE}")
    change: dict[str, Any] = {}
    if alteration.rename is not None:
        lance_paths.check_name(alteration.rename)
        change["name"] = alteration.rename
    if alteration.nullable is not None:
        change["nullable"] = alteration.nullable
    if alteration.data_type is not None:
        change["data_type"] = arrow_json.type_from_json(alteration.data_type)
    if not change:
        raise InvalidInput(
            f"Column '{alteration.path}' needs one of 'rename', 'nullable' and 'data_type'"
        )
    return change


def _audit_details(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of an alteration for the audit trail."""
    summary = {key: value for key, value in change.items() if key != "data_type"}
    if "data_type" in change:
        summary["data_type"] = str(change["data_type"])
    return summary


def _alter(
    dataset: LanceDataset,
    table: Identifier,
    alterations: Sequence[tuple[Path, dict[str, Any]]],
) -> None:
    lost: dict[Path, dict[str, str | None]] = {}
    fields = find_fields(dataset, table, [path for path, _ in alterations])
    redefined = [path for path, change in alterations if change.keys() & {"name", "data_type"}]
    _require_unread(dataset, redefined)
    for field, (path, change) in zip(fields, alterations, strict=True):
        name = lance_paths.join(path)
        if "data_type" not in change:
            continue
        if lance_computed.is_computed(field):
            raise InvalidInput(
                f"Column '{name}' is computed, so its type is that of its expression",
                detail="Drop the column, and add it again.",
            )
        metadata = {k: v for k, v in field.metadata.items() if not k.startswith(_TYPE_METADATA)}
        if metadata:
            lost[path] = metadata
    changes: list[Any] = [
        {"path": lance_paths.join(path), **change} for path, change in alterations
    ]
    dataset.alter_columns(*changes)
    if lost:
        renamed = {path: change.get("name") for path, change in alterations}
        dataset.update_field_metadata(
            {lance_paths.join(_renamed(path, renamed)): metadata for path, metadata in lost.items()}
        )


def _renamed(path: Path, renamed: Mapping[Path, str | None]) -> Path:
    """Return the path of a field after it and its parents were renamed."""
    return tuple(renamed.get(path[: depth + 1]) or name for depth, name in enumerate(path))


def _require_unread(
    dataset: LanceDataset, paths: Sequence[Path], *, unless: Sequence[Path] = ()
) -> None:
    """Refuse a change of fields that a computed column reads, unless that is dropped with them.

    Raises InvalidInput.
    """
    dependency = lance_computed.find_reader(dataset, paths, unless)
    if dependency is not None:
        path, reader = dependency
        raise InvalidInput(
            f"Column '{lance_paths.join(path)}' is read by computed column '{reader}'",
            detail=f"Drop '{reader}' first.",
        )


def find_field(dataset: LanceDataset, table: Identifier, path: Path) -> Any:
    """Return the Lance field of a path; the items of a list have the path ``list.item``."""
    return find_fields(dataset, table, [path])[0]


def find_fields(dataset: LanceDataset, table: Identifier, paths: Iterable[Path]) -> list[Any]:
    """Return the Lance fields of paths. The schema, which may have thousands of fields, is read once."""
    top = {field.name(): field for field in reversed(dataset.lance_schema.fields())}
    return [_find(top, table, path) for path in paths]


def _find(top: Mapping[str, Any], table: Identifier, path: Path) -> Any:
    field = top.get(path[0])
    for name in path[1:]:
        if field is not None:
            field = next((child for child in field.children() if child.name() == name), None)
    if field is None:
        raise ColumnNotFound(table, f"Column '{lance_paths.join(path)}' does not exist")
    return field
