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
    Rule("compaction", Unit.MODE, Mode.DRY_RUN, "Rewrite small files, and rows that were deleted."),
    Rule(
        "target_rows",
        Unit.COUNT,
        1024 * 1024,
        "Rows of a fragment after compaction.",
        LANCE,
        low=1024,
    ),
    Rule(
        "target_bytes",
        Unit.BYTES,
        512 * _MB,
        "Size of a data file after compaction.",
        ICEBERG,
        low=_MB,
    ),
    Rule(
        "small_ratio",
        Unit.RATIO,
        0.5,
        "A file, or fragment, below this part of its target is small.",
        low=0.01,
        high=0.99,
    ),
    Rule("min_small_files", Unit.COUNT, 8, "So many small files make compaction worth it.", low=2),
    Rule(
        "deleted_ratio",
        Unit.RATIO,
        0.1,
        "Fragments, or files, with more deleted rows than this are rewritten.",
        low=0.0,
        high=1.0,
    ),
    Rule("cleanup", Unit.MODE, Mode.DRY_RUN, "Remove old versions, or snapshots, and their files."),
    Rule("keep_for", Unit.SECONDS, 7 * _DAY, "How long a version is kept.", low=_HOUR),
    Rule(
        "keep_versions",
        Unit.COUNT,
        10,
        "So many newest versions are kept, however old. Tags and branches always are.",
        low=1,
    ),
    Rule("orphans", Unit.MODE, Mode.DRY_RUN, "Remove files that no version has."),
    Rule(
        "orphan_age",
        Unit.SECONDS,
        3 * _DAY,
        "Younger files may belong to a writer that has not committed yet.",
        low=_DAY,
    ),
    Rule("indexes", Unit.MODE, Mode.DRY_RUN, "Bring indexes up to date.", LANCE),
    Rule(
        "unindexed_rows",
        Unit.COUNT,
        10_000,
        "So many rows outside an index make it worth it.",
        LANCE,
        low=1,
    ),
    Rule("index_rebuilds", Unit.MODE, Mode.DRY_RUN, "Build indexes anew that have worn.", LANCE),
    Rule(
        "index_segments",
        Unit.COUNT,
        20,
        "An index in more segments than this is built anew: a search reads them all.",
        LANCE,
        low=1,
    ),
    Rule(
        "untrained_ratio",
        Unit.RATIO,
        0.5,
        "A vector index is built anew when more of the rows than this came after it was trained.",
        LANCE,
        low=0.01,
        high=1.0,
    ),
    Rule("manifests", Unit.MODE, Mode.DRY_RUN, "Rewrite many small manifests as few.", ICEBERG),
    Rule("min_manifests", Unit.COUNT, 50, "So many manifests make it worth it.", ICEBERG, low=2),
    Rule(
        "position_deletes",
        Unit.MODE,
        Mode.DRY_RUN,
        "Rewrite position delete files, dropping those of files that are gone.",
        ICEBERG,
    ),
    Rule("min_delete_files", Unit.COUNT, 10, "So many make it worth it.", ICEBERG, low=1),
    Rule("statistics", Unit.MODE, Mode.OFF, "Compute column statistics (Puffin).", ICEBERG),
    Rule("window_from", Unit.TIME, "", "Jobs begin from this time of the day (UTC) on."),
    Rule("window_to", Unit.TIME, "", "And not after this one. Empty: at any time."),
    Rule(
        "max_jobs",
        Unit.COUNT,
        2,
        "So many tables are at work at once under one policy. What waits to be tried again is not.",
        low=1,
        high=1000,
    ),
    Rule(
        "spark_above",
        Unit.BYTES,
        1024 * _MB,
        "Tables with more to rewrite than this are compacted by Spark.",
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
            raise InvalidInput(f"There is no policy '{name}'; there are {', '.join(BY_NAME)}")
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
    return "" if value in list(Mode) else f"has to be one of {modes}"


def _not_a_whole(rule: Rule, value: Any) -> str:
    if type(value) is int and rule.low <= value <= rule.high:
        return ""
    return f"has to be a whole number from {rule.low:.0f} to {rule.high:.0f}"


def _not_a_ratio(rule: Rule, value: Any) -> str:
    if type(value) in {int, float} and rule.low <= value <= rule.high:
        return ""
    return f"has to be a number from {rule.low} to {rule.high}"


def _not_a_time(_rule: Rule, value: Any) -> str:
    if value == "":
        return ""
    try:
        is_time = time.fromisoformat(value).tzinfo is None  # all times are in UTC
    except (TypeError, ValueError):
        is_time = False
    return "" if is_time else "has to be a time such as 22:30"


_PROBLEMS: Mapping[Unit, Callable[[Rule, Any], str]] = {
    Unit.MODE: _not_a_mode,
    Unit.COUNT: _not_a_whole,
    Unit.BYTES: _not_a_whole,
    Unit.SECONDS: _not_a_whole,
    Unit.RATIO: _not_a_ratio,
    Unit.TIME: _not_a_time,
}
