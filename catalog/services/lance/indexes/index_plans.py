"""Plan index builds: resolve names, check parameters, and refuse builds that cannot succeed.

Planning changes nothing and does not use the database. A plan is made in a request and executed
either there or in a job; both use the same plan.
"""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance import IndexProgress
from lance.dataset import LanceDataset
from lance.indices import IndexConfig
from lance.query import DocumentGranularity

from catalog.errors import ColumnNotFound, IndexAlreadyExists, InvalidInput
from catalog.formats.lance import language_models
from catalog.formats.lance import paths as lance_paths
from catalog.identifiers import Identifier, fold
from catalog.services.lance.indexes import index_costs

if TYPE_CHECKING:
    from lance.lance.schema import LanceField
from catalog.services.lance.indexes.index_types import KINDS, Kind, find_kind, get_kind

OWN_PREFIX = "__lance_"
"""Name prefix of the indexes that Lance manages itself, such as the fragment reuse index of a
compaction."""

_DISTANCES = {
    "l2": "l2",
    "euclidean": "l2",
    "cosine": "cosine",
    "dot": "dot",
    "hamming": "hamming",
}

_LEAST_M, _MOST_M = 4, 1024
_MOST_EF = 65_536
_MOST = 2**32 - 1
_REFERENCE_SUB_VECTORS = 16
_REHEARSED_ROWS = 16
_LONGEST_NAME = 512
_TOKENIZERS = ("simple", "whitespace", "raw", "ngram", "icu", "icu/split")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIndex:
    """A requested index (spec: CreateTableIndexRequest); None selects the default of the type.

    Parameters that do not apply to the type are ignored, as in the reference server.
    """

    column: str
    index_type: str
    name: str | None = None
    distance_type: str | None = None
    num_partitions: int | None = None
    target_partition_size: int | None = None
    num_sub_vectors: int | None = None
    num_bits: int | None = None
    sample_rate: int | None = None
    max_iterations: int | None = None
    m: int | None = None
    ef_construction: int | None = None
    with_position: bool | None = None
    base_tokenizer: str | None = None
    language: str | None = None
    max_token_length: int | None = None
    lower_case: bool | None = None
    stem: bool | None = None
    remove_stop_words: bool | None = None
    ascii_folding: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A validated index build. Its fields, as JSON, are the parameters of the job."""

    name: str
    column: str
    index_type: str
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of pylance."""
    cost: int = 0
    """Cost of the build, in rows of a BTREE."""
    config: dict[str, Any] | None = None
    """Parameters of a scalar index in Lance's own form; they replace the defaults of its type."""
    replaces: bool = False
    """True if the build replaces an index of the same name."""

    @property
    def summary(self) -> dict[str, Any]:
        """Description of the build in the audit trail."""
        summary = {"name": self.name, "column": self.column, "index_type": self.index_type}
        options = {**self.options, **(self.config or {})}
        return {**summary, "options": options} if options else summary


def plan_index(
    table: Identifier,
    dataset: LanceDataset,
    index: NewIndex,
    *,
    existing: Mapping[str, tuple[str, tuple[str, ...]]],
    scalar_only: bool = False,
    replaces: bool = False,
) -> Plan:
    """Validate a requested index and return the plan of its build.

    ``existing`` maps the names of the existing indexes to their type and columns. Raises
    InvalidInput, ColumnNotFound, IndexAlreadyExists, and the errors of Lance about the column.
    """
    kind = find_kind(index.index_type)
    if kind is None:
        names = ", ".join(index_type.name for index_type in KINDS)
        raise InvalidInput(f"Index type '{index.index_type}' is not known; use one of {names}")
    if scalar_only and kind.is_vector:
        raise InvalidInput(f"{kind.name} is no scalar index; use CreateTableIndex for it")
    column, lance_field = _column(table, dataset, index.column, kind)
    name = _name(table, existing, index.name, column, kind, replaces=replaces)
    cost = dataset.count_rows() * kind.cost
    if not kind.is_vector:
        options = _text_options(index) if kind.name == "INVERTED" else {}
        return Plan(name, column, kind.name, options, cost, replaces=replaces)
    dimension = None if lance_field is None else _dimension(lance_field)
    options = _vector_options(index, kind, dimension)
    if dimension is not None:  # otherwise Lance refuses the column
        require_vectors(dataset, column, kind, options)
        cost = index_costs.of_vectors(cost, dataset.count_rows(), dimension, options)
    return Plan(name, column, kind.name, options, cost, replaces=replaces)


