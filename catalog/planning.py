"""Statistics of tables, and the rules by which actions propose jobs.

Pure functions without database access. ``catalog.maintenance_actions.plan`` collects the proposals.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from catalog.policies import EffectivePolicy, Mode

SIZE_CLASSES = tuple(4**power * 1024**2 for power in range(6))
"""Bounds in bytes between the classes of data files by size: 1 MiB to 1 GiB."""
LARGEST_PARTITIONS = 10
_LARGEST = 2**63 - 1
_GROWTH = 0.1
"""The share by which a table may grow or shrink before searches are measured again."""
_UNTRAINED = 0.05
"""Least share of rows added since the training for which a rebuild can improve searches."""


@dataclass(frozen=True, slots=True)
class StaleIndex:
    """An index, and the number of rows that it does not cover."""

    name: str
    unindexed_rows: int


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An index, and its degradation since it was built."""

    name: str
    segments: int
    """A search reads all segments."""
    bytes: int
    trained_version: int | None = None
    """The version of the table on which a vector index was trained; None for other types, which do
    not degrade with rows that are added later."""
    trained_rows: int = 0
    """The number of rows of the table at that version."""
    obstacle: str = ""
    """The reason why the index cannot be rebuilt. Determined only for a degraded index."""

    def untrained_rows(self, rows: int) -> int:
        """The number of rows added since the index was trained, of ``rows`` in all."""
        return 0 if self.trained_version is None else max(rows - self.trained_rows, 0)


@dataclass(frozen=True, slots=True)
class IndexSearch:
    """Searches of sampled vectors in a vector index, compared with exact searches."""

    name: str
    recall: float
    """The share of the nearest rows that searches returned."""
    search_ms: float
    """The median time of a search."""
    exact_ms: float
    """The median time of a search that reads all vectors."""
    rows: int
    """The number of rows of the table when it was measured."""
    trained_version: int | None = None
    """A later training makes the measurement obsolete."""

    def is_current(self, rows: int) -> bool:
        """True if the table still has about as many rows as when it was measured."""
        return abs(rows - self.rows) <= _GROWTH * self.rows


@dataclass(frozen=True, slots=True)
class MissingIndex:
    """A column by which queries search or filter, and that no index serves."""

    column: str
    index_type: str
    queries: int
    """The number of such queries in the last week."""
    bytes: int
    """About the number of bytes of the column, which each of these queries reads."""
    distance_type: str = ""
    """That of most searches, for a vector index."""


def bounded(number: int) -> int:
    """The number, or the nearest integer that PostgreSQL can store."""
    return max(-_LARGEST, min(number, _LARGEST))


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """The live data files of a partition."""

    name: str
    """As in paths of files, ``day=2013-01-31/origin=JFK``; empty for files without a partition."""
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of a table from cheap metadata. Its policy decides what is small or old."""

    format: str
    version: int
    rows: int
    deleted_rows: int
    files: int
    """The number of data files; of fragments for a Lance table."""
    bytes: int
    small_files: int
    rewrite_files: int
    """Files that compaction would rewrite: small files, and files with many deleted rows."""
    rewrite_bytes: int
    rewritten_files: int
    """The number of files that would replace them."""
    versions: int
    """Versions, or snapshots, that exist."""
    old_versions: int
    """Versions that the policy does not retain."""
    removable_files: int = 0
    """Files that only these versions refer to."""
    removable_bytes: int = 0
    removable_is_estimate: bool = False
    orphan_files: int = 0
    """Orphans that the last dry run listed, if no job has removed orphans since."""
    orphan_bytes: int = 0
    metadata_bytes: int = 0
    stale_indexes: tuple[StaleIndex, ...] = ()
    indexes: int = 0
    built_indexes: tuple[BuiltIndex, ...] = ()
    index_searches: tuple[IndexSearch, ...] = ()
    """The last measurements of the present vector indexes."""
    missing_indexes: tuple[MissingIndex, ...] = ()
    manifests: int = 0
    rewritten_manifests: int = 0
    """The number of manifests after rewriting them."""
    delete_files: int = 0
    rewritten_delete_files: int = 0
    """The number of position delete files after rewriting them."""
    equality_delete_files: int = 0
    equality_deletes: int = 0
    """The keys in equality delete files that apply to data. Each key deletes the older rows that have
    it. Their number is known only by reading the data, so ``deleted_rows`` does not consider them."""
    deletion_vectors: int = 0
    dangling_position_deletes: int = 0
    """Position delete files that apply to no data file; readers still find them in the manifests."""
    dangling_equality_deletes: int = 0
    dangling_vectors: int = 0
    reads_per_day: float | None = None
    """Reads on an average day of the last week; None if not known yet."""
    unsorted_files: int = 0
    """Data files that do not have the sort order of the policy; 0 if it requires none."""
    unsorted_bytes: int = 0
    min_rows: int | None = None
    """The least number of rows, if equality deletes make ``rows`` an upper bound; None if ``rows`` is
    exact."""
    is_in_object_store: bool = False
    file_sizes: tuple[int, ...] = ()
    """Numbers of data files below each bound of ``SIZE_CLASSES``, and above the last one. Files of unknown
    size are left out; of very large tables, so are those that were not read."""
    partitions: int = 0
    largest_partitions: tuple[PartitionSize, ...] = ()
    """The partitions with the most bytes, at most ``LARGEST_PARTITIONS``."""

    @property
    def dangling_deletes(self) -> int:
        """Delete files of all kinds that apply to no data file."""
        return (
            self.dangling_position_deletes + self.dangling_equality_deletes + self.dangling_vectors
        )

    @property
    def applying_equality_delete_files(self) -> int:
        return self.equality_delete_files - self.dangling_equality_deletes

    def as_json(self) -> dict[str, Any]:
        """The figures, within the range of integers of PostgreSQL: writers of files choose some of them."""
        figures = asdict(self)
        return figures | {
            name: bounded(value) for name, value in figures.items() if type(value) is int
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read the result of ``as_json``, also of another version: missing fields are 0."""
        values = {attribute.name: document.get(attribute.name, 0) for attribute in fields(cls)}
        values |= {name: document.get(name) for name in ("min_rows", "reads_per_day")}
        stale = tuple(StaleIndex(**index) for index in document.get("stale_indexes") or ())
        built = tuple(BuiltIndex(**index) for index in document.get("built_indexes") or ())
        searches = tuple(IndexSearch(**index) for index in document.get("index_searches") or ())
        missing = tuple(MissingIndex(**index) for index in document.get("missing_indexes") or ())
        indexes = {"built_indexes": built, "index_searches": searches, "missing_indexes": missing}
        largest = document.get("largest_partitions") or ()
        layout = {
            "file_sizes": tuple(document.get("file_sizes") or ()),
            "largest_partitions": tuple(PartitionSize(**partition) for partition in largest),
        }
        return cls(**{**values, "stale_indexes": stale, **indexes, **layout})


