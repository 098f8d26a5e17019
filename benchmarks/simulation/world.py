"""The virtual clock: writers, measurements, rounds of the scheduler, and workers."""

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import numpy as np

from benchmarks.simulation.fleet import (
    DAY,
    FORMATS,
    HOUR,
    START,
    Fleet,
    Tenant,
    make_tenants,
    moment,
)
from benchmarks.simulation.invariants import Invariants, Served
from benchmarks.simulation.jobs import SimulatedJob, TrueCosts, is_busy_hour
from benchmarks.simulation.records import Records, Runs, Size
from catalog import maintenance_actions, read_costs
from catalog.engine_profiles import DEFAULT
from catalog.scheduling import fairness, holds, limits, rounds
from catalog.scheduling.costs import CostModel, Kind, Sums
from catalog.scheduling.fairness import FairQueue
from catalog.scheduling.limits import ActiveJobs, Amount
from catalog.scheduling.queue import Places, Use, rank
from catalog.scheduling.rounds import Choice, Round
from catalog.services.engine.jobs import MAX_ATTEMPTS

ROUND = 60.0
_LEARN_EVERY = 600.0
_PAST_JOBS = 2000


class World:
    """A catalog with its tables, on a virtual clock in seconds since ``START``."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.now = 0.0
        self.fleet = Fleet(size.tables, size.tenants, size.seed)
        self.tenants: list[Tenant] = make_tenants(size.tenants, size.workers)
        profiles = {"large": max(size.workers // 8, 1)}
        self.invariants = Invariants(self.fleet, self.tenants, size.workers, profiles)
        self.records = Records(self.fleet)
        self.truth = TrueCosts(self.fleet, size.slowness)
        self._profiles = profiles
        n = size.tables
        self._measured_at = np.full(n, -np.inf)
        self._score = np.full(n, np.nan, np.float32)
        self._due_since = np.full(n, np.nan)
        self._turn = np.full(n, np.nan)
        self._must_measure = np.zeros(n, bool)
        self._is_active = np.zeros(n, bool)
        self._runs = Runs(n)
        self._due: list[list[tuple[float, int]]] = [[] for _ in self.tenants]
        """The due tables of each tenant, by turn."""
        self._queue: dict[str, deque[SimulatedJob]] = defaultdict(deque)
        """The jobs that are ready, by the key of their limit."""
        self._running: dict[int, SimulatedJob] = {}
        self._events: list[tuple[float, int, str, SimulatedJob]] = []
        self._ended: deque[tuple[float, str]] = deque()
        self._recent: deque[tuple[float, int, float, int]] = deque()
        """Attempts of the last hour: their end, tenant, seconds and priority."""
        self._used: Counter[str] = Counter()
        self._spent: dict[tuple[str, datetime], Amount] = defaultdict(Amount)
        self._past: deque[tuple[Kind, int, float]] = deque(maxlen=_PAST_JOBS)
        self.costs = CostModel()
        self._learned_at = 0.0
        self._number = 0

    def run(
        self,
        progress: Callable[[int], None] = lambda _: None,
        *,
        until_violation: bool = False,
    ) -> None:
        """Run for the number of days, minute by minute; ``progress`` gets the number of each day."""
        while self.now < self.size.days * DAY:
            if until_violation and self.invariants.number:
                return
            self._measure_due()
            self._learn()
            self._round()
            self._work_until(self.now + ROUND)
            if self.now % HOUR == 0:
                self.records.hourly(self._score)
            if self.now % DAY == 0:
                progress(int(self.now / DAY))
        self.invariants.judge_scores(self.records.scores)

    # --- measurements -------------------------------------------------------------------------------

    def _measure_due(self) -> None:
        """Measure changed tables, the least recently measured first, as many as a round can."""
        changed = (self.fleet.next_change <= self.now) | self._must_measure
        aged = ~changed & (self._measured_at < self.now - DAY)
        is_first = np.isneginf(self._measured_at)
        # An unchanged table has the same figures. Only its time of measurement is new.
        self._measured_at[aged & ~is_first] = self.now
        due = np.flatnonzero(changed | is_first)
        most = self.size.measurements
        if len(due) > most:
            due = due[np.argpartition(self._measured_at[due], most)[:most]]
        self.records.measurements += len(due)
        for table in due:
            self._measure(int(table))

    def _measure(self, table: int) -> None:
        fleet, now = self.fleet, moment(self.now)
        fleet.advance(table, self.now)
        policy = self.tenants[fleet.tenant[table]].policy
        statistics = fleet.statistics(table)
        health = read_costs.assess(statistics, policy)
        was_due_since = float(self._due_since[table])
        turn = rounds.measured_turn(
            statistics=statistics,
            policy=policy,
            saved=[cost.bytes for cost in health.costs],
            planned=maintenance_actions.plan(statistics, policy),
            last_runs=self._runs.of(table),
            created_at=START,
            was_due_since=None if math.isnan(was_due_since) else moment(was_due_since),
            costs=self.costs,
            now=now,
        )
        self._measured_at[table] = self.now
        self._score[table] = health.score
        self._must_measure[table] = False
        due_since = None if turn.due_since is None else _seconds(turn.due_since)
        self._due_since[table] = math.nan if due_since is None else due_since
        if not self._is_active[table]:
            self.invariants.waits(table, due_since)
        self._line_up(table, None if due_since is None else _seconds(turn.at))

    def _line_up(self, table: int, turn: float | None) -> None:
        """Enter a table at its turn; its other entries become invalid."""
        self._turn[table] = math.nan if turn is None else turn
        if turn is not None and not self._is_active[table]:
            heapq.heappush(self._due[self.fleet.tenant[table]], (turn, table))

    def _learn(self) -> None:
        if self.now - self._learned_at < _LEARN_EVERY:
            return
        self._learned_at = self.now
        past: dict[Kind, Sums] = defaultdict(Sums)
        for kind, size, seconds in self._past:
            past[kind] = past[kind].plus(size, seconds)
        self.costs = CostModel(past)

    # --- the scheduler ------------------------------------------------------------------------------

    def _round(self) -> None:
        """A round of the scheduler, with the product's decisions."""
        while self._ended and self._ended[0][0] <= self.now - ROUND:
            self._ended.popleft()
        round_ = Round(
            now=moment(self.now),
            active=self._active_jobs(),
            ended=Counter(key for _, key in self._ended),
            spent=self._spent_since,
            costs=self.costs,
        )
        limiting = len({tenant.policy.limit_key for tenant in self.tenants})
        passed: list[list[tuple[float, int]]] = [[] for _ in self.tenants]
        sources = {
            tenant.name: self._candidates(index, passed[index])
            for index, tenant in enumerate(self.tenants)
        }
        queue = FairQueue(sources, self._used_time())
        self.invariants.used = self._used_by_tenant()
        served: list[Served] = []
        held: set[int] = set()
        names = [tenant.name for tenant in self.tenants]
        for _ in round_.run(queue, partial(self._serve, round_, served, held), names):
            if len(round_.full) >= limiting:
                break
        waiting = set()
        for index, entries in enumerate(passed):
            remaining = [*entries[:_LOOK], *self._due[index][:_LOOK]]
            could_be_served = any(self._is_entry(*e) and e[1] not in held for e in remaining)
            if could_be_served and self.tenants[index].policy.allows(round_.now.time()):
                waiting.add(index)
            for entry in entries:
                if self._is_entry(*entry):
                    heapq.heappush(self._due[index], entry)
        self.invariants.round_ends(served, waiting, self.now)

    def _is_entry(self, turn: float, table: int) -> bool:
        return self._turn[table] == turn and not self._is_active[table]

    def _candidates(self, tenant: int, passed: list[tuple[float, int]]) -> Iterator[rounds.Table]:
        """The due tables of a tenant by turn; those that were looked at are added to ``passed``."""
        entries, policy = self._due[tenant], self.tenants[tenant].policy
        last = None
        while entries:
            entry = heapq.heappop(entries)
            if entry == last or not self._is_entry(*entry):
                continue
            last = entry
            passed.append(entry)
            turn, table = entry
            table_format = FORMATS[self.fleet.format[table]]
            yield rounds.Table(
                pk=table,
                namespace=self.tenants[tenant].name,
                turn=moment(turn),
                measured_at=moment(float(self._measured_at[table])),
                created_at=START,
                policy=policy,
                statistics=partial(self.fleet.statistics, table),
                last_runs=self._runs.of(table),
                obstacles={},
                profile=partial(self._profile, tenant, table_format),
                commits=partial(self.fleet.recent_commits, table, self.now),
            )

    def _profile(self, tenant: int, table_format: str, kind: str) -> str:
        takes_spark = maintenance_actions.require(kind).implementations[table_format].takes_spark
        return (self.tenants[tenant].profile or DEFAULT) if takes_spark else ""

    def _serve(
        self,
        round_: Round,
        served: list[Served],
        held: set[int],
        candidate: rounds.Table,
    ) -> Choice | None:
        choice = round_.choose(candidate)
        table = candidate.pk
        if choice is None:
            held.add(table)
            return None
        tenant, policy = int(self.fleet.tenant[table]), candidate.policy
        job = SimulatedJob(
            pk=self._number,
            table=table,
            tenant=tenant,
            kind=choice.kind,
            format=FORMATS[self.fleet.format[table]],
            choice=choice,
            limit_key=policy.limit_key,
            limit=policy["max_jobs"],
            engine_profile=choice.profile,
            priority=policy["priority"],
            created=self.now,
            created_at=moment(self.now),
            due_since=float(self._due_since[table]),
        )
        self._number += 1
        used = self.invariants.used.get(tenant, 0.0)
        used = next(
            (job.used + job.charge for job in reversed(served) if job.tenant == tenant), used
        )
        cost = max(choice.expected.seconds, 1.0) / policy["priority"]
        served.append(Served(tenant, used, cost))
        self.invariants.chosen(job, held, self.now)
        self.records.chosen(job, self.now)
        self._is_active[table] = True
        self._due_since[table] = self.now
        self._runs.begin(job, self.now)
        self._queue[job.limit_key].append(job)
        return choice

    def _active_jobs(self) -> ActiveJobs:
        active = ActiveJobs(self._free_drivers())
        for job in self._running.values():
            active.add_running(job.limit_key)
        for jobs in self._queue.values():
            for job in jobs:
                active.add(job.limit_key, job.engine_profile)
        return active

    def _free_drivers(self) -> dict[str, int]:
        running = Counter(job.engine_profile for job in self._running.values())
        return {name: number - running[name] for name, number in self._profiles.items()}

    def _used_time(self) -> dict[str, float]:
        """The use of each namespace, as the scheduler computes it from rows."""
        while self._recent and self._recent[0][0] <= self.now - _HISTORY:
            _, tenant, seconds, priority = self._recent.popleft()
            self._used[self.tenants[tenant].name] -= fairness.charge(seconds, priority)
        used = Counter(self._used)
        for job in self._active():
            charge = fairness.charge(self._elapsed(job), job.priority)
            used[self.tenants[job.tenant].name] += charge
        return used

    def _used_by_tenant(self) -> dict[int, float]:
        """The same for the checks, without the functions that they check."""
        used: dict[int, float] = defaultdict(float)
        for _, tenant, seconds, priority in self._recent:
            used[tenant] += max(seconds, 1.0) / priority
        for job in self._active():
            used[job.tenant] += max(self._elapsed(job), 1.0) / job.priority
        return used

    def _elapsed(self, job: SimulatedJob) -> float:
        return 0.0 if math.isnan(job.started) else self.now - job.started

    def _active(self) -> Iterator[SimulatedJob]:
        yield from self._running.values()
        for jobs in self._queue.values():
            yield from jobs

    def _spent_since(self, key: str, since: datetime) -> Amount:
        total = self._spent[key, since]
        for job in self._active():
            if job.limit_key != key:
                continue
            expected = job.choice.expected
            total += Amount(max(self._elapsed(job), expected.seconds), expected.bytes)
        return total

    # --- workers ------------------------------------------------------------------------------------

    def _work_until(self, until: float) -> None:
        """Let workers take, finish and repeat jobs until a moment."""
        self._take()
        while self._events and self._events[0][0] <= until:
            self.now, _, event, job = heapq.heappop(self._events)
            if event == "ready":
                self._queue[job.limit_key].appendleft(job)
            else:
                self._end(job)
            self._take()
        self.now = until

    def _take(self) -> None:
        """Free workers take the jobs that the product's queue selects."""
        free = self.size.workers - len(self._running)
        if free <= 0:
            return
        running = Counter(job.limit_key for job in self._running.values())
        places = Places(running, self._free_drivers())
        heads = []
        for jobs in self._queue.values():
            turns: Counter[str] = Counter()
            for job in list(jobs)[: 4 * free]:
                turns[job.engine_profile] += 1
                order = rank(turns[job.engine_profile], Use(), job.created_at, job.pk)
                heads.append((order, job))
        heads.sort(key=lambda item: item[0])
        for job in places.select((job for _, job in heads), free):
            self._queue[job.limit_key].remove(job)
            self.truth.attempt(job, self.now)
            self._running[job.table] = job
            self.invariants.starts(job, self.now)
            heapq.heappush(self._events, (self.now + job.seconds, job.pk, "end", job))

    def _end(self, job: SimulatedJob) -> None:
        """An attempt ends: the job is done, repeated, or has failed."""
        del self._running[job.table]
        self.invariants.ends(job)
        self.records.ended(job, self.now, is_busy=is_busy_hour(self.now))
        window = self.tenants[job.tenant].policy.window_began(moment(job.started))
        amount = Amount(job.seconds, job.choice.expected.bytes)
        self._recent.append((self.now, job.tenant, job.seconds, job.priority))
        name = self.tenants[job.tenant].name
        self._used[name] += fairness.charge(job.seconds, job.priority)
        self._spent[job.limit_key, window] += amount
        budget = rounds.budget_of(self.tenants[job.tenant].policy)
        if limits.is_limited(budget):
            self.invariants.spends(job.limit_key, _seconds(window), budget, amount)
        if job.outcome != "done" and job.attempts < MAX_ATTEMPTS:
            delay = holds.retry_delay(job.attempts).total_seconds()
            delay = 0.0 if job.outcome == "death" else delay  # its lease has passed
            job.started = math.nan
            heapq.heappush(self._events, (self.now + delay, job.pk, "ready", job))
            return
        self._ended.append((self.now, job.limit_key))
        self.records.failed += job.outcome != "done"
        if job.outcome == "done":
            self.fleet.advance(job.table, self.now)
            self.fleet.apply(job.table, job.kind)
            engine = "spark" if job.format == "iceberg" else "worker"
            kind = Kind(job.kind, job.format, engine)
            self._past.append((kind, job.choice.expected.bytes, job.seconds))
        self._runs.end(job, self.now, version=int(self.fleet.version[job.table]))
        self._must_measure[job.table] = True
        self._is_active[job.table] = False  # it gets the next job after it is measured again
        self._line_up(job.table, None)


_LOOK = 9
"""Tables of a tenant that a check of fairness looks at."""
_HISTORY = fairness.HISTORY.total_seconds()


def _seconds(when: datetime) -> float:
    return (when - START).total_seconds()


def cost_errors(world: World) -> dict[str, float]:
    """The relative error of the learned costs of a job of 100 MiB, by action and format."""
    errors = {}
    for kind in sorted(world.costs.past):
        size = 100 * 1024**2 if kind.action == "compact" else 0
        true = world.truth.expected(kind.action, kind.format, size)
        errors[f"{kind.action} ({kind.format})"] = world.costs.seconds(kind, size) / true - 1
    return errors
