"""Asking Lance tables: searches, scans, counts, and the plans of them.

A query is in the words of the protocol (spec: QueryTableRequest). It is one of three things: a
vector search when it has vectors, a full-text search when it has one, and otherwise a scan.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
from lance.dataset import LanceDataset, LanceScanner
from lance_namespace_urllib3_client import models as m

from catalog.access import Principal
from catalog.errors import ColumnNotFound, ContradictoryInput, InvalidInput
from catalog.formats.lance import paths as lance_paths
from catalog.formats.lance import sql as lance_sql
from catalog.identifiers import Identifier, label
from catalog.services.lance import datasets
from catalog.services.lance import full_text as lance_full_text
from catalog.services.lance.errors import refusing
from catalog.services.lance.full_text import small
from catalog.services.lance.ledger.snapshots import Snapshot

Query = m.QueryTableRequest | m.AnalyzeTableQueryPlanRequest

DEFAULT_K = 10
"""Of a vector search whose k is 0."""
DEFAULT_VECTOR_COLUMN = "vector"
"""Where a table has several and the query names none."""
MAX_SEARCH_BYTES = 256 << 20
"""What the results of one search may hold at once: Lance ranks them in memory."""
_RESULT_BYTES = 64  # of one result beside its vector: its distance or score, and its row's id
_BATCH_BYTES = 4 << 20
_BUFFER_BYTES = 64 << 20
_READAHEAD = 4
_MAX_ROWS = 2**62
_MOST_KEPT = 256 << 10
_KEPT_COST = 1024
# Functions that tell something else each time. A word of them in a text costs no more than a query.
_CHANGING = re.compile(r"random|rand\b|uuid|now|today|current|date|time", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a query, read as it is taken."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def find(*, actor: Principal, table: Identifier, query: Query, branch: str = "") -> Snapshot:
    """The version that a query asks. Raises as ``lance_datasets.find_snapshot``."""
    return datasets.find_snapshot(actor=actor, table=table, version=query.version, branch=branch)


def query(*, snapshot: Snapshot, query: Query) -> Rows:
    """The rows that a query finds. Whoever stops early drops the batches, which ends the scan.

    Raises ColumnNotFound, InvalidInput, and what ``lance_datasets.open_dataset`` raises. What only
    shows while rows are read, such as a division by zero, is raised by the batches.
    """
    plan = _plan(snapshot, query)
    with plan.refusing():
        reader = plan.scanner.to_reader()
    return Rows(reader.schema, _batches(plan, reader))


def count_rows(
    *,
    actor: Principal,
    table: Identifier,
    predicate: str | None = None,
    version: int | None = None,
    branch: str = "",
) -> int:
    """How many rows there are, or for how many of them the predicate holds.

    Without a predicate no data is read. Raises as ``query`` does.
    """
    lance_sql.check(predicate or "")
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    with refusing(table):
        return int(dataset.count_rows(predicate or None))


def explain(
    *,
    actor: Principal,
    table: Identifier,
    query: Query,
    branch: str = "",
    is_verbose: bool = False,
) -> str:
    """How Lance would carry a query out; no data is read. Raises as ``query`` does."""
    plan = _plan(find(actor=actor, table=table, query=query, branch=branch), query)
    with plan.refusing():
        return str(plan.scanner.explain_plan(is_verbose))


def analyze(*, actor: Principal, table: Identifier, query: Query, branch: str = "") -> str:
    """Carry a query out, and tell what each step took. Raises as ``query`` does."""
    plan = _plan(find(actor=actor, table=table, query=query, branch=branch), query)
    with plan.refusing():
        return str(plan.scanner.analyze_plan())


@dataclass(frozen=True, slots=True)
class _Plan:
    table: Identifier
    dataset: LanceDataset
    options: dict[str, Any]
    scanner: LanceScanner
    skipped: int = 0
    """How many results of each query vector are left out; Lance's own offset is one for all."""

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """The same as the function of this name, for what runs in a task of Lance."""
        with refusing(self.table):
            try:
                yield
            except RuntimeError as error:
                if self.options["filter"] and "Task was aborted" in str(error):
                    # It panicked, and does not say over what; the filter alone would.
                    self.dataset.count_rows(self.options["filter"])
                raise


def kept_answer(snapshot: Snapshot, request: bytes) -> bytes | None:
    """What the same request was answered, of the same version; None: it has to be asked."""
    return datasets.answers.get((snapshot.key, request))


def keep_answer(snapshot: Snapshot, query: Query, request: bytes, answer: bytes) -> None:
    """Keep an answer, if it is small and would be the same again."""
    if not datasets.has_only_own_files(snapshot):
        return  # the next reader may not be one who may read the files of other tables
    # As it was parsed: a request may spell any letter by its number.
    if len(answer) > _MOST_KEPT or _CHANGING.search(f"{query.filter} {query.columns}"):
        return
    cost = len(answer) + len(request) + _KEPT_COST
    datasets.answers.put((snapshot.key, request), answer, cost=cost)


