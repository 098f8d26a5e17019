"""The tables of the simulation, as arrays of their figures.

A table is advanced to the present only when it is measured or maintained, so writers cost no events.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum

import numpy as np

from catalog import policies
from catalog.planning import Statistics
from catalog.policies import EffectivePolicy
from catalog.scheduling.holds import QUIET, Commits

MIB = 1024**2
HOUR, DAY = 3600.0, 86_400.0
START = datetime(2027, 1, 4, tzinfo=UTC)
FORMATS = ("lance", "iceberg")
ON = {"compaction": "on", "cleanup": "on", "manifests": "on", "position_deletes": "on"}
ON |= {"indexes": "off", "index_rebuilds": "off", "orphans": "off", "keep_for": 86_400}
_TARGET = 512 * MIB
_REFERENCE = 50_000
"""Fewer tables than this are a sample of so many: a few of them are hot, not all."""
_YOUNG = 3
"""Versions of jobs that a table has within a day."""
_NIGHT = 0.1
"""Commits of change data capture from 22:00 to 06:00, relative to those by day."""
_WEIGHT_OF_DAY = 16 * HOUR + _NIGHT * 8 * HOUR


class Pattern(IntEnum):
    """How a table is written."""

    ARCHIVE = 0
    """Never."""
    BATCH = 1
    """A load of several files each night."""
    STREAM = 2
    """Small appends at all hours."""
    CHANGES = 3
    """Change data capture: upserts with deletes, mostly by day. Conflicts with rewrites."""


ARCHIVE, BATCH, STREAM, CHANGES = (int(pattern) for pattern in Pattern)
SHARES = (0.45, 0.25, 0.2, 0.1)
"""The share of the tables with each pattern."""


def moment(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A top-level namespace, whose tables have one policy."""

    name: str
    policy: EffectivePolicy
    profile: str = ""
    """Engine profile of its jobs on Spark."""