def build(
    dataset: LanceDataset,
    plan: Plan,
    progress: Callable[[IndexProgress], None] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Build and commit the index; with ``replace`` it replaces the index of the same name."""
    kind = get_kind(plan.index_type)
    replace = replace or plan.replaces
    options = {"name": plan.name, "replace": replace, "progress_callback": progress, **plan.options}
    if kind.is_vector:
        dataset.create_index(plan.column, kind.lance_name, **options)
        return
    if "document_granularity" in options:
        options["document_granularity"] = DocumentGranularity(options["document_granularity"])
    form: Any = kind.lance_name
    if plan.config is not None:
        form = IndexConfig(kind.lance_name.lower(), plan.config)
    try:
        dataset.create_scalar_index(plan.column, form, **options)
    except ValueError as error:
        if "Invalid directory path" not in str(error):
            raise
        tokenizer = plan.options.get("base_tokenizer")
        raise InvalidInput(f"This server has no language model '{tokenizer}'") from error


def rehearse(dataset: LanceDataset, plan: Plan) -> LanceDataset:
    """Build the index on a few rows in memory, so that Lance refuses it before a job starts.

    Returns the dataset of these rows with the index.
    """
    kind = get_kind(plan.index_type)
    column = lance_paths.split(plan.column)[0]
    options = dict(plan.options)
    if kind.is_vector:
        options["num_partitions"] = 1
        options.pop("target_partition_size", None)
    sample = dataset.scanner(
        columns=[column],
        filter=f"{lance_paths.quoted_path(plan.column)} IS NOT NULL" if kind.is_vector else None,
        limit=2 ** options.get("num_bits", 8) if kind.is_product else _REHEARSED_ROWS,
    ).to_table()
    rehearsal = lance.write_dataset(sample, f"memory://{uuid.uuid4()}")
    build(rehearsal, replace(plan, options=options))
    return rehearsal


def _column(
    table: Identifier, dataset: LanceDataset, path: str, kind: Kind
) -> tuple[str, "LanceField | None"]:
    """Return the canonical path of a column and its field.

    A full-text index may be on a field inside lists, whose path only Lance can resolve.
    """
    schema = dataset.lance_schema
    field = schema.field_case_insensitive(path)
    if field is not None:
        walk = _walk(schema.fields())
        return next(spelled for spelled, candidate in walk if candidate.id() == field.id()), field
    if kind.name == "INVERTED":
        return path, None
    raise ColumnNotFound(table, f"column '{path}' does not exist")


def quoted_name(name: str) -> str:
    """Return a field's name as a segment of a path."""
    return "`" + name.replace("`", "``") + "`" if "." in name or "`" in name else name


def _walk(fields: "list[LanceField]", above: str = "") -> Iterator[tuple[str, "LanceField"]]:
    for child in fields:
        name = quoted_name(child.name())
        path = f"{above}.{name}" if above else name
        yield path, child
        yield from _walk(child.children(), path)


def _name(
    table: Identifier,
    existing: Mapping[str, tuple[str, tuple[str, ...]]],
    requested: str | None,
    column: str,
    kind: Kind,
    *,
    replaces: bool,
) -> str:
    """Return the requested name, or by default ``<column>_idx`` as in Lance.

    If an index of another type has that name, a number is appended: ``<column>_idx_2``. An index that may be
    replaced keeps its name; one of vectors also replaces one of another type.
    """
    if requested:
        if len(requested) > _LONGEST_NAME:
            raise InvalidInput(f"An index's name has at most {_LONGEST_NAME} characters")
        if _CONTROL.search(requested):
            raise InvalidInput("An index's name has no control characters")
        if requested.startswith(OWN_PREFIX):
            raise InvalidInput(f"Names that begin with '{OWN_PREFIX}' belong to Lance")
        if not replaces and any(fold((name,)) == fold((requested,)) for name in existing):
            raise IndexAlreadyExists(table, requested)
        return requested
    base = name = f"{column}_idx"
    number = 1
    while name in existing:
        type_name, columns = existing[name]
        if replaces and columns == (column,) and _is_replaced(type_name, kind):
            return name
        if not replaces and existing[name] == (kind.name, (column,)):
            raise IndexAlreadyExists(table, name)
        number += 1
        name = f"{base}_{number}"
    return name


def _is_replaced(type_name: str, kind: Kind) -> bool:
    existing = find_kind(type_name)
    is_vector = existing is not None and existing.is_vector
    return type_name == kind.name or (is_vector and kind.is_vector)


def _text_options(index: NewIndex) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: value
        for name in (
            "with_position",
            "max_token_length",
            "lower_case",
            "stem",
            "remove_stop_words",
            "ascii_folding",
        )
        if (value := getattr(index, name)) is not None
    }
    if not 0 <= (index.max_token_length or 0) <= _MOST:
        raise InvalidInput(f"max_token_length is {index.max_token_length}; use 0 to {_MOST}")
    if index.base_tokenizer:
        tokenizer = index.base_tokenizer
        if tokenizer.lower() in _TOKENIZERS:
            tokenizer = tokenizer.lower()
        elif not language_models.is_model(tokenizer):
            raise InvalidInput(
                f"base_tokenizer '{tokenizer}' is not known; use one of {', '.join(_TOKENIZERS)}, "
                "jieba/<model> or lindera/<model>"
            )
        options["base_tokenizer"] = tokenizer
    if index.language:
        options["language"] = index.language.capitalize()
    return options