def count_by_size(sizes: Iterable[int]) -> tuple[int, ...]:
    """Numbers of files by the classes of ``SIZE_CLASSES``; empty if there are no files."""
    counts = [0] * (len(SIZE_CLASSES) + 1)
    for size in sizes:
        counts[bisect_right(SIZE_CLASSES, size)] += 1
    return tuple(counts) if any(counts) else ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A job that an action proposes for a table, with its estimated effect and cost."""

    reason: str
    files_gone: int = 0
    """The reduction of the number of files."""
    bytes_gone: int = 0
    """The number of bytes that are freed in storage."""
    is_estimate: bool = False
    """True if the numbers are not exact."""
    bytes_read: int = 0
    """The number of bytes to read and write, which is the cost of the job."""
    is_for_spark: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """A proposed job, with the action that proposes it and its mode under the table's policy."""

    kind: str
    """Key of the action."""
    mode: Mode
    reason: str
    files_gone: int
    bytes_gone: int
    is_estimate: bool
    bytes_read: int
    is_for_spark: bool
    parameters: dict[str, Any]

    @classmethod
    def of(cls, kind: str, mode: Mode, proposal: Proposal) -> Self:
        return cls(
            kind,
            mode,
            proposal.reason,
            proposal.files_gone,
            proposal.bytes_gone,
            proposal.is_estimate,
            proposal.bytes_read,
            proposal.is_for_spark,
            proposal.parameters,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def has_many_equality_deletes(*, files: int, keys: int, rows: int, policy: EffectivePolicy) -> bool:
    """True if data files should be rewritten to apply their equality deletes.

    Every reader compares each older row with all keys, so equality deletes cost more than others.
    """
    return bool(files) and (
        files >= policy["min_delete_files"] or keys > policy["deleted_ratio"] * max(rows, 1)
    )


def must_sort_all(*, files: int, unsorted_bytes: int, size: int, policy: EffectivePolicy) -> bool:
    """True if compaction should rewrite all data files, because too many of them are not sorted.

    A single file is not worth it: readers skip whole files.
    """
    return files > 1 and unsorted_bytes > policy["unsorted_ratio"] * size


def degraded_indexes(statistics: Statistics, policy: EffectivePolicy) -> Mapping[str, BuiltIndex]:
    """The indexes that should be rebuilt and can be, by name."""
    searches = current_searches(statistics)
    return {
        index.name: index
        for index in statistics.built_indexes
        if not index.obstacle
        and rebuild_reason(index, statistics.rows, policy, searches.get(index.name))
    }


def current_searches(statistics: Statistics) -> Mapping[str, IndexSearch]:
    """The measurements of vector indexes that still hold, by the name of the index."""
    searches = statistics.index_searches
    return {search.name: search for search in searches if search.is_current(statistics.rows)}


def rebuild_reason(
    index: BuiltIndex, rows: int, policy: EffectivePolicy, search: IndexSearch | None
) -> str:
    """The reason to rebuild an index of a table with ``rows`` rows; empty if there is none.

    ``search`` is the current measurement of a vector index. Without it, the rows that were added
    since the training decide. A rebuild improves the results only if there are such rows.
    """
    if index.segments > policy["index_segments"]:
        return f"'{index.name}' is in {index.segments} segments"
    untrained = index.untrained_rows(rows)
    if search is None:
        if untrained > policy["untrained_ratio"] * rows:
            return f"{untrained} of {rows} rows were added after '{index.name}' was trained"
        return ""
    if untrained > _UNTRAINED * rows and search.recall < policy["min_recall"]:
        return f"the recall of '{index.name}' is {search.recall:.0%}"
    limit = policy["max_search_ms"]
    is_worn = index.segments > 1 or untrained > _UNTRAINED * rows
    if is_worn and limit and search.search_ms > limit:
        return f"a search in '{index.name}' takes {search.search_ms:.0f} ms"
    return ""


def is_worth_rewriting(removed: int, files: int) -> bool:
    """True if at least a quarter of the files would go, because all of them are rewritten."""
    return removed > 0 and removed >= files / 4


def segments_to_merge(segments: Sequence[int], new: int) -> int:
    """The number of an index's newest segments to merge with ``new`` rows.

    ``segments`` are the rows of each segment, oldest first. A segment is merged if it is not larger
    than the rows merged so far, so that a row is rewritten only when the index doubles.
    """
    merged = 0
    for rows in reversed(segments):
        if rows > new:
            break
        new += rows
        merged += 1
    return merged
