"""What a table's figures and its policy come to: how well it is, and what there is to do. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from catalog.policies import EffectivePolicy, Mode

_MAX_REASON_INDEXES = 3  # indexes of a reason


@dataclass(frozen=True, slots=True)
class StaleIndex:
    """An index, and how many rows of the table it does not know."""

    name: str
    unindexed_rows: int


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """An index, and how it has worn since it was built."""

    name: str
    segments: int
    """A search reads them all."""
    bytes: int
    trained_version: int | None = None
    """The version of the table that a vector index was trained on; None for other types, which
    know a row that is taken in later as well as any."""
    trained_rows: int = 0
    """How many rows the table had then."""
    obstacle: str = ""
    """Why it cannot be built anew. Asked only when it has worn."""

    def untrained_rows(self, rows: int) -> int:
        """How many of so many rows the table has got since."""
        return 0 if self.trained_version is None else max(rows - self.trained_rows, 0)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What cheap metadata says of a table. What is small or old, its policy decides."""

    format: str
    version: int
    rows: int
    deleted_rows: int
    files: int
    """Data files; of a Lance table fragments."""
    bytes: int
    small_files: int
    rewrite_files: int
    """Files that compaction would rewrite: small ones, and those with many deleted rows."""
    rewrite_bytes: int
    rewritten_files: int
    """How many files it would make of them."""
    versions: int
    """Versions, or snapshots, that are kept."""
    old_versions: int
    """Those that the policy keeps no longer."""
    metadata_bytes: int = 0
    stale_indexes: tuple[StaleIndex, ...] = ()
    indexes: int = 0
    built_indexes: tuple[BuiltIndex, ...] = ()
    manifests: int = 0
    rewritten_manifests: int = 0
    """How many would be left if they were rewritten."""
    delete_files: int = 0
    rewritten_delete_files: int = 0
    """The same of the position delete files."""
    equality_delete_files: int = 0
    equality_deletes: int = 0
    """The keys in them. Each deletes the older rows that have it; how many, only reading tells, so
    ``rows`` and ``deleted_rows`` know nothing of them."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """What ``as_json`` made of them, perhaps in another version: what it did not know is 0."""
        values = {attribute.name: document.get(attribute.name, 0) for attribute in fields(cls)}
        stale = tuple(StaleIndex(**index) for index in document.get("stale_indexes") or ())
        built = tuple(BuiltIndex(**index) for index in document.get("built_indexes") or ())
        return cls(**{**values, "stale_indexes": stale, "built_indexes": built})


@dataclass(frozen=True, slots=True)
class Planned:
    """A job that is worth doing."""

    kind: str
    """A JobKind."""
    mode: Mode
    reason: str
    files_gone: int = 0
    """How many files fewer there will be."""
    bytes_read: int = 0
    """What it has to read and write: its cost."""
    is_for_spark: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(statistics: Statistics, policy: EffectivePolicy) -> list[Planned]:
    """What is worth doing, in the order in which it is to be done. What is off is left out."""
    return [job for job in _all(statistics, policy) if job.mode is not Mode.OFF]


def _all(s: Statistics, policy: EffectivePolicy) -> Iterator[Planned]:
    if s.format == "lance":
        # First: Lance does not put fragments that an index knows together with others.
        degraded = {
            index.name: index
            for index in s.built_indexes
            if not index.obstacle and rebuild_reason(index, s.rows, policy)
        }
        stale = [i for i in s.stale_indexes if i.unindexed_rows >= policy["unindexed_rows"]]
        if degraded and policy.mode("index_rebuilds") is Mode.ON:
            stale = [
                index for index in stale if index.name not in degraded
            ]  # that takes them in too
        if degraded:
            yield Planned(
                "rebuild_indexes",
                policy.mode("index_rebuilds"),
                f"{len(degraded)} of {s.indexes} indexes have worn: "
                + ", ".join(
                    rebuild_reason(index, s.rows, policy)
                    for index in list(degraded.values())[:_MAX_REASON_INDEXES]
                ),
                bytes_read=sum(index.bytes for index in degraded.values()),
                parameters={"indexes": list(degraded)},
            )
        if stale:
            most = max(stale, key=lambda index: index.unindexed_rows)
            yield Planned(
                "optimize_indexes",
                policy.mode("indexes"),
                f"{len(stale)} of {s.indexes} indexes are behind, '{most.name}' by"
                f" {most.unindexed_rows} rows",
                parameters={"indexes": [index.name for index in stale]},
            )
    removed = s.rewrite_files - s.rewritten_files
    deleted = s.deleted_rows > policy["deleted_ratio"] * max(s.rows + s.deleted_rows, 1)
    deleted |= has_many_equality_deletes(
        files=s.equality_delete_files, keys=s.equality_deletes, rows=s.rows, policy=policy
    )
    if (s.small_files >= policy["min_small_files"] and removed > 0) or (
        deleted and s.rewrite_files
    ):
        why = f"{s.small_files} of {s.files} files are small"
        if s.deleted_rows:
            why += f", {s.deleted_rows} rows are deleted"
        if s.equality_delete_files:
            why += (
                f", {s.equality_delete_files} equality delete files delete by"
                f" {s.equality_deletes} keys"
            )
        yield Planned(
            "compact",
            policy.mode("compaction"),
            why,
            files_gone=removed,
            bytes_read=s.rewrite_bytes,
            is_for_spark=s.format == "iceberg" or s.rewrite_bytes > policy["spark_above"],
        )
    if s.format == "iceberg":
        yield from _of_iceberg(s, policy)
    if s.old_versions:
        yield Planned(
            "clean_up",
            policy.mode("cleanup"),
            f"{s.old_versions} of {s.versions} versions are older than the policy keeps them",
            is_for_spark=s.format == "iceberg",
        )


def has_many_equality_deletes(*, files: int, keys: int, rows: int, policy: EffectivePolicy) -> bool:
    """Whether data files are worth being rewritten without the rows that equality deletes delete.

    Every reader compares each older row with all keys, so they cost more than other deletes.
    """
    return bool(files) and (
        files >= policy["min_delete_files"] or keys > policy["deleted_ratio"] * max(rows, 1)
    )


def rebuild_reason(index: BuiltIndex, rows: int, policy: EffectivePolicy) -> str:
    """Why an index of a table of so many rows is worth building anew; empty when it is not."""
    if index.segments > policy["index_segments"]:
        return f"'{index.name}' is in {index.segments} segments"
    untrained = index.untrained_rows(rows)
    if untrained > policy["untrained_ratio"] * rows:
        return f"{untrained} of {rows} rows came after '{index.name}' was trained"
    return ""


def _of_iceberg(s: Statistics, policy: EffectivePolicy) -> Iterator[Planned]:
    removed = s.delete_files - s.rewritten_delete_files
    if s.delete_files >= policy["min_delete_files"] and _is_worth_it(removed, s.delete_files):
        yield Planned(
            "rewrite_position_deletes",
            policy.mode("position_deletes"),
            f"{s.rewritten_delete_files} delete files can take the place of {s.delete_files}",
            files_gone=removed,
            is_for_spark=True,
        )
    removed = s.manifests - s.rewritten_manifests
    if s.manifests >= policy["min_manifests"] and _is_worth_it(removed, s.manifests):
        yield Planned(
            "rewrite_manifests",
            policy.mode("manifests"),
            f"{s.rewritten_manifests} manifests can take the place of {s.manifests}",
            files_gone=removed,
            is_for_spark=True,
        )


def _is_worth_it(removed: int, files: int) -> bool:
    """All of them are written anew, so it has to be a part of them that goes."""
    return removed > 0 and removed >= files / 4


def segments_to_merge(segments: Sequence[int], new: int) -> int:
    """How many of an index's newest segments become one with so many new rows.

    ``segments`` are their rows, the oldest first. Those go together that are no larger than what
    goes into them, so a row is written anew as often as the index doubles, and not each time.
    """
    merged = 0
    for rows in reversed(segments):
        if rows > new:
            break
        new += rows
        merged += 1
    return merged


def score(statistics: Statistics, policy: EffectivePolicy) -> int:
    """How well a table is, from 0 to 100: each thing that waits takes its part off."""
    s = statistics
    rows = max(s.rows + s.deleted_rows, 1)
    deleted = s.deleted_rows + s.equality_deletes
    delete_files = s.delete_files - s.rewritten_delete_files + s.equality_delete_files
    worst = max((index.unindexed_rows for index in s.stale_indexes), default=0)
    penalties = (
        (40, s.small_files / s.files if s.files >= policy["min_small_files"] else 0.0),
        (25, min(deleted / rows / max(policy["deleted_ratio"], 0.01) / 2, 1.0)),
        (15, min(worst / rows * 2, 1.0)),
        (10, s.old_versions / max(s.versions, 1)),
        (5, _part(s.manifests - s.rewritten_manifests, policy["min_manifests"])),
        (5, _part(delete_files, policy["min_delete_files"])),
    )
    return round(100 - sum(weight * ratio for weight, ratio in penalties))


def _part(removable: int, enough: int) -> float:
    """How bad it is that so many files could be spared."""
    return min(max(removable, 0) / enough / 4, 1.0)