def make_tenants(number: int, workers: int) -> list[Tenant]:
    """Tenants that share the limit of the root, and some with windows, budgets and priorities."""
    root: policies.Layer = ("(root)", {**ON, "max_jobs": workers}, "root")
    few = max(workers // 8, 1)
    special: Mapping[int, tuple[dict[str, object], str]] = {
        1: ({"window_from": "20:00", "window_to": "06:00", "max_jobs": max(workers // 4, 1)}, ""),
        2: ({"priority": 4}, ""),
        3: ({"budget_seconds": few * 14_400, "max_jobs": max(workers // 4, 1)}, ""),
        4: ({"budget_bytes": few * 2**40, "max_jobs": max(workers // 4, 1)}, ""),
        min(40, number - 1): ({"engine_profile": "large"}, "large"),
    }
    tenants = []
    for index in range(number):
        values, profile = special.get(index, ({}, ""))
        name = f"tenant{index:03}"
        policy = policies.effective([root, (name, values, name)])
        tenants.append(Tenant(name, policy, profile))
    return tenants


class Fleet:
    """Figures of all tables."""

    def __init__(self, tables: int, tenants: int, seed: int) -> None:
        self.random = random = np.random.default_rng(seed)
        n = self.size = tables
        sizes = 1 / np.arange(1, tenants + 1)
        self.tenant = random.choice(tenants, n, p=sizes / sizes.sum()).astype(np.int16)
        self.pattern = random.choice(len(SHARES), n, p=SHARES).astype(np.int8)
        self.format = random.integers(0, 2, n, dtype=np.int8)
        self.rate = self._rates()
        self.reads = self._reads()
        self.offset = random.uniform(0, 6 * HOUR, n).astype(np.float32)
        """When the load of a batch ends, after midnight."""
        self.files_each = random.integers(1, 4, n, dtype=np.int8)
        batch = self.pattern == BATCH
        self.files_each[batch] = random.integers(3, 24, int(batch.sum()))
        self.file_bytes = (MIB * np.clip(random.lognormal(1.5, 1.0, n), 0.1, 200)).astype(
            np.float32
        )
        self.bytes = (MIB * np.clip(random.lognormal(6, 1.5, n), 1, 50_000)).astype(np.float64)
        self.small = random.poisson(3, n).astype(np.int32)
        self.small[random.random(n) < 0.3] += random.integers(8, 200)
        self.version = random.integers(1, 200, n).astype(np.int32)
        self.versions = np.minimum(self.version, 50)
        self.stale_bytes = np.zeros(n, np.float64)
        """Bytes that only old versions refer to."""
        self.deleted = np.zeros(n, np.float32)
        """Share of the rows that are deleted."""
        self.delete_files = np.zeros(n, np.int32)
        self.manifests = random.integers(1, 60, n).astype(np.int32)
        self.at = np.zeros(n)
        self.next_change = np.full(n, np.inf)
        self.next_change[batch] = self.offset[batch]
        steady = self.pattern >= STREAM
        self.next_change[steady] = random.exponential(DAY / self.rate[steady])

    def _rates(self) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        """Commits a day: a few hot tables, and a long tail (Zipf)."""
        n, random = self.size, self.random
        rank = (random.permutation(n) + 1) * max(_REFERENCE / n, 1)
        rate = np.clip(2880 / rank**0.6, 0.2, 1440).astype(np.float32)
        rate[self.pattern == ARCHIVE] = 0
        rate[self.pattern == BATCH] = 1
        return rate

    def _reads(self) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        """Reads a day (Zipf). Most archives, and a third of the others, are never read."""
        n, random = self.size, self.random
        rank = (random.permutation(n) + 1) * max(_REFERENCE / n, 1)
        reads = (20_000 / rank**0.7).astype(np.float32)
        is_archive = self.pattern == ARCHIVE
        reads[random.random(n) < np.where(is_archive, 0.9, 0.33)] = 0
        return reads

    # --- writers ------------------------------------------------------------------------------------

    def commits(self, index: int, since: float, until: float) -> float:
        """The expected number of commits to a table between two moments."""
        pattern = self.pattern.item(index)
        if pattern == ARCHIVE:
            return 0.0
        if pattern == BATCH:
            offset = self.offset.item(index)
            return (until - offset) // DAY - (since - offset) // DAY
        rate = self.rate.item(index)
        if pattern == STREAM:
            return rate * (until - since) / DAY
        return rate * (_day_weight(until) - _day_weight(since)) / _WEIGHT_OF_DAY

    def recent_commits(self, index: int, now: float) -> Commits:
        recent = self.random.poisson(self.commits(index, now - QUIET.total_seconds(), now))
        return Commits(int(recent), round(self.commits(index, now - DAY, now)))

    def advance(self, index: int, now: float) -> None:
        """Add the commits of writers since the table was last advanced."""
        expected = self.commits(index, self.at.item(index), now)
        self.at[index] = now
        number = int(expected)
        if self.pattern.item(index) != BATCH and expected > 0:
            number = int(self.random.poisson(expected))
        if number:
            added = number * self.files_each.item(index)
            self.small[index] += added
            self.version[index] += number
            self.versions[index] += number
            self.manifests[index] += number
            self.bytes[index] += added * self.file_bytes.item(index)
            if self.pattern.item(index) == CHANGES:
                self.delete_files[index] += number
                share = self.deleted.item(index)
                self.deleted[index] = min(share + 0.002 * number, 0.6)
        self._expect_change(index)

    def _expect_change(self, index: int) -> None:
        now, pattern = self.at.item(index), self.pattern.item(index)
        if pattern == ARCHIVE:
            self.next_change[index] = np.inf
        elif pattern == BATCH:
            offset = self.offset.item(index)
            self.next_change[index] = ((now - offset) // DAY + 1) * DAY + offset
        else:
            wait = self.random.exponential(DAY / self.rate.item(index))
            self.next_change[index] = now + wait

    # --- figures ------------------------------------------------------------------------------------

    def statistics(self, index: int) -> Statistics:
        """The figures of a table when it was last advanced."""
        is_iceberg = self.format.item(index)
        small = self.small.item(index)
        size = self.bytes.item(index)
        rewritten_bytes = small * self.file_bytes.item(index)
        deleted = self.deleted.item(index)
        rows = size // 100
        large = int(size // _TARGET) + 1
        versions = self.versions.item(index)
        old = max(versions - 10 - self.rate.item(index), 0)
        rewrite_files = small
        if deleted > 0.1:
            share = min(3 * deleted, 1.0)  # of the files have many deleted rows
            rewrite_files = small + math.ceil(large * share)
            rewritten_bytes += size * share
        manifests = self.manifests.item(index)
        delete_files = self.delete_files.item(index) if is_iceberg else 0
        return Statistics(
            format=FORMATS[is_iceberg],
            version=self.version.item(index),
            rows=rows,
            deleted_rows=int(rows * deleted),
            files=small + large,
            bytes=size,
            small_files=small,
            rewrite_files=rewrite_files,
            rewrite_bytes=int(rewritten_bytes),
            rewritten_files=min(int(rewritten_bytes // _TARGET) + 1, rewrite_files),
            versions=versions,
            old_versions=old,
            removable_files=old,
            removable_bytes=int(self.stale_bytes.item(index) * old / max(versions, 1)),
            metadata_bytes=versions * 20_000,
            manifests=manifests if is_iceberg else 0,
            rewritten_manifests=1 + manifests // 100 if is_iceberg else 0,
            delete_files=delete_files,
            rewritten_delete_files=1 + delete_files // 50 if delete_files else 0,
            reads_per_day=round(self.reads.item(index), 2),
        )

    def apply(self, index: int, kind: str) -> None:
        """The effect of a successful job."""
        _EFFECTS[kind](self, index)
        if kind != "clean_up":
            self.version[index] += 1
            self.versions[index] += 1

    def _compact(self, index: int) -> None:
        before = self.statistics(index)
        self.stale_bytes[index] += before.rewrite_bytes
        self.bytes[index] *= 1 - float(self.deleted[index])
        self.small[index] = 0
        self.deleted[index] = 0
        self.delete_files[index] = 0

    def _clean_up(self, index: int) -> None:
        before = self.statistics(index)
        self.versions[index] -= before.old_versions
        self.stale_bytes[index] -= before.removable_bytes

    def _rewrite_manifests(self, index: int) -> None:
        self.manifests[index] = self.statistics(index).rewritten_manifests

    def _rewrite_deletes(self, index: int) -> None:
        self.delete_files[index] = self.statistics(index).rewritten_delete_files

    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(array.nbytes for array in _arrays(vars(self).values()))


_EFFECTS: Mapping[str, Callable[[Fleet, int], None]] = {
    "compact": Fleet._compact,  # noqa: SLF001
    "clean_up": Fleet._clean_up,  # noqa: SLF001
    "rewrite_manifests": Fleet._rewrite_manifests,  # noqa: SLF001
    "rewrite_position_deletes": Fleet._rewrite_deletes,  # noqa: SLF001
}


def _arrays(values: Iterable[object]) -> "list[np.ndarray]":
    return [value for value in values if isinstance(value, np.ndarray)]


def _day_weight(seconds: float) -> float:
    """The integral of the daily profile of change data capture since the start."""
    days, time_of_day = divmod(seconds, DAY)
    night = min(time_of_day, 6 * HOUR) + max(time_of_day - 22 * HOUR, 0)
    return days * _WEIGHT_OF_DAY + (time_of_day - night) + _NIGHT * night