def _vector_options(index: NewIndex, kind: Kind, dimension: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"metric": _distance(index.distance_type)}
    for name in ("num_partitions", "target_partition_size", "sample_rate", "max_iterations"):
        value = _within(index, name, 1, _MOST)
        if value is not None:
            options["max_iters" if name == "max_iterations" else name] = value
    if kind.bits and index.num_bits is not None:
        if index.num_bits not in kind.bits:
            allowed = ", ".join(map(str, kind.bits))
            raise InvalidInput(f"num_bits is {index.num_bits}; {kind.name} takes {allowed}")
        options["num_bits"] = index.num_bits
    if kind.is_product and dimension:
        options["num_sub_vectors"] = _sub_vectors(index, dimension, options.get("num_bits", 8))
    if kind.is_graph:
        for name, least, most in (("m", _LEAST_M, _MOST_M), ("ef_construction", 1, _MOST_EF)):
            value = _within(index, name, least, most)
            if value is not None:
                options[name] = value
    return options


def _distance(requested: str | None) -> str:
    if not requested:
        return "l2"
    distance = _DISTANCES.get(requested.lower())
    if distance is None:
        raise InvalidInput(
            f"distance_type '{requested}' is not known; use one of {', '.join(_DISTANCES)}"
        )
    return distance


def _within(index: NewIndex, name: str, least: int, most: int) -> int | None:
    value: int | None = getattr(index, name)
    if value is not None and not least <= value <= most:
        raise InvalidInput(f"{name} is {value}; use {least} to {most}")
    return value


def _sub_vectors(index: NewIndex, dimension: int, bits: int) -> int:
    """Return the number of sub-vectors, a divisor of the dimension.

    The default is that of the reference server, and one per 16 values for long vectors.
    """
    step = 2 if bits == 4 else 1  # two codes of four bits share a byte
    count = index.num_sub_vectors
    if count is not None:
        if dimension % count or count % step:
            even = ", and even for num_bits 4" if step == 2 else ""
            raise InvalidInput(
                f"num_sub_vectors is {count}; it must divide the vectors' dimension {dimension}{even}"
            )
        return count
    most = max(_REFERENCE_SUB_VECTORS, dimension // 16)
    fitting = [n for n in range(step, most + 1, step) if dimension % n == 0]
    if not fitting:
        raise InvalidInput(
            f"num_bits 4 needs vectors of an even dimension, and these have {dimension}"
        )
    return fitting[-1]


def _dimension(column: "LanceField") -> int | None:
    """Return the dimension of a column of vectors or of lists of vectors.

    None for any other column, which Lance refuses.
    """
    kind = column.to_arrow().type  # type: ignore[attr-defined]
    if isinstance(kind, pa.FixedShapeTensorType):
        return int(kind.shape[0]) if len(kind.shape) == 1 else None
    if pa.types.is_list(kind):
        kind = kind.value_type
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def require_vectors(
    dataset: LanceDataset, column: str, kind: Kind, options: Mapping[str, Any]
) -> None:
    """Require enough vectors to train with; Lance would build an empty or a smaller index.

    Raises InvalidInput.
    """
    needed = options.get("num_partitions", 1)
    if kind.is_product:
        needed = max(needed, 2 ** options.get("num_bits", 8))
    sample = dataset.scanner(
        columns=[],
        filter=f"{lance_paths.quoted_path(column)} IS NOT NULL",
        limit=needed,
        with_row_id=True,
    ).to_table()
    if sample.num_rows < needed:
        raise InvalidInput(
            f"Column '{column}' has {sample.num_rows} vectors, and this {kind.name} needs "
            f"{needed} to train with"
        )
