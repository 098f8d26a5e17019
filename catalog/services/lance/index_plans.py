"""Planning the build of an index: names are resolved, and what cannot work is refused.

Nothing is changed by it, and nothing of the database is used. So a plan is made in a request,
carried out there or in a job, and looks the same in both.
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
from catalog.formats.lance import paths as lance_paths
from catalog.identifiers import Identifier, fold

if TYPE_CHECKING:
    from lance.lance.schema import LanceField

OWN_PREFIX = "__lance_"
"""Of indexes that Lance keeps for itself, such as the one of rows moved by a compaction."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of index that is built here."""

    name: str
    cost: int
    """What indexing a row takes, in rows of a BTREE (measured on two cores; see docs)."""
    is_vector: bool = False
    bits: tuple[int, ...] = ()
    """The values of ``num_bits`` that it knows; none: it has no quantizer to set."""
    is_product: bool = False
    """Whether it is a product quantizer, which has sub-vectors and trains one code per value."""
    is_graph: bool = False

    @property
    def lance_name(self) -> str:
        """What pylance calls it."""
        return self.name.replace("_", "") if self.name in _JOINED else self.name


_JOINED = {"BLOOM_FILTER", "MINHASH_LSH"}
_PQ_BITS, _SQ_BITS, _RQ_BITS = (4, 8), (8,), tuple(range(1, 10))
_KINDS = (
    Kind("BTREE", 1),
    Kind("BITMAP", 2),
    Kind("LABEL_LIST", 2),
    Kind("NGRAM", 10),
    Kind("ZONEMAP", 1),
    Kind("BLOOM_FILTER", 1),
    Kind("RTREE", 5),
    Kind("MINHASH_LSH", 20),
    Kind("INVERTED", 10),
    Kind("IVF_FLAT", 25, is_vector=True),
    Kind("IVF_SQ", 25, is_vector=True, bits=_SQ_BITS),
    Kind("IVF_PQ", 100, is_vector=True, bits=_PQ_BITS, is_product=True),
    Kind("IVF_RQ", 25, is_vector=True, bits=_RQ_BITS),
    Kind("IVF_HNSW_FLAT", 100, is_vector=True, is_graph=True),
    Kind("IVF_HNSW_SQ", 100, is_vector=True, bits=_SQ_BITS, is_graph=True),
    Kind("IVF_HNSW_PQ", 200, is_vector=True, bits=_PQ_BITS, is_product=True, is_graph=True),
)
_COST_DIMENSION = 128  # of the vectors that the costs were measured with


def find_kind(name: str) -> Kind | None:
    """The type of this name, spelled in whatever way; None: it is none that is built here."""
    return _BY_KEY.get(_key(name))


def type_name(lance_name: str) -> str:
    """The specification's name of a type that Lance names in its own way."""
    known = find_kind(lance_name)
    return lance_name if known is None else known.name


def _key(name: str) -> str:
    """The form in which types are compared: any case, with or without underscores."""
    return name.replace("_", "").upper()