def _plan(snapshot: Snapshot, query: Query) -> _Plan:
    table = snapshot.table
    lance_sql.check(query.filter or "")
    dataset = datasets.open_dataset(snapshot)
    with refusing(table):
        vectors = _vectors(query.vector)
        full_text = lance_full_text.search(table, dataset, query.full_text_query)
        if vectors and full_text:
            raise ContradictoryInput(
                "A query searches vectors or text, not both",
                detail="Send two queries with with_row_id, and merge their results by '_rowid'.",
            )
        # At most 2**62 each, so that their sum is an integer of 64 bits.
        k, offset = min(query.k, _MAX_ROWS), min(query.offset or 0, _MAX_ROWS)
        options: dict[str, Any] = {
            "filter": query.filter or None,
            "prefilter": query.prefilter,
            "with_row_id": query.with_row_id,
            "fast_search": query.fast_search,
        }
        if vectors:
            return _vector_plan(
                table=table,
                dataset=dataset,
                query=query,
                vectors=vectors,
                k=k or DEFAULT_K,
                offset=offset,
                options=options,
            )
        options["limit"] = k or None
        options["offset"] = offset or None
        if full_text:
            _check_size(min(k + offset if k else _MAX_ROWS, dataset.count_rows()), _RESULT_BYTES)
            options["full_text_query"] = full_text
            options["columns"] = _columns(table, dataset.schema, query.columns, "_score")
        else:
            options["columns"] = _columns(table, dataset.schema, query.columns)
            # Lance reads ahead as far as these allow, however slowly the rows are taken.
            options["batch_size_bytes"] = _BATCH_BYTES
            options["io_buffer_size"] = _BUFFER_BYTES
            options["batch_readahead"] = _READAHEAD
        return _Plan(table, dataset, options, dataset.scanner(**options))


