"""Maintenance policies: their rules and defaults, and the effective policy of a table.

Each maintenance action declares the rules of its own settings (``catalog.maintenance_actions``).
Pure functions without database access. The rows are ``catalog.models.MaintenancePolicy``, and
``catalog.services.maintenance.policies`` reads them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import Any

from catalog import engine_profiles, layouts
from catalog.errors import InvalidInput

BOTH, LANCE, ICEBERG = frozenset({"lance", "iceberg"}), frozenset({"lance"}), frozenset({"iceberg"})
DAY, HOUR, MB = 86_400, 3_600, 1024**2


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
    ENGINE = "engine"
    ENGINE_PROFILE = "engine profile"
    STRATEGY = "strategy"
    SORT_ORDER = "sort order"


TEXT_UNITS = frozenset(
    {Unit.MODE, Unit.TIME, Unit.ENGINE, Unit.ENGINE_PROFILE, Unit.STRATEGY, Unit.SORT_ORDER}
)
"""Units whose values are texts, without limits."""
HIGHEST: dict[Unit, float] = {
    Unit.COUNT: 2**31 - 1,  # Iceberg's procedures take them as int
    Unit.BYTES: 2**53,
    Unit.SECONDS: 2**53,
    Unit.RATIO: 2**53,
}
"""The highest values that all engines accept, by unit."""
ENGINES = ("auto", "worker", "spark")
LIMITS = frozenset({"max_jobs", "budget_seconds", "budget_bytes"})
"""Settings that apply to all jobs of the policy that sets them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A setting of a policy: its name, unit, default and limits."""

    name: str
    unit: Unit
    default: Any
    help: str
    formats: frozenset[str] = BOTH
    low: float = 0
    high: float | None = None
    """None: the highest value of the unit."""

    @property
    def highest(self) -> float:
        """The highest valid value."""
        return HIGHEST.get(self.unit, 0) if self.high is None else self.high

    def check(self, value: Any) -> Any:
        """Return the value. Raises InvalidInput if it is not valid for this rule."""
        problem = _PROBLEMS[self.unit](self, value)
        if problem:
            raise InvalidInput(f"Policy '{self.name}' {problem}, not {value!r}")
        return value


GENERAL_RULES: tuple[Rule, ...] = (
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
        "budget_seconds",
        Unit.SECONDS,
        0,
        "Time that the jobs of one policy may run in a window, or in a day (UTC) without a window. "
        "0: no limit.",
    ),
    Rule(
        "budget_bytes",
        Unit.BYTES,
        0,
        "Bytes that the jobs of one policy may rewrite in a window, or in a day (UTC) without a window. "
        "0: no limit.",
    ),
    Rule(
        "priority",
        Unit.COUNT,
        1,
        "Share of the workers' time, relative to other namespaces.",
        low=1,
        high=100,
    ),
    Rule(
        "spark_above",
        Unit.BYTES,
        1024 * MB,
        "Compact with Spark if more than this must be rewritten.",
        LANCE,
    ),
    Rule(
        "spark_above_files",
        Unit.COUNT,
        100_000,
        "Remove files from object stores with Spark if more than this must be removed.",
        LANCE,
    ),
    Rule(
        "engine",
        Unit.ENGINE,
        "auto",
        "Where Lance tables are compacted and their files removed: worker, spark, or auto, which follows "
        "spark_above and spark_above_files.",
        LANCE,
    ),
    Rule(
        "engine_profile",
        Unit.ENGINE_PROFILE,
        engine_profiles.DEFAULT,
        "Engine profile of jobs on Spark. 'default' is the Spark of the server's settings.",
    ),
)
"""Rules that belong to no action."""
_action_rules: dict[str, Rule] = {}


def add_rules(added: Iterable[Rule]) -> None:
    """Add the rules of an action. Raises ValueError if a name is taken; then no rule is added."""
    new_rules: dict[str, Rule] = {}
    for rule in added:
        if rule.name in rules_by_name() or rule.name in new_rules:
            raise ValueError(f"Policy setting '{rule.name}' is declared twice")
        new_rules[rule.name] = rule
    _action_rules.update(new_rules)


def remove_rules(removed: Iterable[Rule]) -> None:
    for rule in removed:
        del _action_rules[rule.name]


def rules() -> tuple[Rule, ...]:
    """All rules: those of the registered actions, then the general ones."""
    return (*_action_rules.values(), *GENERAL_RULES)


def rules_by_name() -> Mapping[str, Rule]:
    return {rule.name: rule for rule in rules()}


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an effective policy, and the name of the policy that sets it; empty for a default."""

    value: Any
    source: str
    key: str = field(default="", compare=False)
    """Identifies that policy. Names do not: namespace ``a.b`` and namespace ``b`` in ``a`` share theirs."""