_BY_KEY = {_key(kind.name): kind for kind in _KINDS}
_BY_KEY |= {
    "FTS": _BY_KEY["INVERTED"],
    "SCALAR": _BY_KEY["BTREE"],
    "VECTOR": _BY_KEY["IVFPQ"],
}

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
_MODEL = re.compile(r"(?:jieba|lindera)/[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIndex:
    """An index as it is asked for (spec: CreateTableIndexRequest); None: as the type has it.

    Parameters that the type does not have are ignored, as the reference server does.
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
    """A build that may begin. As JSON its fields are what a job gets."""

    name: str
    column: str
    index_type: str
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of pylance."""
    cost: int = 0
    """What the build takes, in rows of a BTREE."""
    config: dict[str, Any] | None = None
    """The parameters of a scalar index in Lance's own form, in place of what its type has."""

    @property
    def summary(self) -> dict[str, Any]:
        """What the audit trail tells of it."""
        told = {"name": self.name, "column": self.column, "index_type": self.index_type}
        options = {**self.options, **(self.config or {})}
        return {**told, "options": options} if options else told


def plan_index(
    table: Identifier,
    dataset: LanceDataset,
    index: NewIndex,
    *,
    there: Mapping[str, tuple[str, tuple[str, ...]]],
    scalar_only: bool = False,
) -> Plan:
    """What is to be built, after all that can be refused beforehand was.

    ``there`` has the type and the columns of the indexes that exist, by name. Raises InvalidInput,
    ColumnNotFound, IndexAlreadyExists, and what Lance says of the column.
    """
    kind = find_kind(index.index_type)
    if kind is None:
        known = ", ".join(each.name for each in _KINDS)
        raise InvalidInput(f"Index type '{index.index_type}' is not known; use one of {known}")
    if scalar_only and kind.is_vector:
        raise InvalidInput(f"{kind.name} is no scalar index; use CreateTableIndex for it")
    column, found = _column(table, dataset, index.column, kind)
    name = _name(table, there, index.name, column, kind)
    cost = dataset.count_rows() * kind.cost
    if not kind.is_vector:
        options = _text_options(index) if kind.name == "INVERTED" else {}
        return Plan(name, column, kind.name, options, cost)
    dimension = None if found is None else _dimension(found)
    options = _vector_options(index, kind, dimension)
    if dimension is not None:  # else Lance refuses it
        require_vectors(dataset, column, kind, options)
        cost = cost * max(dimension, _COST_DIMENSION) // _COST_DIMENSION
    return Plan(name, column, kind.name, options, cost)


def build(
    dataset: LanceDataset,
    plan: Plan,
    progress: Callable[[IndexProgress], None] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Build it and commit it to the dataset; with ``replace`` in the place of the one of its name."""
    kind = _BY_KEY[_key(plan.index_type)]
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
    """Build it on a few rows in memory, so that what Lance refuses is refused before a job begins.

    Returns those rows, with the index.
    """
    kind = _BY_KEY[_key(plan.index_type)]
    column = lance_paths.split(plan.column)[0]
    options = dict(plan.options)
    if kind.is_vector:
        options["num_partitions"] = 1
        options.pop("target_partition_size", None)
    some = dataset.scanner(
        columns=[column],
        filter=f"{_quoted(plan.column)} IS NOT NULL" if kind.is_vector else None,
        limit=2 ** options.get("num_bits", 8) if kind.is_product else _REHEARSED_ROWS,
    ).to_table()
    small = lance.write_dataset(some, f"memory://{uuid.uuid4()}")
    build(small, replace(plan, options=options))
    return small


def _column(
    table: Identifier, dataset: LanceDataset, path: str, kind: Kind
) -> tuple[str, "LanceField | None"]:
    """The canonical path of a column, and its field.

    A full-text index may lie on a field inside lists, whose path Lance alone resolves.
    """
    schema = dataset.lance_schema
    found = schema.field_case_insensitive(path)
    if found is not None:
        walk = _walk(schema.fields())
        return next(spelled for spelled, each in walk if each.id() == found.id()), found
    if kind.name == "INVERTED":
        return path, None
    raise ColumnNotFound(table, f"column '{path}' does not exist")


def quoted_name(name: str) -> str:
    """A field's name as a segment of a path."""
    return "`" + name.replace("`", "``") + "`" if "." in name or "`" in name else name


def _walk(fields: "list[LanceField]", above: str = "") -> Iterator[tuple[str, "LanceField"]]:
    for each in fields:
        name = quoted_name(each.name())
        path = f"{above}.{name}" if above else name
        yield path, each
        yield from _walk(each.children(), path)


def _name(
    table: Identifier,
    there: Mapping[str, tuple[str, tuple[str, ...]]],
    asked: str | None,
    column: str,
    kind: Kind,
) -> str:
    """The name that the index gets: the one asked for, else ``<column>_idx`` as Lance has it.

    Where another type of index has that name, Lance counts on: ``<column>_idx_2``.
    """
    if asked:
        if len(asked) > _LONGEST_NAME:
            raise InvalidInput(f"An index's name has at most {_LONGEST_NAME} characters")
        if _CONTROL.search(asked):
            raise InvalidInput("An index's name has no control characters")
        if asked.startswith(OWN_PREFIX):
            raise InvalidInput(f"Names that begin with '{OWN_PREFIX}' belong to Lance")
        if any(fold((name,)) == fold((asked,)) for name in there):
            raise IndexAlreadyExists(table, asked)
        return asked
    base = name = f"{column}_idx"
    number = 1
    while name in there:
        if there[name] == (kind.name, (column,)):
            raise IndexAlreadyExists(table, name)
        number += 1
        name = f"{base}_{number}"
    return name


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
        elif not _MODEL.fullmatch(tokenizer):  # a model is a path below Lance's directory of them
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
            known = ", ".join(map(str, kind.bits))
            raise InvalidInput(f"num_bits is {index.num_bits}; {kind.name} takes {known}")
        options["num_bits"] = index.num_bits
    if kind.is_product and dimension:
        options["num_sub_vectors"] = _sub_vectors(index, dimension, options.get("num_bits", 8))
    if kind.is_graph:
        for name, least, most in (("m", _LEAST_M, _MOST_M), ("ef_construction", 1, _MOST_EF)):
            value = _within(index, name, least, most)
            if value is not None:
                options[name] = value
    return options


def _distance(asked: str | None) -> str:
    if not asked:
        return "l2"
    known = _DISTANCES.get(asked.lower())
    if known is None:
        raise InvalidInput(
            f"distance_type '{asked}' is not known; use one of {', '.join(_DISTANCES)}"
        )
    return known


def _within(index: NewIndex, name: str, least: int, most: int) -> int | None:
    value: int | None = getattr(index, name)
    if value is not None and not least <= value <= most:
        raise InvalidInput(f"{name} is {value}; use {least} to {most}")
    return value


def _sub_vectors(index: NewIndex, dimension: int, bits: int) -> int:
    """The number of sub-vectors, which divides the dimension.

    By default as many as the reference server makes, and of long vectors one for 16 values.
    """
    step = 2 if bits == 4 else 1  # two codes of four bits share a byte
    given = index.num_sub_vectors
    if given is not None:
        if dimension % given or given % step:
            even = ", and even for num_bits 4" if step == 2 else ""
            raise InvalidInput(
                f"num_sub_vectors is {given}; it must divide the vectors' dimension {dimension}{even}"
            )
        return given
    most = max(_REFERENCE_SUB_VECTORS, dimension // 16)
    fitting = [n for n in range(step, most + 1, step) if dimension % n == 0]
    if not fitting:
        raise InvalidInput(
            f"num_bits 4 needs vectors of an even dimension, and these have {dimension}"
        )
    return fitting[-1]


def _dimension(column: "LanceField") -> int | None:
    """Of vectors, or of lists of vectors; None for what is neither, which Lance refuses."""
    kind = column.to_arrow().type  # type: ignore[attr-defined]
    if isinstance(kind, pa.FixedShapeTensorType):
        return int(kind.shape[0]) if len(kind.shape) == 1 else None
    if pa.types.is_list(kind):
        kind = kind.value_type
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def require_vectors(
    dataset: LanceDataset, column: str, kind: Kind, options: Mapping[str, Any]
) -> None:
    """Refuse a training that lacks vectors; Lance would leave an empty index, or a smaller one."""
    needed = options.get("num_partitions", 1)
    if kind.is_product:
        needed = max(needed, 2 ** options.get("num_bits", 8))
    found = dataset.scanner(
        columns=[], filter=f"{_quoted(column)} IS NOT NULL", limit=needed, with_row_id=True
    ).to_table()
    if found.num_rows < needed:
        raise InvalidInput(
            f"Column '{column}' has {found.num_rows} vectors, and this {kind.name} needs "
            f"{needed} to train with"
        )


def _quoted(path: str) -> str:
    """A canonical path in SQL, where names that are not quoted lose their case."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in lance_paths.split(path))
