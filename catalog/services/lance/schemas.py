"""Changing the schemas of Lance tables: their columns and metadata, and going back to a version.

Fields are named by paths (``a.b``, with backticks around a name that has a dot). A path means one
field exactly, in upper and lower case; messages and answers have it in the form that Lance writes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance.dataset import LanceDataset

from catalog.access import Principal
from catalog.errors import (
    ColumnNotFound,
    CommitConflict,
    ContradictoryInput,
    InvalidInput,
    Unsupported,
)
from catalog.formats import arrow_json
from catalog.formats.lance import paths as lance_paths
from catalog.formats.lance import sql as lance_sql
from catalog.identifiers import Identifier
from catalog.services.lance import commits, data_operations
from catalog.services.lance import computed as lance_computed
from catalog.services.lance.commits import Written

Path = tuple[str, ...]

_EXTENSION = "ARROW:extension:"
_OF_THE_TYPE = (_EXTENSION, "lance-encoding:", "lance-schema:")
"""Metadata that says something of a field's type or of how it is stored."""
_ATTEMPTS = 5
_PANIC = "Task was aborted"
_NO_CODE = "the catalog does not run pickled code"


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column to add, by one of an expression, a computed expression and a virtual column."""

    name: str
    expression: str | None = None
    """Evaluated once, for the rows that are there."""
    computed: str | None = None
    """Kept, and evaluated by backfills."""
    is_virtual: bool = False


@dataclass(frozen=True, slots=True)
class Alteration:
    """What becomes of a field; what is None stays."""

    path: str
    rename: str | None = None
    nullable: bool | None = None
    data_type: object = None
    """In the form of ``catalog.formats.arrow_json``."""
    is_virtual: bool = False


@dataclass(frozen=True, slots=True)
class FieldMetadata:
    """An update of a field's metadata; the value None deletes a key."""

    path: str
    metadata: Mapping[str, str | None]
    replace: bool = False


def update_schema_metadata(
    *, actor: Principal, table: Identifier, metadata: Mapping[str, str], branch: str = ""
) -> Written[dict[str, str]]:
    """Put this in the place of the schema's metadata; the result is what it has then."""
    return _write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.UpdateTableSchemaMetadata,
        work=lambda dataset: dict(dataset.update_schema_metadata(dict(metadata), replace=True)),
        summary={"keys": sorted(metadata)},
    )


def update_field_metadata(
    *, actor: Principal, table: Identifier, updates: Sequence[FieldMetadata], branch: str = ""
) -> Written[dict[str, dict[str, str]]]:
    """Update the metadata of fields, in one version and in the order given.

    The result is the metadata of each field named, by its path. Raises ColumnNotFound, and
    InvalidInput for what would take a computed column's declaration from it or make a field
    unreadable.
    """
    if not updates:
        raise InvalidInput("There is nothing to update: 'updates' is empty")
    parsed = [(lance_paths.split(each.path), each) for each in updates]
    return _write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.UpdateFieldMetadata,
        work=lambda dataset: _update_metadata(dataset, table, parsed),
        summary={"fields": [lance_paths.join(path) for path, _ in parsed]},
    )


def add_columns(
    *, actor: Principal, table: Identifier, columns: Sequence[NewColumn], branch: str = ""
) -> Written[None]:
    """Add columns in one version, all by expressions or all computed.

    Raises ColumnNotFound, and InvalidInput for names that are taken or cannot be, and expressions
    that cannot be evaluated; Unsupported for virtual columns.
    """
    if not columns:
        raise InvalidInput("There is nothing to add: 'new_columns' is empty")
    names = [column.name for column in columns]
    for column in columns:
        _check_new(column, is_repeated=names.count(column.name) > 1)
    computed = {each.name: each.computed for each in columns if each.computed is not None}
    evaluated = {each.name: each.expression for each in columns if each.expression is not None}
    if computed and evaluated:
        raise InvalidInput(
            "Columns with an 'expression' and computed columns cannot be added at once",
            detail="Lance makes a version for each of the two; add them in two requests.",
        )

    def work(dataset: LanceDataset) -> None:
        if evaluated:
            _evaluate(dataset, evaluated)
            return
        for name in computed:
            if name in dataset.schema.names:
                raise InvalidInput(f"Column '{name}' already exists")
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
    )


