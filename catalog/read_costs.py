"""The expected cost of reading a table, and the score of its health, which is derived from it.

Costs are in bytes: a request costs as much as reading ``REQUEST`` bytes, which is the time of a round
trip to an object store at the speed of one connection. The cost of a read is that of the whole table,
or, for indexes, of a search. ``docs/maintenance.md`` explains the formula to users.

    score = 100 × (BASE + cost after maintenance) / (BASE + cost now)

``BASE`` is what any query costs, so that a tiny table of few files is not bad. A table that hardly
anybody reads loses fewer points, so that it waits.

Pure functions without database access.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from catalog.planning import IndexSearch, Statistics, current_searches, degraded_indexes
from catalog.policies import EffectivePolicy

MIB = 1024**2
REQUEST = 4 * MIB
FILE_REQUESTS = {"lance": 3, "iceberg": 2}
"""Requests for a file, by table format. Lance reads the end of a file, then each column by itself: three requests for
two columns of a small file. The number of columns that readers select is unknown. Readers of Iceberg tables request the
end of a Parquet file, then the columns together; also of a file of position or equality deletes."""
BASE = 16 * REQUEST
DANGLING = 0.1
"""Cost of listing a delete file that applies to nothing, in requests: it is not opened."""
COMPARISON = 0.5
"""Cost of comparing rows with the keys of equality deletes, relative to reading them."""
RECALL = 0.25
"""Cost of a search in an index that was trained on none of the rows, relative to reading them."""
DAYS_OF_QUERIES = 7
"""The period of the queries for which an index is missing."""
STORAGE = 0.02
"""Weight of bytes that nobody reads: versions that the policy does not retain."""
UNREAD_WEIGHT = 0.25
"""Weight of the points that a table loses if nobody reads it."""
FULL_READS = 10
"""Reads a day from which the points count in full."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A part of the cost of reading that maintenance removes."""

    reason: str
    bytes: int
    """The cost in bytes."""
    points: float
    """The points of the score that it costs."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Health:
    """Score of a table, and what it lost points for, the most expensive first."""

    score: int
    costs: tuple[Cost, ...]
    weight: float
    """Weight of the lost points for the use of the table, at most 1."""


def assess(statistics: Statistics, policy: EffectivePolicy) -> Health:
    """The score of a table, from 0 (reads cost many times more than necessary) to 100."""
    savings = [(reason, cost) for reason, cost in _savings(statistics, policy) if cost >= 1]
    saved = sum(cost for _, cost in savings)
    now = BASE + max(_ideal(statistics), 0) + saved
    weight = use_weight(statistics.reads_per_day)
    costs = (
        Cost(reason, round(cost), round(100 * weight * cost / now, 1)) for reason, cost in savings
    )
    # Rounded down, so that 100 means that nothing is left to do.
    return Health(
        math.floor(100 - 100 * weight * saved / now),
        tuple(sorted(costs, key=lambda cost: -cost.bytes)),
        weight,
    )


def score(statistics: Statistics, policy: EffectivePolicy) -> int:
    return assess(statistics, policy).score


def use_weight(reads_per_day: float | None) -> float:
    """The weight of lost points; 1 if the use of the table is not known yet."""
    if reads_per_day is None:
        return 1.0
    use = min(math.log1p(reads_per_day) / math.log1p(FULL_READS), 1.0)
    return UNREAD_WEIGHT + (1 - UNREAD_WEIGHT) * use


def _ideal(s: Statistics) -> float:
    """The cost of a read after maintenance."""
    files = s.files - max(s.rewrite_files - s.rewritten_files, 0)
    requests = files * FILE_REQUESTS[s.format] + s.rewritten_manifests
    return s.bytes * (1 - _deleted_share(s)) + REQUEST * requests


def _savings(s: Statistics, policy: EffectivePolicy) -> Iterator[tuple[str, float]]:
    """Each reason for an unnecessary cost, with the cost in bytes."""
    saved_files = max(s.rewrite_files - s.rewritten_files, 0)
    per_file = REQUEST * FILE_REQUESTS[s.format]
    yield f"{saved_files} files more than necessary", per_file * saved_files
    yield f"{s.deleted_rows} deleted rows", s.bytes * _deleted_share(s)
    # Compaction applies the deletes of the files that it rewrites. It is unknown which deletes are theirs.
    applied = min(s.rewrite_files / max(s.files, 1), 1.0)
    position_deletes = s.delete_files - s.dangling_position_deletes
    merged = max(position_deletes - s.rewritten_delete_files, round(position_deletes * applied))
    yield f"{merged} delete files more than necessary", per_file * merged
    vectors = round((s.deletion_vectors - s.dangling_vectors) * applied)
    yield f"{vectors} deletion vectors more than necessary", REQUEST * vectors
    uncertain = 0 if s.min_rows is None else s.rows - s.min_rows
    yield (
        f"{s.applying_equality_delete_files} equality delete files, compared with {uncertain} rows",
        per_file * s.applying_equality_delete_files
        + COMPARISON * s.bytes * min(uncertain / max(s.rows, 1), 1.0),
    )
    yield (
        f"{s.dangling_deletes} delete files that apply to no data file",
        DANGLING * REQUEST * s.dangling_deletes,
    )
    manifests = s.manifests - s.rewritten_manifests
    yield f"{manifests} manifests more than necessary", REQUEST * manifests
    yield from _index_savings(s, policy)
    expired = s.old_versions / max(s.versions, 1)
    yield (
        f"{s.old_versions} versions that the policy does not retain",
        STORAGE * (s.removable_bytes + REQUEST * min(s.old_versions, 10))
        + s.metadata_bytes * expired,
    )


def _index_savings(s: Statistics, policy: EffectivePolicy) -> Iterator[tuple[str, float]]:
    for stale in s.stale_indexes:
        share = min(stale.unindexed_rows / max(s.rows, 1), 1.0)
        read = s.bytes + FILE_REQUESTS[s.format] * REQUEST * s.files
        yield f"{stale.unindexed_rows} rows that index '{stale.name}' lacks", share * read
    searches = current_searches(s)
    for index in degraded_indexes(s, policy).values():
        if index.segments > policy["index_segments"]:
            yield f"{index.segments} segments of '{index.name}'", REQUEST * (index.segments - 1)
        search, untrained = searches.get(index.name), index.untrained_rows(s.rows)
        if search is not None:
            yield from _search_savings(s, policy, search)
        elif untrained > policy["untrained_ratio"] * s.rows:
            yield (
                f"recall of '{index.name}', trained before {untrained} rows were added",
                RECALL * s.bytes * untrained / max(s.rows, 1),
            )
    for missing in s.missing_indexes:
        daily = missing.queries / DAYS_OF_QUERIES
        share = min(daily / s.reads_per_day, 1.0) if s.reads_per_day else 1.0
        yield (
            f"no index on '{missing.column}', which {missing.queries} queries used in a week",
            missing.bytes * share,
        )


def _search_savings(
    s: Statistics, policy: EffectivePolicy, search: IndexSearch
) -> Iterator[tuple[str, float]]:
    """The costs of searches in a degraded index, as measured."""
    lost = policy["min_recall"] - search.recall
    yield f"recall {search.recall:.0%} of '{search.name}'", s.bytes * max(lost, 0.0)
    limit = policy["max_search_ms"]
    if limit and search.search_ms > limit:
        share = 1 - limit / search.search_ms
        yield f"searches of {search.search_ms:.0f} ms in '{search.name}'", BASE * share


def _deleted_share(s: Statistics) -> float:
    """The share of the rows that readers skip."""
    return s.deleted_rows / max(s.rows + s.deleted_rows, 1)
