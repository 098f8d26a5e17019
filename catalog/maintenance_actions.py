"""The registry of maintenance actions.

An action is declared once, as a ``MaintenanceAction``. The scheduler, the runner of jobs, policies,
the management API, the command line, the admin and the tables of docs/maintenance.md are derived
from the registered actions. ``catalog.services.maintenance.actions`` declares those of this release
and registers them when Django starts.

The registry itself has no database access, so that models and services of every concern can read it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.utils.module_loading import import_string

from catalog import policies
from catalog.errors import InvalidInput
from catalog.planning import Planned, Proposal, Statistics
from catalog.policies import EffectivePolicy, Mode, Rule, Unit


class IcebergFiles(StrEnum):
    """The files of an Iceberg table that a job reads in a process of its own.

    The catalog checks these files before the job may load the table.
    """

    MANIFESTS = "manifests"
    """The manifests of the current snapshot."""
    DATA = "data"
    """The manifests of the current snapshot and the files that they name."""
    DELETES = "deletes"
    """The manifests of the current snapshot and the delete files that they name."""
    ALL_MANIFESTS = "all manifests"
    """The manifests of every snapshot."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last job of an action on a table, without dry runs."""

    created_at: datetime
    finished_at: datetime | None
    """None while the job is queued or running."""
    was_unsuccessful: bool
    """True if the job failed or was canceled."""
    was_useless: bool
    """True if the job changed nothing."""
    version: int | None
    """Version of the table when the job ended."""
    attempts: int = 1
    """The largest number of attempts of the last jobs; more than one if they conflicted with writers."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """The facts by which an action decides whether it is time for a job."""

    now: datetime
    table_created_at: datetime
    statistics: Statistics
    policy: EffectivePolicy
    last_run: LastRun | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Implementation:
    """An action's work on tables of one format, and its row in docs/maintenance.md."""

    run: str
    """Dotted path of a function of the job and ``report``, and of the keyword ``spark`` if
    ``takes_spark``. It returns the result as JSON; ``note`` in it is shown as a remark. See
    ``job_runner.Work`` for errors. It is imported by the worker, with the libraries that it needs."""
    takes_spark: bool = False
    help: str
    """What the job does, as Markdown."""
    settings: str = ""
    """The settings of the policy that the job follows, as Markdown."""
    promises: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    """Figures that the plan promises: the paths of the planned and of the actual number in the result."""

    def load(self) -> Callable[..., Mapping[str, Any]]:
        """Import the function. Raises ImportError."""
        function: Callable[..., Mapping[str, Any]] = import_string(self.run)
        return function


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceAction:
    """A kind of maintenance. Its jobs have ``key`` as their kind."""

    key: str
    """Name in the API, on the command line and in the database, such as ``clean_up``."""
    title: str
    """Its name for people, in buttons and in lists of jobs, such as "Clean up"."""
    help: str
    """One or more sentences for the user who starts a job."""
    icon: str
    """Name of a Material symbol."""
    group: str
    """Title of the section of the policy form that has the action's rules."""
    rules: tuple[Rule, ...]
    """The settings of policies that the action adds; the first one is its mode."""
    implementations: Mapping[str, Implementation]
    """By table format."""
    summarize: Callable[[Mapping[str, Any]], str]
    """The result of a job as a phrase; empty if the result has no figures."""
    order: int
    """Rank among the actions that are planned for a table at the same time; the lowest comes first."""
    plan: Callable[[Statistics, EffectivePolicy], Proposal | None] | None = None
    """The job that a table's figures require, with its estimated effect and cost. Requires no I/O."""
    is_due: Callable[[Occasion], bool] | None = None
    """Whether to start a job now. For actions whose need is not visible in a table's figures."""
    unit: str = "files"
    """Unit of a job's progress."""
    accepts_indexes: bool = False
    """Whether a job can be limited to some indexes of a Lance table."""
    requires_index: bool = False
    """Whether a job is refused for a table without indexes."""
    merges_files: bool = False
    """Whether the decrease of ``files`` in the result counts as merged files."""
    depends_on_files_only: bool = False
    """Whether a job that changed nothing would change nothing again on the same version."""
    replaced_files: tuple[str, str] | None = None
    """Names in ``done`` of the result: the numbers of replaced and of added files. A job that did not
    add fewer files than it replaced was useless."""
    iceberg_files: IcebergFiles = IcebergFiles.DATA
    """The files of an Iceberg table that a job on Spark reads."""

    @property
    def mode(self) -> str:
        """Name of the setting that switches the action on."""
        return self.rules[0].name

    @property
    def formats(self) -> frozenset[str]:
        """The table formats that have the action."""
        return frozenset(self.implementations)