def _vector_plan(
    *,
    table: Identifier,
    dataset: LanceDataset,
    query: Query,
    vectors: list[pa.Array],
    k: int,
    offset: int,
    options: dict[str, Any],
) -> _Plan:
    schema = dataset.schema
    column, kind = _vector_column(table, schema, query.vector_column)
    of_many = not pa.types.is_fixed_size_list(kind)  # each row has several vectors
    dimensions = (kind.value_type if of_many else kind).list_size
    for vector in vectors:
        if len(vector) != dimensions:
            raise InvalidInput(
                f"The query vector has {len(vector)} dimensions, and column '{column}' "
                f"has {dimensions}"
            )
    is_batch = bool(query.vector.multi_vector)
    # Lance makes room for as many results as are asked for, were it more than the table has.
    rows = max(dataset.count_rows(), 1)
    wanted = min(k + offset, rows)
    refine = min(small("refine_factor", query.refine_factor) or 0, -(-rows // wanted))
    ef = small("ef", query.ef)
    searches = len(vectors) if is_batch and not of_many else 1
    _check_size(wanted * max(refine, 1) * searches, _RESULT_BYTES + 4 * dimensions)
    options["columns"] = _columns(table, schema, query.columns, "_distance")
    options["nearest"] = {
        "column": column,
        "q": vectors if is_batch else vectors[0],
        "k": wanted,
        "metric": query.distance_type,
        "refine_factor": refine or None,
        "ef": max(min(ef, rows), wanted) if ef else None,
        "use_index": not query.bypass_vector_index,
        "distance_range": _range(query),
        **_probes(query),
    }
    skipped = offset if searches > 1 else 0
    options["offset"] = offset - skipped or None
    return _Plan(table, dataset, options, dataset.scanner(**options), skipped)


def _vectors(asked: m.QueryTableRequestVector) -> list[pa.Array]:
    """The query vectors as Lance takes them. Clients send an empty one for none."""
    if asked.single_vector and asked.multi_vector:
        raise ContradictoryInput("A query has a single_vector or a multi_vector, not both")
    if asked.single_vector:
        return [_vector(asked.single_vector)]
    vectors = asked.multi_vector or []
    return [_vector(vector) for vector in vectors] if any(vectors) else []


def _vector(numbers: list[float | int]) -> pa.Array:
    with np.errstate(over="ignore"):
        vector = np.asarray(numbers, dtype=np.float64).astype(np.float32)
    if not np.isfinite(vector).all():
        raise InvalidInput("A query vector holds what is not a finite number of 32 bits")
    return pa.array(vector)


def _vector_column(
    table: Identifier, schema: pa.Schema, path: str | None
) -> tuple[str, pa.DataType]:
    """The path and the type of the column to search."""
    if path:
        field = _require_column(table, schema, path)
        kind = _storage(field.type)
        if not _is_vector(kind):
            raise InvalidInput(f"Column '{path}' holds no vectors; it is of type {field.type}")
        return path, kind
    found = dict(_vector_fields(schema))
    if len(found) == 1:
        return found.popitem()
    if DEFAULT_VECTOR_COLUMN in found:
        return DEFAULT_VECTOR_COLUMN, found[DEFAULT_VECTOR_COLUMN]
    if not found:
        raise InvalidInput(f"Table '{label(table)}' has no column of vectors")
    raise InvalidInput(
        f"Table '{label(table)}' has several columns of vectors; name one as vector_column: "
        + ", ".join(sorted(found))
    )


def _require_column(table: Identifier, schema: pa.Schema, path: str) -> pa.Field:
    field = lance_paths.find(schema, lance_paths.split(path))
    if field is None:
        raise ColumnNotFound(table, f"Column '{path}' does not exist")
    return field


def _vector_fields(fields: Any, outer: tuple[str, ...] = ()) -> Iterator[tuple[str, pa.DataType]]:
    for field in fields:
        kind = _storage(field.type)
        if _is_vector(kind):
            yield lance_paths.join((*outer, field.name)), kind
        elif pa.types.is_struct(kind):
            yield from _vector_fields(
                (kind.field(index) for index in range(kind.num_fields)), (*outer, field.name)
            )


def _is_vector(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        kind = kind.value_type
    if not pa.types.is_fixed_size_list(kind):
        return False
    of = _storage(kind.value_type)
    return bool(
        pa.types.is_floating(of)
        or pa.types.is_uint8(of)
        or pa.types.is_int8(of)
        or pa.types.is_fixed_size_binary(of)  # bfloat16
    )


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _columns(
    table: Identifier,
    schema: pa.Schema,
    asked: m.QueryTableRequestColumns | None,
    result: str | None = None,
) -> list[str] | dict[str, str] | None:
    """The columns to return; None for all. A search's result is among them, asked for or not."""
    if asked is None:
        return None
    if asked.column_names and asked.column_aliases:
        raise ContradictoryInput("A query has column_names or column_aliases, not both")
    if asked.column_aliases:
        for expression in asked.column_aliases.values():
            lance_sql.check(expression)
        extra = {} if result is None or result in asked.column_aliases else {result: result}
        return {**asked.column_aliases, **extra}
    if not asked.column_names:
        return None
    known = frozenset(schema.names)
    for name in asked.column_names:
        # Lance's own columns, such as _rowid, begin with an underscore.
        if name not in known and name != "*" and not name.startswith("_"):
            _require_column(table, schema, name)
    twice = [name for name, times in Counter(asked.column_names).items() if times > 1]
    if twice:
        raise InvalidInput(f"Column '{twice[0]}' is asked for twice")
    more = [] if result is None or result in asked.column_names else [result]
    return [*asked.column_names, *more]


def _probes(query: Query) -> dict[str, int | None]:
    """How many partitions are searched; zero is Lance's choice."""
    least = small("minimum_nprobes", query.minimum_nprobes)
    most = small("maximum_nprobes", query.maximum_nprobes)
    if least or most:
        return {"minimum_nprobes": least, "maximum_nprobes": most}
    return {"nprobes": small("nprobes", query.nprobes) or None}


def _range(query: Query) -> tuple[float | None, float | None] | None:
    bounds = query.lower_bound, query.upper_bound
    if bounds == (None, None):
        return None
    for bound in bounds:
        if bound is not None and not isfinite(bound):
            raise InvalidInput("A bound of the distance is not a finite number")
    return bounds


def _check_size(results: int, each: int) -> None:
    if results * each > MAX_SEARCH_BYTES:
        raise InvalidInput(
            f"A search for {results} results of this table takes too much memory; "
            f"at most {MAX_SEARCH_BYTES // each} are possible",
            detail="Ask for a smaller k, offset, refine_factor, or number of vectors.",
        )


def _batches(plan: _Plan, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        with plan.refusing():
            yield from _without_first(reader, plan.skipped) if plan.skipped else reader
    finally:
        reader.close()


def _without_first(reader: pa.RecordBatchReader, skipped: int) -> Iterator[pa.RecordBatch]:
    """The results of several query vectors without the first ones of each."""
    passed: Counter[int] = Counter()
    for batch in reader:
        queries = batch.column("query_index").to_numpy()
        keep = np.zeros(len(queries), dtype=bool)
        for index in np.unique(queries):
            (places,) = np.nonzero(queries == index)
            keep[places[max(skipped - passed[index], 0) :]] = True
            passed[index] += len(places)
        yield batch.filter(pa.array(keep))
