"""Recall and time of searches in the vector indexes of a Lance table.

A job searches for sampled vectors of the table with the index and without it, as queries without
parameters do, and compares the results. The measurement of a table takes the figures from the last
job, as long as the index has the same training.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import pyarrow as pa
from lance.dataset import LanceDataset

from catalog.errors import CatalogError, InvalidInput
from catalog.formats.lance.paths import quoted_path
from catalog.identifiers import label
from catalog.models import Job, JobEvent, JobStatus, Table
from catalog.planning import IndexSearch
from catalog.services.engine import jobs
from catalog.services.engine.jobs import Report
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.errors import refusing
from catalog.services.lance.indexes.index_types import find_kind
from catalog.services.lance.indexes.indexes import IndexSummary, index_summaries
from catalog.services.lance.scans import scanners
from catalog.services.maintenance import lance_rebuilds

_QUERIES = 30
_NEIGHBORS = 10
_MAX_TIES = 50
"""Rows of an exact search; equal vectors are equally right answers."""
_SECONDS = 300.0
"""Time after which no further vector of an index is searched for."""


def measure_recall(job: Job, report: Report) -> Mapping[str, Any]:
    """Measure the vector indexes of the newest version. Raises InvalidInput if none can be searched."""
    actor, table = jobs.principal(job), jobs.identify(job)
    dataset = lance_datasets.read(actor=actor, table=table)
    with refusing(table):
        indexes = [index for index in index_summaries(dataset) if is_vector(index)]
    if not indexes:
        raise InvalidInput(f"Table '{label(table)}' has no vector index")
    outcome = {
        "plan": {"indexes": [index.name for index in indexes], "queries": _QUERIES},
        "before": {"searches": [asdict(search) for search in last_searches(job.table, indexes)]},
    }
    if job.is_dry_run:
        return outcome
    searches: list[IndexSearch] = []
    skipped: dict[str, str] = {}
    report(0, len(indexes) * _QUERIES)
    for number, index in enumerate(indexes):

        def progress(searched: int, before: int = number * _QUERIES) -> None:
            report(before + searched, None)

        try:
            with refusing(table):
                searches.append(_measure(job, dataset, index, progress))
        except (CatalogError, ValueError, pa.ArrowException) as refused:
            skipped[index.name] = str(refused)
            jobs.log_event(job, f"index '{index.name}': {refused}", JobEvent.Level.WARNING)
    if not searches:
        raise InvalidInput("; ".join(skipped.values()))
    report(len(indexes) * _QUERIES, None)
    measured: dict[str, Any] = {
        "after": {
            "version": dataset.version,
            "searches": [asdict(search) for search in searches],
        }
    }
    if skipped:
        measured |= {"left": skipped, "note": "not measured: " + ", ".join(sorted(skipped))}
    return {**outcome, **measured}


def is_vector(index: IndexSummary) -> bool:
    kind = find_kind(index.type)
    return kind is not None and kind.is_vector


def last_searches(table: Table, indexes: Sequence[IndexSummary]) -> tuple[IndexSearch, ...]:
    """The last measurements of indexes that have the same training now. One statement at most."""
    trained = {index.name: index.trained_version for index in indexes if is_vector(index)}
    if not trained:
        return ()
    measured = Job.objects.filter(
        table=table, kind="measure_recall", status=JobStatus.SUCCEEDED, is_dry_run=False
    )
    result = measured.order_by("-pk").values_list("result", flat=True).first() or {}
    searches = (result.get("after") or {}).get("searches") or ()
    return tuple(
        IndexSearch(**search)
        for search in searches
        if trained.get(search["name"], -1) == search["trained_version"]
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    distances: Mapping[int, float]
    """By row, the nearest first."""
    seconds: float


def _measure(
    job: Job, dataset: LanceDataset, index: IndexSummary, progress: Callable[[int], None]
) -> IndexSearch:
    """Search for sampled vectors. Raises InvalidInput if the table has no vectors.

    ``progress`` gets the number of vectors that were searched for.
    """
    rows = dataset.count_rows()
    column = lance_rebuilds.public_path(dataset, index.columns[0])
    hits = possible = 0
    times: list[tuple[float, float]] = []
    began = time.monotonic()
    for own_row, vector in _sample(dataset, column, rows, seed=job.pk):
        if not times:
            _search(dataset, index, column, vector, own_row, uses_index=True)  # loads the index
        answer = _search(dataset, index, column, vector, own_row, uses_index=True)
        exact = _search(dataset, index, column, vector, own_row, uses_index=False)
        nearest = _nearest(exact.distances)
        expected = min(_NEIGHBORS, len(nearest))
        hits += min(len(nearest & set(list(answer.distances)[:_NEIGHBORS])), expected)
        possible += expected
        times.append((answer.seconds, exact.seconds))
        progress(len(times))
        if time.monotonic() - began > _SECONDS:
            break
    if not possible:
        raise InvalidInput(f"Column '{column}' has fewer than two vectors")
    jobs.log_event(job, f"searched '{index.name}' for {len(times)} vectors")
    return IndexSearch(
        index.name,
        round(hits / possible, 4),
        round(1000 * median(seconds for seconds, _ in times), 3),
        round(1000 * median(seconds for _, seconds in times), 3),
        rows,
        index.trained_version,
    )


def _sample(
    dataset: LanceDataset, column: str, rows: int, *, seed: int
) -> Iterator[tuple[int, pa.Array]]:
    """Vectors of random rows, each with the id of its row. Raises ValueError for deletion files of other fragments.

    A scan compares deletion files with their fragments. Lance's ``take`` does not, and searches endlessly for a row
    if a forged one deletes all numbers of rows.
    """
    for _ in dataset.scanner(columns=["_rowid"]).to_batches():
        pass
    chosen = sorted(random.Random(seed).sample(range(rows), min(_QUERIES, rows)))  # noqa: S311
    columns = {"_rowid": "_rowid", "vector": quoted_path(column)}
    sample = dataset.take(chosen, columns=columns)
    for own_row, scalar in zip(sample["_rowid"].to_pylist(), sample["vector"], strict=True):
        if not scalar.is_valid:
            continue
        values = scalar.values
        if pa.types.is_fixed_size_list(values.type):  # a list of vectors: search for the first one
            if not len(values):
                continue
            values = values[0].values
        yield own_row, values


def _search(
    dataset: LanceDataset,
    index: IndexSummary,
    column: str,
    vector: pa.Array,
    own_row: int,
    *,
    uses_index: bool,
) -> _Answer:
    """The rows nearest to a vector, without the row that has it."""
    search = {
        "column": column,
        "q": vector,
        "k": _NEIGHBORS + 1 if uses_index else _MAX_TIES,
        "metric": index.distance_type,
        "use_index": uses_index,
    }
    options = {"columns": ["_distance"], "with_row_id": True}
    scanner = scanners.nearest(dataset, search, options)
    began = time.perf_counter()
    answer = scanner.to_table()
    seconds = time.perf_counter() - began
    rows = zip(answer["_rowid"].to_pylist(), answer["_distance"].to_pylist(), strict=True)
    return _Answer({row: distance for row, distance in rows if row != own_row}, seconds)


def _nearest(distances: Mapping[int, float]) -> frozenset[int]:
    """The nearest rows of an exact search, with all those that are as near as the last of them."""
    ordered = list(distances.values())
    last = ordered[min(_NEIGHBORS, len(ordered)) - 1] if ordered else 0.0
    return frozenset(row for row, distance in distances.items() if distance <= last)
