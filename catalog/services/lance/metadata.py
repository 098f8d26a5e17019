"""Update the metadata of the schema and the fields of Lance tables, and restore old versions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from lance.dataset import LanceDataset

from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.formats.lance import paths as lance_paths
from catalog.identifiers import Identifier
from catalog.services.lance import commits, data_operations
from catalog.services.lance import computed as lance_computed
from catalog.services.lance.commits import Written
from catalog.services.lance.schemas import EXTENSION_METADATA, Path, find_field, find_fields


@dataclass(frozen=True, slots=True)
class FieldMetadata:
    """An update of a field's metadata; the value None deletes its key."""

    path: str
    metadata: Mapping[str, str | None]
    replace: bool = False


def update_schema_metadata(
    *, actor: Principal, table: Identifier, metadata: Mapping[str, str], branch: str = ""
) -> Written[dict[str, str]]:
    """Replace the schema's metadata; the result is the new metadata."""
    return commits.write_repeatedly(
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
    """Update the metadata of fields in one version, in the order of the request.

    The result is the metadata of each updated field, by path. Raises ColumnNotFound, and
    InvalidInput for an update that would remove a computed column's declaration or make a field
    unreadable.
    """
    if not updates:
        raise InvalidInput("There is nothing to update: 'updates' is empty")
    parsed = [(lance_paths.split(update.path), update) for update in updates]
    return commits.write_repeatedly(
        actor=actor,
        table=table,
        branch=branch,
        operation=data_operations.UpdateFieldMetadata,
        work=lambda dataset: _update_metadata(dataset, table, parsed),
        summary={"fields": [lance_paths.join(path) for path, _ in parsed]},
    )


def restore(
    *, actor: Principal, table: Identifier, version: int, branch: str = ""
) -> Written[None]:
    """Create a new version with the content of an older version of the same branch.

    The versions in between stay. Raises VersionNotFound.
    """
    return commits.write_repeatedly(
        actor=actor,
        table=table,
        branch=branch,
        version=version,
        operation=data_operations.RestoreTable,
        work=lambda dataset: dataset.restore(),
        summary={"restored": version},
    )


def _update_metadata(
    dataset: LanceDataset, table: Identifier, updates: Sequence[tuple[Path, FieldMetadata]]
) -> dict[str, dict[str, str]]:
    paths = [path for path, _ in updates]
    fields = find_fields(dataset, table, paths)
    before = {path: dict(field.metadata) for path, field in zip(paths, fields, strict=True)}
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
    deleted_keys = {path: dict.fromkeys(before[path].keys() - after[path].keys()) for path in after}
    dataset.update_field_metadata(
        {lance_paths.join(path): {**deleted_keys[path], **after[path]} for path in after}
    )
    changed = zip(after, find_fields(dataset, table, after), strict=True)
    return {lance_paths.join(path): dict(field.metadata) for path, field in changed}


def _check_declaration(before: Mapping[str, str], path: Path, update: FieldMetadata) -> None:
    """Refuse an update of the declaration of a computed column. Raises InvalidInput."""
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
    """Refuse an Arrow extension that does not fit the field's type. Raises InvalidInput."""
    changed = {
        key for key, _ in before.items() ^ after.items() if key.startswith(EXTENSION_METADATA)
    }
    if not changed:
        return
    field = find_field(dataset, table, path).to_arrow().with_metadata(after)
    try:
        pa.ipc.read_schema(pa.py_buffer(pa.schema([field]).serialize()))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInput(f"Column '{lance_paths.join(path)}': {error}") from None
