"""Maintenance policies: their rules and defaults, and the effective policy of a table.

Each maintenance action declares the rules of its own settings (``catalog.maintenance_actions``).
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


TEXT_UNITS = frozenset({Unit.MODE, Unit.TIME, Unit.ENGINE})
"""Units whose values are texts, without limits."""
ENGINES = ("auto", "worker", "spark")


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
        "spark_above",
        Unit.BYTES,
        1024 * MB,
        "Compact with Spark if more than this must be rewritten.",
        LANCE,
    ),
    Rule(
        "engine",
        Unit.ENGINE,
        "auto",
        "Where Lance tables are compacted: worker, spark, or auto, which follows spark_above.",
        LANCE,
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
    return {name: rules_of_values[name].check(value) for name, value in values.items()}


def effective(policies: Iterable[tuple[str, Mapping[str, Any]]]) -> EffectivePolicy:
    """The effective policy of a chain of policies, each with its name, from the root to the table."""
    values_by_name = {rule.name: Value(rule.default, "") for rule in rules()}
    for source, values in policies:
        for name, value in values.items():
            if name in values_by_name:  # ignore a rule of another version
                values_by_name[name] = Value(value, source)
    return EffectivePolicy(values_by_name)


def _not_a_mode(_rule: Rule, value: Any) -> str:
    modes = ", ".join(mode.value for mode in Mode)
    return "" if value in list(Mode) else f"must be one of {modes}"


def _not_an_engine(_rule: Rule, value: Any) -> str:
    return "" if value in ENGINES else f"must be one of {', '.join(ENGINES)}"


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
    Unit.ENGINE: _not_an_engine,
}
