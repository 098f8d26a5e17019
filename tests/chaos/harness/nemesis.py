"""The faults, and the nemesis that injects them one at a time while the load runs."""

import contextlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil
import psycopg

from tests.chaos.harness.cluster import Cluster
from tests.chaos.harness.disks import Disks
from tests.chaos.harness.proxy import Proxy

_RESTARTS = 4
"""Kills per minute of supervised processes. The supervisor increases the pause before each
restart, and gives up after ten deaths."""
_SUPERVISED = {"kill web", "kill postmaster", "kill broker", "kill worker", "kill beat"}
_STOPPED = (0.3, 2.5)
"""Seconds for which a process is stopped, or the clock is off."""
_JUMPS = (-600, -40, 40, 600)


@dataclass(frozen=True)
class Pace:
    """Faults per minute. By default faults follow each other ``pause`` seconds apart."""

    kills: float
    others: float


class Nemesis:
    """``progress`` counts acknowledged operations: a fault is over when the count increases again.

    ``only`` names the faults to inject, by default all.
    """

    def __init__(
        self,
        cluster: Cluster,
        proxy: Proxy,
        disks: Disks,
        *,
        seed: int,
        progress: Callable[[], int],
        pause: float = 2.0,
        pace: Pace | None = None,
        only: Collection[str] = (),
    ) -> None:
        self._cluster, self._proxy, self._disks = cluster, proxy, disks
        self._dice = random.Random(f"{seed} nemesis")
        self._progress, self._pause, self._pace = progress, pause, pace
        self._recent: dict[str, deque[float]] = {}
        self.counts: Counter[str] = Counter()
        self.outages: dict[str, list[float]] = {}
        """Seconds after each fault until writes were acknowledged again, by the fault's name."""
        self.stuck = ""
        """The fault after which no write was acknowledged for two minutes."""
        # Faults with a short recovery are frequent, since they leave time for operations.
        self._faults: dict[str, tuple[Callable[[], bool], float]] = {
            "kill web": (lambda: self._kill("web"), 0.3),
            "kill web process": (lambda: self._kill_child("web"), 1),
            "terminate backend": (self._terminate_backend, 9),
            "kill backend": (self._kill_backend, 2.5),
            "kill postmaster": (lambda: self._kill("postgres"), 0.7),
            "kill broker": (lambda: self._kill("broker"), 3.5),
            "kill worker": (lambda: self._kill("worker"), 0.5),
            "kill beat": (lambda: self._kill("beat"), 0.4),
            "stop web process": (lambda: self._stop(self._child("web")), 2),
            "stop backend": (lambda: self._stop(self._backend()), 2),
            "stop postmaster": (lambda: self._stop(cluster.process("postgres")), 1),
            "stop broker": (lambda: self._stop(cluster.process("broker")), 1),
            "stop worker": (lambda: self._stop(self._child("worker")), 1),
            "lose answers": (self._lose_answers, 3),
        }
        if cluster.clock is not None and cluster.clock.is_there:
            self._faults["jump clock"] = (self._jump_clock, 2)
        for name in disks.names:
            self._faults[f"fill {name}"] = (lambda name=name: self._fill(name), 1)
        if cluster.pair is not None:
            self._faults["fail over"] = (self._fail_over, 4)
        if only:
            self._faults = {name: fault for name, fault in self._faults.items() if name in only}

    def run(self, stop: threading.Event) -> None:
        # Each kind once in random order, so that a short run includes all; then by weight.
        first = self._dice.sample(list(self._faults), len(self._faults))
        began = time.monotonic()
        while not stop.is_set() and self._faults:
            name = first.pop() if first else self._choose(time.monotonic() - began)
            if not name or not self._is_due(name):
                stop.wait(0.2)
                continue
            before = self._progress()
            started = time.monotonic()
            if self._do(name):
                self.counts[name] += 1
                self._recent.setdefault(name, deque(maxlen=_RESTARTS)).append(started)
                self._await_progress(name, before, stop)
                self.outages.setdefault(name, []).append(time.monotonic() - started)
            stop.wait(0.1 if self._pace else self._dice.uniform(0, 2 * self._pause))

    @property
    def kills(self) -> int:
        return sum(n for name, n in self.counts.items() if _is_kill(name))

    def _choose(self, elapsed: float) -> str:
        """The next fault; empty if none is due yet."""
        names = list(self._faults)
        if self._pace is not None:
            others = self.counts.total() - self.kills
            if self.kills < self._pace.kills * elapsed / 60:
                names = [name for name in names if _is_kill(name)]
            elif others < self._pace.others * elapsed / 60:
                names = [name for name in names if not _is_kill(name)]
            else:
                return ""
        weights = [self._faults[name][1] for name in names]
        return self._dice.choices(names, weights)[0] if names else ""

    def _is_due(self, name: str) -> bool:
        if name not in _SUPERVISED:
            return True
        recent = self._recent.get(name, ())
        return len(recent) < _RESTARTS or time.monotonic() - recent[0] > 65

    def _do(self, name: str) -> bool:
        with contextlib.suppress(psutil.Error, psycopg.Error, OSError):
            return self._faults[name][0]()
        return False

    def _await_progress(self, name: str, before: int, stop: threading.Event) -> None:
        deadline = time.monotonic() + 120
        while self._progress() < before + 10 and not stop.is_set():
            if time.monotonic() > deadline:
                self.stuck = self.stuck or name
                return
            time.sleep(0.02)

    # -- faults

    def _kill(self, role: str) -> bool:
        process = self._cluster.process(role)
        if process is None:
            return False
        process.kill()
        return True

    def _kill_child(self, role: str) -> bool:
        process = self._child(role)
        if process is None:
            return False
        process.kill()
        return True

    def _child(self, role: str) -> psutil.Process | None:
        children = self._cluster.children(role)
        return self._dice.choice(children) if children else None

    def _backend(self) -> psutil.Process | None:
        backends = self._cluster.backends()
        return self._dice.choice(backends) if backends else None

    def _kill_backend(self) -> bool:
        process = self._backend()
        if process is None:
            return False
        process.kill()
        return True

    def _terminate_backend(self) -> bool:
        """The faults that are active now, if any."""
        with self._cluster.database(connect_timeout=5) as connection:
            terminated = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
                " ORDER BY state = 'idle', random() LIMIT 1"
            ).fetchone()
        return terminated is not None

    def _stop(self, process: psutil.Process | None) -> bool:
        if process is None:
            return False
        process.suspend()
        try:
            time.sleep(self._dice.uniform(*_STOPPED))
        finally:
            process.resume()
        return True

    def _lose_answers(self) -> bool:
        before = self._proxy.lost
        self._proxy.is_losing = True
        try:
            time.sleep(self._dice.uniform(0.3, 1.0))
        finally:
            self._proxy.is_losing = False
        return self._proxy.lost > before

    def _fill(self, name: str) -> bool:
        with self._disks.full(name):
            time.sleep(self._dice.uniform(0.5, 2.5))
        return True

    def _jump_clock(self) -> bool:
        """Shift the clock and restore it: two jumps."""
        clock = self._cluster.clock
        if clock is None:
            return False
        clock.set_off(self._dice.choice(_JUMPS))
        try:
            time.sleep(self._dice.uniform(*_STOPPED))
        finally:
            clock.set_off(0)
        return True

    def _fail_over(self) -> bool:
        pair = self._cluster.pair
        return pair is not None and pair.fail_over()


def _is_kill(name: str) -> bool:
    return name.startswith(("kill", "terminate", "fail over"))
