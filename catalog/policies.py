"""Maintenance policies: their rules and defaults, and the effective policy of a table.

Pure functions without database access. The rows are ``catalog.models.MaintenancePolicy``, and
``catalog.services.maintenance.policies`` reads them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import time
from enum import StrEnum
from typing import Any

from catalog.errors import InvalidInput

BOTH, LANCE, ICEBERG = frozenset({"lance", "iceberg"}), frozenset({"lance"}), frozenset({"iceberg"})
_DAY, _HOUR, _MB = 86_400, 3_600, 1024**2


class Mode(StrEnum):
    """The mode of an activity: executed, only planned and displayed, or off."""

    OFF = "off"
    DRY_RUN = "dry_run"
    ON = "on"


class Unit(StrEnum):
    """The unit of a value, for forms and pages."""

    MODE = "mode"
    COUNT = "count"
    BYTES = "bytes"
    SECONDS = "seconds"
    RATIO = "ratio"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Rule:
    """A setting of a policy: its name, unit, default and limits."""

    name: str
    unit: Unit
    default: Any
    help: str
    formats: frozenset[str] = BOTH
    low: float = 0
    high: float = 2**53

    def check(self, value: Any) -> Any:
        """Return the value. Raises InvalidInput if it is not valid for this rule."""
        problem = _PROBLEMS[self.unit](self, value)
        if problem:
            raise InvalidInput(f"Policy '{self.name}' {problem}, not {value!r}")
        return value


RULES: tuple[Rule, ...] = (
    Rule("compaction", Unit.MODE, Mode.DRY_RUN, "Rewrite small files and remove deleted rows."),
    Rule(
        "target_rows",
        Unit.COUNT,
        1024 * 1024,
        "Target number of rows of a fragment after compaction.",
        LANCE,
        low=1024,
    ),
    Rule(
        "target_bytes",
        Unit.BYTES,
        512 * _MB,
        "Target size of a data file after compaction.",
        ICEBERG,
        low=_MB,
    ),
    Rule(
        "small_ratio",
        Unit.RATIO,
        0.5,
        "A file or fragment below this fraction of its target is small.",
        low=0.01,
        high=0.99,
    ),
    Rule(
        "min_small_files",
        Unit.COUNT,
        8,
        "Compact when at least this many small files exist.",
        low=2,
    ),
    Rule(
        "deleted_ratio",
        Unit.RATIO,
        0.1,
        "Rewrite fragments or files with a larger fraction of deleted rows.",
        low=0.0,
        high=1.0,
    ),
    Rule("cleanup", Unit.MODE, Mode.DRY_RUN, "Remove old versions or snapshots and their files."),
    Rule("keep_for", Unit.SECONDS, 7 * _DAY, "Retention time of a version.", low=_HOUR),
    Rule(
        "keep_versions",
        Unit.COUNT,
        10,
        "Keep this many newest versions, whatever their age. Tags and branches are always kept.",
        low=1,
    ),
    Rule("orphans", Unit.MODE, Mode.DRY_RUN, "Remove files that no version refers to."),
    Rule(
        "orphan_age",
        Unit.SECONDS,
        3 * _DAY,
        "Minimum age of removed files: a younger file may belong to a pending commit.",
        low=_DAY,
    ),
    Rule("indexes", Unit.MODE, Mode.DRY_RUN, "Update indexes.", LANCE),
    Rule(
        "unindexed_rows",
        Unit.COUNT,
        10_000,
        "Update an index when at least this many rows are not in it.",
        LANCE,
        low=1,
    ),
    Rule("index_rebuilds", Unit.MODE, Mode.DRY_RUN, "Rebuild degraded indexes.", LANCE),
    Rule(
        "index_segments",
        Unit.COUNT,
        20,
        "Rebuild an index with more segments: a search reads all of them.",
        LANCE,
        low=1,
    ),
    Rule(
        "untrained_ratio",
        Unit.RATIO,
        0.5,
        "Rebuild a vector index when a larger fraction of the rows was added after its training.",
        LANCE,
        low=0.01,
        high=1.0,
    ),
    Rule("manifests", Unit.MODE, Mode.DRY_RUN, "Merge small manifests.", ICEBERG),
    Rule(
        "min_manifests",
        Unit.COUNT,
        50,
        "Merge when at least this many manifests exist.",
        ICEBERG,
        low=2,
    ),
    Rule(
        "position_deletes",
        Unit.MODE,
        Mode.DRY_RUN,
        "Rewrite position delete files and drop deletes of removed files.",
        ICEBERG,
    ),
    Rule(
        "min_delete_files",
        Unit.COUNT,
        10,
        "Rewrite when at least this many delete files exist.",
        ICEBERG,
        low=1,
    ),
    Rule("statistics", Unit.MODE, Mode.OFF, "Compute column statistics (Puffin).", ICEBERG),
    Rule("window_from", Unit.TIME, "", "Start jobs only from this time of the day (UTC)."),
    Rule("window_to", Unit.TIME, "", "Start jobs only until this time. Empty: at any time."),
    Rule(
        "max_jobs",
        Unit.COUNT,
        2,
        "Maximum number of tables with a job at the same time under one policy, without retries.",
        low=1,
        high=1000,
    ),
    Rule(
        "spark_above",
        Unit.BYTES,
        1024 * _MB,
        "Compact with Spark if more than this must be rewritten.",
        LANCE,
    ),
)
BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an effective policy, and the name of the policy that sets it; empty for a default."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy that applies to a table, with inherited values and defaults."""

    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def mode(self, name: str) -> Mode:
        return Mode(self[name])

    def allows(self, moment: time) -> bool:
        """True if jobs may start at this time of the day (UTC). A window may span midnight."""
        begin, end = self["window_from"], self["window_to"]
        if not begin or not end:
            return True
        first, last = time.fromisoformat(begin), time.fromisoformat(end)
        if first <= last:
            return first <= moment <= last
        return moment >= first or moment <= last


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the values of a policy. Raises InvalidInput for an unknown name or a bad value."""
    for name in values:
        if name not in BY_NAME:
            raise InvalidInput(
                f"Policy setting '{name}' does not exist; the settings are {', '.join(BY_NAME)}"
            )
    return {name: BY_NAME[name].check(value) for name, value in values.items()}


def effective(policies: Iterable[tuple[str, Mapping[str, Any]]]) -> EffectivePolicy:
    """The effective policy of a chain of policies, each with its name, from the root to the table."""
    values_by_name = {rule.name: Value(rule.default, "") for rule in RULES}
    for source, values in policies:
        for name, value in values.items():
            if name in values_by_name:  # ignore a rule of another version
                values_by_name[name] = Value(value, source)
    return EffectivePolicy(values_by_name)


def _not_a_mode(_rule: Rule, value: Any) -> str:
    modes = ", ".join(mode.value for mode in Mode)
    return "" if value in list(Mode) else f"must be one of {modes}"


def _not_a_whole(rule: Rule, value: Any) -> str:
    if type(value) is int and rule.low <= value <= rule.high:
        return ""
    return f"must be a whole number from {rule.low:.0f} to {rule.high:.0f}"


def _not_a_ratio(rule: Rule, value: Any) -> str:
    if type(value) in {int, float} and rule.low <= value <= rule.high:
        return ""
    return f"must be a number from {rule.low} to {rule.high}"


def _not_a_time(_rule: Rule, value: Any) -> str:
    if value == "":
        return ""
    try:
        is_time = time.fromisoformat(value).tzinfo is None  # all times are in UTC
    except (TypeError, ValueError):
        is_time = False
    return "" if is_time else "must be a time such as 22:30"


_PROBLEMS: Mapping[Unit, Callable[[Rule, Any], str]] = {
    Unit.MODE: _not_a_mode,
    Unit.COUNT: _not_a_whole,
    Unit.BYTES: _not_a_whole,
    Unit.SECONDS: _not_a_whole,
    Unit.RATIO: _not_a_ratio,
    Unit.TIME: _not_a_time,
}