def alter_columns(
    *, actor: Principal, table: Identifier, alterations: Sequence[Alteration], branch: str = ""
) -> Written[None]:
    """Rename fields, change their types, and whether they may be null, all in one version.

    A field that gets another type loses its metadata in Lance; it gets it back in a second version.
    Raises ColumnNotFound, and InvalidInput for values that cannot be cast, a name that is taken
    and what a computed column reads; Unsupported for virtual columns.
    """
    if not alterations:
        raise InvalidInput("There is nothing to alter: 'alterations' is empty")
    parsed = [(lance_paths.split(each.path), _change(each)) for each in alterations]
    paths = [path for path, _ in parsed]
    for path in paths:
        if paths.count(path) > 1:
            raise InvalidInput(f"Column '{lance_paths.join(path)}' is altered twice")
    return commits.write(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.AlterTableAlterColumns,
        work=lambda dataset: _alter(dataset, table, parsed),
        summary={
            "alterations": [
                {"path": lance_paths.join(path), **_told(change)} for path, change in parsed
            ]
        },
    )


def drop_columns(
    *, actor: Principal, table: Identifier, columns: Sequence[str], branch: str = ""
) -> Written[None]:
    """Take fields away, in one version. Their data goes when versions that have it are cleaned up.

    Raises ColumnNotFound, InvalidInput for all columns at once and for what a computed column
    reads, and Unsupported for a name with a backtick, which Lance leaves where it is.
    """
    if not columns:
        raise InvalidInput("There is nothing to drop: 'columns' is empty")
    paths = list(dict.fromkeys(lance_paths.split(column) for column in columns))

    def work(dataset: LanceDataset) -> None:
        for path in paths:
            _find(dataset, table, path)
            _require_unread(dataset, path, unless=paths)
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


def restore(
    *, actor: Principal, table: Identifier, version: int, branch: str = ""
) -> Written[None]:
    """Make a new version with the content of an old one of the same branch.

    Versions between the two stay. Raises VersionNotFound.
    """
    return _write(
        actor=actor,
        table=table,
        branch=branch,
        version=version,
        operation=data_operations.RestoreTable,
        work=lambda dataset: dataset.restore(),
        summary={"restored": version},
    )


def _write(**write: Any) -> Written[Any]:
    """Write, and again if others did what Lance cannot rebase on.

    For what means the same on whatever version: Lance tells no conflict of these that would heal
    from one that would not.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(CommitConflict):
            return commits.write(**write)
    return commits.write(**write)


# -- metadata of fields


def _update_metadata(
    dataset: LanceDataset, table: Identifier, updates: Sequence[tuple[Path, FieldMetadata]]
) -> dict[str, dict[str, str]]:
    before = {path: dict(_find(dataset, table, path).metadata) for path, _ in updates}
    after = {path: dict(metadata) for path, metadata in before.items()}
    for path, update in updates:
        _check_declaration(before[path], path, update)
        if update.replace:
            after[path] = {}
        for key, value in update.metadata.items():
            if value is None:
                after[path].pop(key, None)
            else:
                after[path][key] = value
    for path, metadata in after.items():
        _check_extension(dataset, table, path, before[path], metadata)
    gone = {path: dict.fromkeys(before[path].keys() - after[path].keys()) for path in after}
    dataset.update_field_metadata(
        {lance_paths.join(path): {**gone[path], **after[path]} for path in after}
    )
    return {lance_paths.join(path): dict(_find(dataset, table, path).metadata) for path in after}


def _check_declaration(before: Mapping[str, str], path: Path, update: FieldMetadata) -> None:
    """Raises InvalidInput when an update touches the declaration of a computed column."""
    name = lance_paths.join(path)
    if any(lance_computed.is_declaration(key) for key in update.metadata):
        raise InvalidInput(
            f"Column '{name}': the keys that declare a computed column cannot be edited",
            detail="Drop the column, and add it with 'computed'.",
        )
    if update.replace and any(lance_computed.is_declaration(key) for key in before):
        raise InvalidInput(
            f"Replacing the metadata of computed column '{name}' would erase its declaration",
            detail="Update single keys instead.",
        )


def _check_extension(
    dataset: LanceDataset,
    table: Identifier,
    path: Path,
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> None:
    """Raises InvalidInput for an Arrow extension that the field's type does not have."""
    changed = {key for key, _ in before.items() ^ after.items() if key.startswith(_EXTENSION)}
    if not changed:
        return
    field = _find(dataset, table, path).to_arrow().with_metadata(after)
    try:
        pa.ipc.read_schema(pa.py_buffer(pa.schema([field]).serialize()))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"Column '{lance_paths.join(path)}': {error}") from None


