"""Computed columns of Lance tables: the types of their expressions and the fields they read.

A computed column is declared with an SQL expression and has no values until a backfill evaluates
it. The declaration is stored in the field's metadata, under the keys that LanceDB uses as well.
"""

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import orjson
import pyarrow as pa
from lance.dataset import LanceDataset

from catalog.errors import ColumnNotFound, InvalidInput
from catalog.formats.lance import naming as lance_naming
from catalog.formats.lance import paths as lance_paths
from catalog.identifiers import Identifier
from catalog.services.lance.errors import refusing
from catalog.services.lance.rehearsals import rehearse

_VALUE, _ROW = "value", "_rowid"
_SQL = "sql"
_READS_NOTHING = "Scans must request at least one column"
# Quoted texts are not names. Names in backticks are not functions.
_TEXTS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_ROW_COLUMNS = re.compile(
    r"\b_row(?:id|addr|offset|_last_updated_at_version|_created_at_version)\b"
)
_CHANGING = re.compile(
    r"\b(?:(?:random|uuid|now|today|current_date|current_time)\s*\("
    r"|current_(?:date|time|timestamp)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Computed:
    """A declared computed column: its path and the paths that its expression reads."""

    path: tuple[str, ...]
    inputs: tuple[tuple[str, ...], ...]


def declare(dataset: LanceDataset, table: Identifier, name: str, expression: str) -> pa.Field:
    """Return the field of a new computed column, with its declaration.

    Lance determines its type by planning the expression. Raises ColumnNotFound and InvalidInput.
    """
    bare = _TEXTS.sub("''", expression)
    if match := _ROW_COLUMNS.search(bare):
        raise ColumnNotFound(table, f"A computed column cannot read '{match[0]}'")
    if match := _CHANGING.search(_QUOTED.sub("``", bare)):
        raise InvalidInput(
            f"Column '{name}': '{match[0].rstrip(' (')}' does not give the same value every time"
        )
    with refusing(table):
        type_ = _plan(dataset, expression)
    inputs = [lance_paths.join(path) for path in _inputs(dataset, expression)]
    metadata = {
        lance_naming.COMPUTED: "true",
        lance_naming.COMPUTED_KIND_KEY: _SQL,
        lance_naming.COMPUTED_KEY: expression,
        lance_naming.COMPUTED_INPUTS_KEY: orjson.dumps(inputs).decode(),
    }
    return pa.field(name, type_, nullable=True, metadata=metadata)


def is_declaration(key: str) -> bool:
    """True if a key of a field's metadata belongs to the declaration of a computed column."""
    return key == lance_naming.COMPUTED or key.startswith(f"{lance_naming.COMPUTED}.")


def is_computed(field: Any) -> bool:
    """True if a field is a computed column."""
    return any(is_declaration(key) for key in field.metadata)


def find_reader(
    dataset: LanceDataset,
    paths: Sequence[tuple[str, ...]],
    unless: Sequence[tuple[str, ...]] = (),
) -> tuple[tuple[str, ...], str] | None:
    """Return the first of these fields that a computed column reads, also above or below it, and the column's
    name.

    Columns whose path is in ``unless`` are ignored.
    """
    ignored = frozenset(unless)
    columns = [
        column for column in _declared(dataset.lance_schema.fields()) if column.path not in ignored
    ]
    for path in paths:
        for column in columns:
            if any(_overlap(path, read) for read in column.inputs):
                return path, lance_paths.join(column.path)
    return None


def _declared(fields: Iterable[Any]) -> Iterator[Computed]:
    for field in fields:
        written = field.metadata.get(lance_naming.COMPUTED_INPUTS_KEY)
        if written is not None:
            yield Computed((field.name(),), _paths(written))


def _paths(written: str) -> tuple[tuple[str, ...], ...]:
    """Parse a JSON list of paths; skip invalid values, which any client may have written."""
    try:
        values = orjson.loads(written)
    except orjson.JSONDecodeError:
        return ()
    paths = []
    for value in values if isinstance(values, list) else ():
        try:
            paths.append(lance_paths.split(str(value)))
        except InvalidInput:
            continue
    return tuple(paths)


def _overlap(left: Sequence[str], right: Sequence[str]) -> bool:
    return all(a == b for a, b in zip(left, right, strict=False))


def _plan(dataset: LanceDataset, expression: str) -> pa.DataType:
    """Return the type of an expression."""
    rehearse(dataset, [expression])
    try:
        scanner = dataset.scanner(columns={_VALUE: expression})
        return scanner.projected_schema.field(_VALUE).type
    except ValueError as error:
        if _READS_NOTHING not in str(error):
            raise
        scanner = dataset.scanner(columns={_VALUE: expression, _ROW: _ROW})
        return scanner.projected_schema.field(_VALUE).type


def _inputs(dataset: LanceDataset, expression: str) -> list[tuple[str, ...]]:
    """Return the fields that an expression reads: those without which Lance cannot plan it.

    Lance reports them as one text, in which names with commas are ambiguous.
    """
    text = expression.replace("``", "`").casefold()
    named = [field for field in dataset.schema if field.name.casefold() in text]
    trial = _Trial(expression, dataset.data_storage_version)
    if not trial.plans(named):
        return [(field.name,) for field in named]
    return [path for field in named for path in trial.reads(named, (field.name,))]


@dataclass(frozen=True, slots=True)
class _Trial:
    """Plans an expression on empty tables of other schemas."""

    expression: str
    storage_version: Any

    def plans(self, fields: Sequence[pa.Field]) -> bool:
        empty = pa.schema([*fields, pa.field(_unused(), pa.bool_())]).empty_table()
        try:
            dataset = lance.write_dataset(
                empty, "memory://", data_storage_version=self.storage_version
            )
            _plan(dataset, self.expression)
        except (OSError, ValueError, RuntimeError, pa.ArrowException):
            return False
        return True

    def reads(self, fields: Sequence[pa.Field], path: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the paths at or below this one that the expression reads, the deepest possible."""
        if self.plans(_without(fields, path)):
            return []
        field = lance_paths.find(fields, path)
        inner = field.type if field is not None and pa.types.is_struct(field.type) else None
        names = [] if inner is None else [child.name for child in inner.fields]
        return [inner for name in names for inner in self.reads(fields, (*path, name))] or [path]


def _without(fields: Sequence[pa.Field], path: tuple[str, ...]) -> list[pa.Field]:
    """Return the fields with the field of the path renamed: a struct cannot lose its last field."""
    return [_rename(field, path[1:]) if field.name == path[0] else field for field in fields]


def _rename(field: pa.Field, inner_path: tuple[str, ...]) -> pa.Field:
    if not inner_path:
        return field.with_name(_unused())
    return field.with_type(pa.struct(_without(field.type.fields, inner_path)))


def _unused() -> str:
    return f"_{uuid.uuid4().hex}"
