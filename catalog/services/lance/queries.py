"""Query Lance tables: searches, scans, counts, and query plans.

A query is a request of the protocol (spec: QueryTableRequest). It is a vector search if it has
vectors, a full-text search if it has a full-text query, and a scan otherwise.
"""

from array import array
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
from lance.dataset import LanceScanner
from lance_namespace_urllib3_client import models as m

from catalog.access import Principal
from catalog.errors import ContradictoryInput, InvalidInput
from catalog.formats.lance import sql as lance_sql
from catalog.formats.lance import sql_growth
from catalog.identifiers import Identifier
from catalog.services.lance import datasets, time_limits
from catalog.services.lance import full_text as lance_full_text
from catalog.services.lance.containment import calls
from catalog.services.lance.errors import refusing
from catalog.services.lance.full_text import small
from catalog.services.lance.ledger.snapshots import Snapshot
from catalog.services.lance.rehearsals import rehearse
from catalog.services.lance.scans import query_columns, scanners, search_batches, sorted_rows
from catalog.services.lance.scans.plans import Plan
from catalog.services.lance.scans.scanners import Ordering
from catalog.services.lance.scans.vector_columns import (
    find_column,
    find_vector_column,
)
from catalog.services.tables import usage
from catalog.storage import locations

Query = m.QueryTableRequest | m.AnalyzeTableQueryPlanRequest

DEFAULT_K = 10
"""Number of results of a vector search whose k is 0."""
MAX_SEARCH_BYTES = 256 << 20
"""Maximum size of the results of a search, which Lance ranks in memory."""
_RESULT_BYTES = 64  # size of a result without its vector: distance or score, and row id
_MAX_ROWS = 2**62


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of a query, read on demand."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    may_be_cached: bool
    """False if the next reader may lack the right to read the files of other tables that have these rows."""


def find(*, actor: Principal, table: Identifier, query: Query, branch: str = "") -> Snapshot:
    """Find the version to query. Raises the errors of ``datasets.find_snapshot``."""
    version = query.version
    snapshot = datasets.find_snapshot(actor=actor, table=table, version=version, branch=branch)
    usage.count(actor, table, usage.Read.QUERY)
    return snapshot


def query(*, actor: Principal, snapshot: Snapshot, query: Query) -> Rows:
    """Return the rows that match a query, for the actor. Dropping the batches early ends the scan.

    Raises ColumnNotFound, InvalidInput, and the errors of ``datasets.open_dataset``. Errors that
    occur while rows are read, such as a division by zero, are raised by the batches.
    """
    plan = _plan(actor, snapshot, query)
    if orderings := scanners.orderings(query):
        return _sorted(actor, snapshot, query, plan, orderings)
    may_be_cached = plan.dataset.has_only_own_files
    with plan.refusing():
        if _may_share(snapshot, plan):
            rows = time_limits.read(plan.dataset, plan.principal, plan.search)
            result = Rows(rows.schema, iter(rows.to_batches()), may_be_cached)
        else:
            reader = plan.run(LanceScanner.to_reader)
            result = Rows(reader.schema, _batches(plan, reader), may_be_cached)
    query_columns.count(actor, snapshot, query, plan.searched_column)
    return result


def count_rows(
    *,
    actor: Principal,
    table: Identifier,
    predicate: str | None = None,
    version: int | None = None,
    branch: str = "",
) -> int:
    """Return the number of rows, or of the rows that match the predicate.

    Without a predicate no data is read. Raises the errors of ``query``.
    """
    lance_sql.check(predicate or "")
    dataset = datasets.read(actor=actor, table=table, version=version, branch=branch)
    usage.count(actor, table, usage.Read.QUERY)
    with refusing(table):
        rows = int(
            time_limits.read(
                dataset,
                actor.name,
                lambda: dataset.count_rows(predicate or None),
                [predicate or ""],
            )
        )
    if predicate and not branch:
        query_columns.count_filter(actor, table, predicate)
    return rows


def explain(
    *,
    actor: Principal,
    table: Identifier,
    query: Query,
    branch: str = "",
    is_verbose: bool = False,
) -> str:
    """Return the plan of a query without reading data. Raises the errors of ``query``."""
    snapshot = find(actor=actor, table=table, query=query, branch=branch)
    title, plan = _described(actor, snapshot, query)
    with plan.refusing():
        return title + str(plan.run(lambda scanner: scanner.explain_plan(is_verbose)))