# -- columns


def _evaluate(dataset: LanceDataset, expressions: dict[str, str]) -> None:
    try:
        dataset.add_columns(expressions)
    except RuntimeError as error:
        if _PANIC not in str(error):
            raise
        raise Unsupported(
            "Lance could not evaluate the expressions", detail="It cannot read a part of a map."
        ) from error


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
    """An alteration in the form of pylance, but for its path."""
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


def _told(change: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit trail says of an alteration."""
    told = {key: value for key, value in change.items() if key != "data_type"}
    if "data_type" in change:
        told["data_type"] = str(change["data_type"])
    return told


def _alter(
    dataset: LanceDataset,
    table: Identifier,
    alterations: Sequence[tuple[Path, dict[str, Any]]],
) -> None:
    lost: dict[Path, dict[str, str | None]] = {}
    for path, change in alterations:
        field = _find(dataset, table, path)
        name = lance_paths.join(path)
        if change.keys() & {"name", "data_type"}:
            _require_unread(dataset, path)
        if "data_type" not in change:
            continue
        if lance_computed.is_computed(field):
            raise InvalidInput(
                f"Column '{name}' is computed, so its type is that of its expression",
                detail="Drop the column, and add it again.",
            )
        kept = {k: v for k, v in field.metadata.items() if not k.startswith(_OF_THE_TYPE)}
        if kept:
            lost[path] = kept
    changes: list[Any] = [
        {"path": lance_paths.join(path), **change} for path, change in alterations
    ]
    dataset.alter_columns(*changes)
    if lost:
        renamed = {path: change.get("name") for path, change in alterations}
        dataset.update_field_metadata(
            {lance_paths.join(_renamed(path, renamed)): kept for path, kept in lost.items()}
        )


def _renamed(path: Path, renamed: Mapping[Path, str | None]) -> Path:
    """Where a field is after it and those above it got other names."""
    return tuple(renamed.get(path[: depth + 1]) or name for depth, name in enumerate(path))


def _require_unread(dataset: LanceDataset, path: Path, *, unless: Sequence[Path] = ()) -> None:
    """Raises InvalidInput when a computed column reads the field and is not dropped with it."""
    reader = lance_computed.find_reader(dataset, path, unless)
    if reader is not None:
        raise InvalidInput(
            f"Column '{lance_paths.join(path)}' is read by computed column '{reader}'",
            detail=f"Drop '{reader}' first.",
        )


def _find(dataset: LanceDataset, table: Identifier, path: Path) -> Any:
    """The field of a path, as Lance has it; the items of a list are ``list.item``."""
    fields, found = dataset.lance_schema.fields(), None
    for name in path:
        found = next((field for field in fields if field.name() == name), None)
        if found is None:
            raise ColumnNotFound(table, f"Column '{lance_paths.join(path)}' does not exist")
        fields = found.children()
    return found