Layer = tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], str]
"""A policy of a chain: its name, its values, and its key unless that is the name."""


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """The policy that applies to a table, with inherited values and defaults."""

    values: Mapping[str, Value]
    limited_by: str = ""
    """Key of the deepest policy that sets a limit on jobs; empty for the default."""

    @property
    def limit_key(self) -> str:
        """The key of the jobs that count together against ``max_jobs`` and the budgets."""
        return f"max_jobs of {self.limited_by or 'the default'}"

    def __getitem__(self, name: str) -> Any:
        return self.values[name].value

    def mode(self, name: str) -> Mode:
        return Mode(self[name])

    @property
    def layout(self) -> layouts.Layout:
        """The layout of Iceberg's compaction. Raises InvalidInput if its two settings, which may be
        of different policies, contradict each other."""
        return layouts.layout(self["strategy"], self["sort_order"])

    def allows(self, moment: time) -> bool:
        """True if jobs may start at this time of the day (UTC). A window may span midnight."""
        begin, end = self["window_from"], self["window_to"]
        if not begin or not end:
            return True
        first, last = time.fromisoformat(begin), time.fromisoformat(end)
        if first <= last:
            return first <= moment <= last
        return moment >= first or moment <= last

    def window_began(self, now: datetime) -> datetime:
        """The last beginning of the window, or of the day (UTC) if there is no window."""
        begin, end = self["window_from"], self["window_to"]
        first = time.fromisoformat(begin) if begin and end else time()
        began = datetime.combine(now.astimezone(UTC).date(), first, UTC)
        return began if began <= now else began - timedelta(days=1)


def require_rule(name: str) -> Rule:
    """The rule with this name. Raises InvalidInput if there is none."""
    by_name = rules_by_name()
    if name not in by_name:
        raise InvalidInput(
            f"Policy setting '{name}' does not exist; the settings are {', '.join(by_name)}"
        )
    return by_name[name]


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the values of a policy. Raises InvalidInput for an unknown name or a bad value."""
    rules_of_values = {name: require_rule(name) for name in values}
    checked = {name: rules_of_values[name].check(value) for name, value in values.items()}
    if {"strategy", "sort_order"} <= checked.keys():
        layouts.layout(checked["strategy"], checked["sort_order"])  # do they fit?
    return checked


def require_runnable(values: Mapping[str, Any]) -> None:
    """Check that all engines accept the values of a stored policy. Raises InvalidInput.

    An earlier release may have accepted larger numbers. Settings of other releases are ignored, as in
    ``effective``, and so are the lowest values of the rules: they protect people from their own haste.
    """
    by_name = rules_by_name()
    for name, value in values.items():
        rule = by_name.get(name)
        if rule is None or rule.unit not in HIGHEST:
            continue
        if not isinstance(value, int | float) or value > HIGHEST[rule.unit]:
            rule.check(value)


def effective(policies: Iterable[Layer]) -> EffectivePolicy:
    """The effective policy of a chain of policies, from the root to the table."""
    values_by_name = {rule.name: Value(rule.default, "") for rule in rules()}
    limited_by = ""
    for policy in policies:
        source, values = policy[0], policy[1]
        key = policy[2] if len(policy) == 3 else source
        if not LIMITS.isdisjoint(values):
            limited_by = key
        for name, value in values.items():
            if name in values_by_name:  # ignore a rule of another version
                values_by_name[name] = Value(value, source, key)
    return EffectivePolicy(values_by_name, limited_by)


def _not_a_mode(_rule: Rule, value: Any) -> str:
    modes = ", ".join(mode.value for mode in Mode)
    return "" if value in list(Mode) else f"must be one of {modes}"


def _not_an_engine(_rule: Rule, value: Any) -> str:
    return "" if value in ENGINES else f"must be one of {', '.join(ENGINES)}"


def _not_a_profile(_rule: Rule, value: Any) -> str:
    try:
        engine_profiles.check_name(value)
    except (InvalidInput, TypeError):
        return "must be the name of an engine profile"
    return ""


def _not_a_strategy(_rule: Rule, value: Any) -> str:
    strategies = ", ".join(layouts.Strategy)
    return "" if value in list(layouts.Strategy) else f"must be one of {strategies}"


def _not_a_sort_order(_rule: Rule, value: Any) -> str:
    if not isinstance(value, str):
        return "must be a text such as country, created_at desc"
    try:
        layouts.parse(value)
    except InvalidInput as error:
        return f"must be a sort order ({error.message})"
    return ""


def _not_a_whole(rule: Rule, value: Any) -> str:
    if type(value) is int and rule.low <= value <= rule.highest:
        return ""
    return f"must be a whole number from {rule.low:.0f} to {rule.highest:.0f}"


def _not_a_ratio(rule: Rule, value: Any) -> str:
    if type(value) in {int, float} and rule.low <= value <= rule.highest:
        return ""
    return f"must be a number from {rule.low} to {rule.highest}"


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
    Unit.ENGINE: _not_an_engine,
    Unit.ENGINE_PROFILE: _not_a_profile,
    Unit.STRATEGY: _not_a_strategy,
    Unit.SORT_ORDER: _not_a_sort_order,
}