def analyze(*, actor: Principal, table: Identifier, query: Query, branch: str = "") -> str:
    """Run a query and return its plan with measured costs. Raises the errors of ``query``."""
    snapshot = find(actor=actor, table=table, query=query, branch=branch)
    title, plan = _described(actor, snapshot, query)
    with plan.refusing():
        return title + str(plan.run(LanceScanner.analyze_plan))


def _plan(actor: Principal, snapshot: Snapshot, query: Query) -> Plan:
    table = snapshot.table
    lance_sql.check(query.filter or "")
    dataset = datasets.open_dataset(snapshot)
    with refusing(table):
        _rehearse(actor, dataset, query)
        vectors = _vectors(query.vector)
        full_text = lance_full_text.search(table, dataset, query.full_text_query)
        if vectors and full_text:
            raise ContradictoryInput(
                "A query searches vectors or text, not both",
                detail="Send two queries with with_row_id, and merge their results by '_rowid'.",
            )
        # At most 2**62 each, so that their sum fits into 64 bits.
        k, offset = min(query.k, _MAX_ROWS), min(query.offset or 0, _MAX_ROWS)
        options: dict[str, Any] = {
            "filter": query.filter or None,
            "prefilter": query.prefilter,
            "with_row_id": query.with_row_id,
            "fast_search": query.fast_search,
        }
        if vectors:
            return _vector_plan(
                actor=actor,
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
            options |= scanners.bounds(options["columns"])
        return Plan(table, actor.name, dataset, options)


def _rehearse(actor: Principal, dataset: datasets.OpenVersion, query: Query) -> None:
    aliases = query.columns.column_aliases if query.columns else None
    if not aliases:
        return
    expressions = tuple(aliases.values())
    for expression in expressions:
        lance_sql.check(expression)
    sql_growth.check_values(expressions)
    time_limits.read(dataset, actor.name, lambda: rehearse(dataset, expressions), expressions)


def _vector_plan(
    *,
    actor: Principal,
    table: Identifier,
    dataset: datasets.OpenVersion,
    query: Query,
    vectors: list[pa.Array],
    k: int,
    offset: int,
    options: dict[str, Any],
) -> Plan:
    schema = dataset.schema
    column, kind = find_vector_column(table, schema, query.vector_column, dataset.vector_columns)
    of_many = not pa.types.is_fixed_size_list(kind)  # each row has several vectors
    dimensions = (kind.value_type if of_many else kind).list_size
    for vector in vectors:
        if len(vector) != dimensions:
            raise InvalidInput(
                f"The query vector has {len(vector)} dimensions, and column '{column}' "
                f"has {dimensions}"
            )
    is_batch = bool(query.vector.multi_vector)
    # Lance allocates memory for all requested results, even if the table has fewer rows.
    rows = max(dataset.count_rows(), 1)
    result_limit = min(k + offset, rows)
    refine = min(small("refine_factor", query.refine_factor) or 0, -(-rows // result_limit))
    ef = small("ef", query.ef)
    searches = len(vectors) if is_batch and not of_many else 1
    _check_size(result_limit * max(refine, 1) * searches, _RESULT_BYTES + 4 * dimensions)
    options["columns"] = _columns(table, schema, query.columns, "_distance")
    search = {
        "column": column,
        "q": vectors if is_batch else vectors[0],
        "k": result_limit,
        "metric": query.distance_type,
        "refine_factor": refine or None,
        "ef": max(min(ef, rows), result_limit) if ef else None,
        "use_index": not query.bypass_vector_index,
        "distance_range": _range(query),
        **_probes(query),
        **scanners.more_options(query),
    }
    skipped = offset if searches > 1 else 0
    options["offset"] = offset - skipped or None
    return Plan(
        table,
        actor.name,
        dataset,
        options,
        search,
        skipped,
        may_share=not (is_batch or of_many or offset)
        and search_batches.is_possible(schema, dataset.index_types, result_limit),
    )


def _described(actor: Principal, snapshot: Snapshot, query: Query) -> tuple[str, Plan]:
    """The plan to describe, and the line above it."""
    plan = _plan(actor, snapshot, query)
    if orderings := scanners.orderings(query):
        keys = sorted_rows.keys_of(query, orderings, plan.dataset.schema)
        return sorted_rows.title(orderings), _plan(actor, snapshot, keys)
    return "", plan


def _sorted(
    actor: Principal, snapshot: Snapshot, query: Query, plan: Plan, orderings: list[Ordering]
) -> Rows:
    with plan.refusing():
        schema = plan.run(lambda scanner: scanner.projected_schema)
    keys_query = sorted_rows.keys_of(query, orderings, plan.dataset.schema)
    keys_plan = _plan(actor, snapshot, keys_query)
    limit = min(query.k, _MAX_ROWS) or None
    offset = min(query.offset or 0, _MAX_ROWS)
    with keys_plan.refusing():
        keys = sorted_rows.sort(
            dataset=plan.dataset,
            principal=actor.name,
            keys=keys_plan.run(LanceScanner.to_reader),
            orderings=orderings,
            limit=limit and limit + offset,
            expressions=keys_plan.expressions,
        )
    query_columns.count(actor, snapshot, query, plan.searched_column)
    batches = sorted_rows.read(
        dataset=plan.dataset,
        principal=actor.name,
        keys=keys.slice(offset, limit),
        schema=schema,
        columns=query.columns,
    )
    return Rows(schema, _contained(plan, batches), plan.dataset.has_only_own_files)


def _vectors(requested: m.QueryTableRequestVector) -> list[pa.Array]:
    """Return the query vectors for Lance. Clients send an empty vector for none."""
    if requested.single_vector and requested.multi_vector:
        raise ContradictoryInput("A query has a single_vector or a multi_vector, not both")
    if requested.single_vector:
        return [_vector(requested.single_vector)]
    vectors = requested.multi_vector or []
    return [_vector(vector) for vector in vectors] if any(vectors) else []


def _vector(numbers: list[float | int]) -> pa.Array:
    values = array("f", numbers)
    if not isfinite(sum(values)):  # finite if all are: they have 32 bits, and their sum has 64
        raise InvalidInput("A query vector holds what is not a finite number of 32 bits")
    return pa.Array.from_buffers(pa.float32(), len(values), [None, pa.py_buffer(values)])


def _columns(
    table: Identifier,
    schema: pa.Schema,
    requested: m.QueryTableRequestColumns | None,
    result: str | None = None,
) -> list[str] | dict[str, str] | None:
    """Return the columns to select, or None for all. They include the result column of a search."""
    if requested is None:
        return None
    if requested.column_names and requested.column_aliases:
        raise ContradictoryInput("A query has column_names or column_aliases, not both")
    if requested.column_aliases:
        extra = {} if result is None or result in requested.column_aliases else {result: result}
        return {**requested.column_aliases, **extra}
    if not requested.column_names:
        return None
    known_names = frozenset(schema.names)
    for name in requested.column_names:
        # Lance's own columns, such as _rowid, begin with an underscore.
        if name not in known_names and name != "*" and not name.startswith("_"):
            find_column(table, schema, name)
    twice = [name for name, times in Counter(requested.column_names).items() if times > 1]
    if twice:
        raise InvalidInput(f"Column '{twice[0]}' is requested twice")
    more = [] if result is None or result in requested.column_names else [result]
    return [*requested.column_names, *more]


def _probes(query: Query) -> dict[str, int | None]:
    """Return the numbers of partitions to search; zero leaves the choice to Lance."""
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


def _check_size(results: int, result_bytes: int) -> None:
    if results * result_bytes > MAX_SEARCH_BYTES:
        raise InvalidInput(
            f"A search for {results} results of this table takes too much memory; "
            f"at most {MAX_SEARCH_BYTES // result_bytes} are possible",
            detail="Ask for a smaller k, offset, refine_factor, or number of vectors.",
        )


def _may_share(snapshot: Snapshot, plan: Plan) -> bool:
    """True if a search may wait for others: it is short, and waits for the processor, not for storage."""
    return plan.may_share and not locations.is_object(snapshot.location) and not plan.may_take_long


def _batches(plan: Plan, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with plan.translating():
        batches = _contained(
            plan, time_limits.batches(plan.dataset, plan.principal, reader, plan.expressions)
        )
        yield from _without_first(batches, plan.skipped) if plan.skipped else batches


def _contained(
    plan: Plan, batches: Generator[pa.RecordBatch, None, None]
) -> Iterator[pa.RecordBatch]:
    """Contain each call of Lance for the next batch, but not the time in which nobody asks for it."""
    with closing(batches):
        yield from calls.each(plan.table, plan.principal, batches)


def _without_first(batches: Iterator[pa.RecordBatch], skipped: int) -> Iterator[pa.RecordBatch]:
    """Skip the first results of each query vector."""
    passed: Counter[int] = Counter()
    for batch in batches:
        queries = batch.column("query_index").to_numpy()
        keep = np.zeros(len(queries), dtype=bool)
        for index in np.unique(queries):
            (places,) = np.nonzero(queries == index)
            keep[places[max(skipped - passed[index], 0) :]] = True
            passed[index] += len(places)
        yield batch.filter(pa.array(keep))
