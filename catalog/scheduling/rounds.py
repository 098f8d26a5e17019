"""One round of the scheduler: which candidates get a job, and of which action."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from catalog import maintenance_actions
from catalog.maintenance_actions import LastRun, MaintenanceAction, Occasion
from catalog.planning import Planned, Statistics
from catalog.policies import EffectivePolicy, Mode
from catalog.scheduling import fairness, holds, limits, turns
from catalog.scheduling.costs import CostModel, Kind
from catalog.scheduling.fairness import FairQueue
from catalog.scheduling.holds import Commits
from catalog.scheduling.limits import ActiveJobs, Amount
from catalog.scheduling.turns import Turn


@dataclass(frozen=True, slots=True)
class Table:
    """A measured table that may need a job."""

    pk: int
    namespace: str
    """Its top-level namespace now; it may have been moved since it was measured."""
    turn: datetime
    measured_at: datetime
    created_at: datetime
    policy: EffectivePolicy
    statistics: Callable[[], Statistics]
    """Read only if the policy allows a job now."""
    last_runs: Mapping[str, LastRun]
    """By kind."""
    obstacles: Mapping[str, str]
    """Kinds that no running worker can do."""
    profile: Callable[[str], str]
    """The engine profile of jobs of a kind; empty if they never use Spark."""
    commits: Callable[[], Commits]
    """Read only for tables whose jobs conflicted with writers."""


T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True)
class Choice:
    """The job that a table gets."""

    kind: str
    profile: str
    expected: Amount
    parameters: Mapping[str, Any] = field(default_factory=dict)


def measured_turn(
    *,
    statistics: Statistics,
    policy: EffectivePolicy,
    saved: Iterable[int],
    planned: Iterable[Planned],
    last_runs: Mapping[str, LastRun],
    created_at: datetime,
    was_due_since: datetime | None,
    costs: CostModel,
    now: datetime,
) -> Turn:
    """The turn of a table that was measured at ``now``.

    ``saved`` are the parts of the cost of a read that maintenance removes, in bytes.
    """
    # While a policy only shows plans, the order is kept ready for the moment when it is switched on.
    jobs = list(planned)
    enabled = [job for job in jobs if job.mode is Mode.ON]
    if not enabled and not is_switched_on(policy):
        enabled = jobs
    is_needed = bool(enabled) or any(
        action.is_due is not None
        and policy.mode(action.mode) is Mode.ON
        and action.is_due(Occasion(now, created_at, statistics, policy, last_runs.get(action.key)))
        for action in maintenance_actions.of_format(statistics.format)
    )
    ends = [run.finished_at for run in last_runs.values() if run.finished_at is not None]
    worth = 0.0
    if enabled:
        seconds = sum(expected_cost(costs, statistics.format, job).seconds for job in enabled)
        worth = turns.value(saved, statistics.reads_per_day, seconds, policy["priority"])
    return turns.turn(
        is_needed=is_needed,
        worth=worth,
        was_due_since=was_due_since,
        last_job=max(ends, default=None),
        now=now,
    )


def expected_cost(costs: CostModel, table_format: str, job: Planned) -> Amount:
    """The expected cost of a planned job."""
    engine = "spark" if job.is_for_spark else "worker"
    kind = Kind(job.kind, table_format, engine)
    return Amount(costs.seconds(kind, job.bytes_read), job.bytes_read)


class Round:
    """The decisions of one round. The caller starts the jobs."""

    def __init__(
        self,
        *,
        now: datetime,
        active: ActiveJobs,
        ended: Mapping[str, int],
        spent: Callable[[str, datetime], Amount],
        costs: CostModel,
    ) -> None:
        """``ended`` is the number of jobs that ended within the last round, by their limit's key.
        ``spent`` returns what the jobs with a key have cost since a moment, including the expected
        costs of those that have not ended."""
        self.now = now
        self.active = active
        self.full: set[str] = set()
        """The limits under which no further job may start."""
        self._ended = ended
        self._load_spent = spent
        self._spent: dict[tuple[str, datetime], Amount] = {}
        self._costs = costs

    def is_open(self, policy: EffectivePolicy) -> bool:
        """True if the window and the limits of a policy allow a job now."""
        return self.has_room(policy) and policy.allows(self.now.time())

    def has_room(self, policy: EffectivePolicy) -> bool:
        """True if the number of jobs and the budget of a policy allow another job."""
        key = policy.limit_key
        if key in self.full:
            return False
        has_room = self.active.imminent[key] < self._most(policy)
        if has_room and limits.is_limited(budget_of(policy)):
            has_room = limits.is_left(budget_of(policy), self._spent_under(policy))
        if not has_room:
            self.full.add(key)
        return has_room

    def choose(self, table: Table) -> Choice | None:
        """The job that is due and whose kind ran least recently; None if no job may start.

        A busy table requires some kinds all the time, so without this order other kinds would never
        run.
        """
        policy = table.policy
        if not self.is_open(policy):
            return None
        due = sorted(self._due(table), key=lambda item: _began(table.last_runs.get(item[0])))
        for kind, planned, expected in due:
            profile = table.profile(kind)
            if self.active.waiting[policy.limit_key, profile] >= self._most(policy):
                continue
            budget = budget_of(policy)
            if limits.is_limited(budget) and not limits.fits(
                budget, self._spent_under(policy), expected
            ):
                # Smaller jobs wait, too. Otherwise they would use up the budget of each window.
                self.full.add(policy.limit_key)
                return None
            return Choice(kind, profile, expected, {} if planned is None else planned.parameters)
        return None

    def run(
        self,
        queue: FairQueue[T],
        serve: Callable[[T], Choice | None],
        uniform: Collection[str] = (),
    ) -> Iterator[str]:
        """Serve the candidates of a queue in order; yields the namespace of each candidate.

        ``serve`` chooses a job, starts it and returns it, or returns None. The tables of a ``uniform``
        namespace all have one policy, so a policy that allows no job ends the namespace's turn.
        """
        for namespace, table in queue:
            choice = serve(table)
            if choice is not None:
                queue.charge(namespace, self._count(table, choice))
            is_uniform = namespace in uniform and namespace == table.namespace
            if is_uniform and not (is_switched_on(table.policy) and self.is_open(table.policy)):
                queue.close(namespace)
            yield namespace

    def _count(self, table: Table, choice: Choice) -> float:
        """Count a started job; returns the charge of its namespace."""
        policy = table.policy
        self.active.add(policy.limit_key, choice.profile)
        if limits.is_limited(budget_of(policy)):
            key = policy.limit_key, policy.window_began(self.now)
            self._spent[key] = self._spent_under(policy) + choice.expected
        return fairness.charge(choice.expected.seconds, policy["priority"])

    def _most(self, policy: EffectivePolicy) -> int:
        return limits.most_jobs(policy["max_jobs"], self._ended.get(policy.limit_key, 0))

    def _spent_under(self, policy: EffectivePolicy) -> Amount:
        key = policy.limit_key, policy.window_began(self.now)
        if key not in self._spent:
            self._spent[key] = self._load_spent(*key)
        return self._spent[key]

    def _due(self, table: Table) -> Iterator[tuple[str, Planned | None, Amount]]:
        """Actions that the policy switches on and that are due, with the plans and expected costs."""
        statistics = table.statistics()
        free = list(self._free_actions(table, statistics))
        if not free:
            return
        planned = {job.kind: job for job in maintenance_actions.plan(statistics, table.policy)}
        for action, is_planning in free:
            job = planned.get(action.key) if is_planning else None
            if job is not None:
                yield action.key, job, expected_cost(self._costs, statistics.format, job)
            elif action.is_due is not None and action.is_due(
                Occasion(
                    self.now,
                    table.created_at,
                    statistics,
                    table.policy,
                    table.last_runs.get(action.key),
                )
            ):
                kind = Kind(action.key, statistics.format)
                yield action.key, None, Amount(self._costs.seconds(kind, 0))

    def _free_actions(
        self, table: Table, statistics: Statistics
    ) -> Iterator[tuple[MaintenanceAction, bool]]:
        """Actions that may run now, and whether the plan decides about them.

        A round looks at tables that must wait again and again, so this is done before planning.
        """
        commits: Commits | None = None
        actions = maintenance_actions.of_format(statistics.format)
        for action in sorted(actions, key=lambda action: action.order):
            if table.policy.mode(action.mode) is not Mode.ON or action.key in table.obstacles:
                continue
            last = table.last_runs.get(action.key)
            is_planning = action.plan is not None and not holds.is_on_hold(
                action,
                last,
                version=statistics.version,
                measured_at=table.measured_at,
                now=self.now,
            )
            if not is_planning and action.is_due is None:
                continue
            if holds.needs_quiet(last, self.now):
                commits = commits or table.commits()
                if not holds.is_quiet(commits):
                    continue
            yield action, is_planning


def is_switched_on(policy: EffectivePolicy) -> bool:
    """True if the policy lets the scheduler start any kind of job."""
    return any(policy.mode(action.mode) is Mode.ON for action in maintenance_actions.registered())


def budget_of(policy: EffectivePolicy) -> Amount:
    """What the jobs of a policy may cost in a window."""
    return Amount(policy["budget_seconds"], policy["budget_bytes"])


def _began(last: LastRun | None) -> float:
    return 0.0 if last is None else last.created_at.timestamp()