_actions: dict[str, MaintenanceAction] = {}


def register(action: MaintenanceAction) -> None:
    """Add an action. Raises ValueError if its declaration is incomplete, or its key is taken."""
    if defects := _defects(action):
        raise ValueError(f"Maintenance action '{action.key}': {'; '.join(defects)}")
    policies.add_rules(action.rules)
    _actions[action.key] = action


def unregister(action: MaintenanceAction) -> None:
    """Remove an action and its rules."""
    del _actions[action.key]
    policies.remove_rules(action.rules)


def _defects(action: MaintenanceAction) -> list[str]:
    texts = {name: getattr(action, name) for name in ("key", "title", "help", "icon", "group")}
    texts |= {f"help for {fmt}": work.help for fmt, work in action.implementations.items()}
    texts |= {f"help of rule '{rule.name}'": rule.help for rule in action.rules}
    defects = [f"{name} is empty" for name, text in texts.items() if not text.strip()]
    defects += [
        f"rule '{rule.name}' allows more than {policies.HIGHEST[rule.unit]}"
        for rule in action.rules
        if rule.unit in policies.HIGHEST and rule.highest > policies.HIGHEST[rule.unit]
    ]
    if action.key in _actions:
        defects.append("the key is taken")
    if not action.rules or action.rules[0].unit is not Unit.MODE:
        defects.append("the first rule is not a mode")
    elif action.rules[0].formats != action.formats:
        defects.append("the formats of the mode differ from those of the implementations")
    return defects


def registered() -> list[MaintenanceAction]:
    """All actions, in the order in which interfaces list them."""
    return list(_actions.values())


def of_format(table_format: str) -> list[MaintenanceAction]:
    """The actions for tables of a format."""
    return [action for action in registered() if table_format in action.formats]


def keys() -> list[str]:
    """The keys of all actions, which are the kinds of their jobs."""
    return list(_actions)


def find(key: str) -> MaintenanceAction | None:
    return _actions.get(key)


def require(key: str) -> MaintenanceAction:
    """The action with this key. Raises InvalidInput if there is none."""
    action = _actions.get(key)
    if action is None:
        raise InvalidInput(
            f"'{key}' is not a kind of maintenance; use one of {', '.join(_actions)}"
        )
    return action


def plan(statistics: Statistics, policy: EffectivePolicy) -> list[Planned]:
    """The recommended jobs in the order of execution, without actions that the policy disables."""
    planned = []
    for action in sorted(of_format(statistics.format), key=lambda action: action.order):
        mode = policy.mode(action.mode)
        if action.plan is None or mode is Mode.OFF:
            continue
        proposal = action.plan(statistics, policy)
        if proposal is not None:
            planned.append(Planned.of(action.key, mode, proposal))
    return planned


def summarize(kind: str, result: Mapping[str, Any] | None, *, is_dry_run: bool) -> str:
    """The result of a job as a phrase; empty for jobs that are not maintenance or have no result."""
    action = _actions.get(kind)
    text = action.summarize(result) if action is not None and result else ""
    return f"Dry run: {text}" if text and is_dry_run else text


def documentation(table_format: str) -> str:
    """The table of the actions for a format, as Markdown; docs/maintenance.md contains it."""
    lines = ["| job | what it does | policy settings |", "|---|---|---|"]
    for action in of_format(table_format):
        work = action.implementations[table_format]
        settings = f" {work.settings}" if work.settings else ""
        lines.append(f"| `{action.key}` | {work.help} |{settings} |")
    return "\n".join(lines) + "\n"
