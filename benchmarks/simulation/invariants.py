"""What must hold at every step of the simulation.

They are checked against the simulation's own accounts, not against those of the scheduler.
"""

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.simulation.fleet import DAY, HOUR, Fleet, Tenant
from benchmarks.simulation.jobs import SimulatedJob
from catalog.scheduling import turns
from catalog.scheduling.limits import Amount

MAX_OVERTAKING = turns.MAX_HEAD_START.total_seconds()
"""A job may come before that of a table of the same namespace that is due up to this much longer."""
_ROUNDING = 1e-6
MAX_BUDGET_ERROR = 0.1
"""Share by which the actual costs of a window may exceed a budget, since costs are expected ones."""
MAX_UNSTEADINESS = 2.0
"""Points by which the mean score may move within the last quarter of a run."""
_LISTED = 20


class Served(NamedTuple):
    """A job that a tenant got, with the tenant's use of workers before it."""

    tenant: int
    used: float
    charge: float


@dataclass
class Invariants:
    """Counts and describes violations."""

    fleet: Fleet
    tenants: list[Tenant]
    workers: int
    profiles: dict[str, int]
    violations: list[str] = field(default_factory=list)
    number: int = 0
    checks: int = 0
    longest_namespace_wait: float = 0.0
    longest_overtaking: float = 0.0
    budgets: dict[tuple[str, float], tuple[Amount, Amount]] = field(default_factory=dict)
    """By limit and begin of the window: the budget, and the actual costs."""

    def __post_init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._on_profile: Counter[str] = Counter()
        self._at_work: set[int] = set()
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in self.tenants]
        """Due tables of each tenant, by the moment since which they are due."""
        self._due_since: dict[int, float] = {}
        self._served_at = [0.0] * len(self.tenants)
        """Since when a tenant waits for a job."""
        self.used: dict[int, float] = {}
        """The use of workers by each tenant at the begin of a round, divided by its priority."""

    def violate(self, text: str) -> None:
        self.number += 1
        if len(self.violations) < _LISTED:
            self.violations.append(text)

    # --- concurrency --------------------------------------------------------------------------------

    def starts(self, job: SimulatedJob, now: float) -> None:
        """A worker begins a job."""
        self.checks += 1
        self._running[job.limit_key] += 1
        self._on_profile[job.engine_profile] += 1
        if job.table in self._at_work:
            self.violate(f"{now:.0f} s: table {job.table} has two running jobs")
        self._at_work.add(job.table)
        if len(self._at_work) > self.workers:
            self.violate(f"{now:.0f} s: {len(self._at_work)} jobs on {self.workers} workers")
        if job.limit is not None and self._running[job.limit_key] > job.limit:
            running = self._running[job.limit_key]
            self.violate(f"{now:.0f} s: {running} jobs under {job.limit_key} of {job.limit}")
        most = self.profiles.get(job.engine_profile)
        if most is not None and self._on_profile[job.engine_profile] > most:
            self.violate(f"{now:.0f} s: more than {most} jobs on '{job.engine_profile}'")

    def ends(self, job: SimulatedJob) -> None:
        self._running[job.limit_key] -= 1
        self._on_profile[job.engine_profile] -= 1
        self._at_work.discard(job.table)

    # --- waiting ------------------------------------------------------------------------------------

    def waits(self, table: int, due_since: float | None) -> None:
        """A table is due since a moment, or not at all."""
        if due_since is None:
            self._due_since.pop(table, None)
        elif self._due_since.get(table) != due_since:
            self._due_since[table] = due_since
            heapq.heappush(self._waiting[self.fleet.tenant[table]], (due_since, table))

    def chosen(self, job: SimulatedJob, held: set[int], now: float) -> None:
        """The scheduler starts a job; ``held`` are tables that it may not serve now."""
        self.checks += 1
        due_since = self._due_since.pop(job.table, now)
        waiting = self._waiting[job.tenant]
        skipped: list[tuple[float, int]] = []
        while waiting:
            since, table = waiting[0]
            if self._due_since.get(table) != since:
                heapq.heappop(waiting)
            elif table in held:
                skipped.append(heapq.heappop(waiting))
            else:
                overtaking = due_since - since
                self.longest_overtaking = max(self.longest_overtaking, overtaking)
                if overtaking > MAX_OVERTAKING:
                    self.violate(
                        f"{now:.0f} s: table {job.table}, due for {(now - due_since) / HOUR:.1f} h,"
                        f" comes before table {table}, due for {(now - since) / HOUR:.1f} h"
                    )
                break
        for entry in skipped:
            heapq.heappush(waiting, entry)

    def round_ends(self, served: list[Served], waiting: set[int], now: float) -> None:
        """``served`` are the jobs of a round in order; ``waiting`` the tenants with tables left that
        could be served."""
        by_limit: dict[str, list[Served]] = {}
        for job in served:
            by_limit.setdefault(self.tenants[job.tenant].policy.limit_key, []).append(job)
        for tenant, facts in enumerate(self.tenants):
            jobs = by_limit.get(facts.policy.limit_key, [])
            own = [job for job in jobs if job.tenant == tenant]
            if own or tenant not in waiting:
                self._served_at[tenant] = now
            if tenant in waiting and jobs:
                self._judge_turn(tenant, own, jobs, now)

    def _judge_turn(self, tenant: int, own: list[Served], jobs: list[Served], now: float) -> None:
        self.checks += 1
        wait = now - self._served_at[tenant]
        self.longest_namespace_wait = max(self.longest_namespace_wait, wait)
        used = own[-1].used + own[-1].charge if own else self.used.get(tenant, 0.0)
        most = max(job.used for job in jobs)
        if most > used + _ROUNDING:
            self.violate(
                f"{now:.0f} s: a tenant that used {most:.0f} s comes before"
                f" {self.tenants[tenant].name}, which used {used:.0f} s"
            )

    # --- budgets ------------------------------------------------------------------------------------

    def spends(self, key: str, window: float, budget: Amount, actual: Amount) -> None:
        """A job that began in a window ends."""
        spent = self.budgets.get((key, window), (budget, Amount()))[1] + actual
        self.budgets[key, window] = budget, spent
        self.checks += 1
        for name in ("seconds", "bytes"):
            most, amount = getattr(budget, name), getattr(spent, name)
            if most and amount > most * (1 + MAX_BUDGET_ERROR):
                day = window / DAY
                self.violate(f"day {day:.1f}: {key} spent {amount:.0f} of {most:.0f} {name}")

    # --- convergence --------------------------------------------------------------------------------

    def judge_scores(self, hourly: list[float]) -> None:
        """``hourly`` are the mean scores of all tables. Daily loads make them swing within a day."""
        days = [hourly[end - 24 : end] for end in range(24, len(hourly) + 1, 24)]
        if len(days) < 3:
            return
        means = [sum(day) / 24 for day in days]
        if means[-1] < means[0] - MAX_UNSTEADINESS:
            self.violate(f"the mean score fell from {means[0]:.1f} to {means[-1]:.1f}")
        if abs(means[-1] - means[-2]) > MAX_UNSTEADINESS:
            self.violate(f"the mean score of a day moved from {means[-2]:.1f} to {means[-1]:.1f}")
