"""The faults, and who does them: one at a time, again and again, for as long as the load runs."""

import contextlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection

import psutil
import psycopg

from tests.chaos.harness.cluster import Cluster
from tests.chaos.harness.disks import Disks
from tests.chaos.harness.proxy import Proxy

_RESTARTS = 6
"""Kills of one kind in a minute. The supervisor gives up on a part that dies ten times in one."""
_STOPPED = (0.3, 2.5)
"""Seconds for which a process is stopped."""


class Nemesis:
    """``progress`` counts acknowledged operations: a fault is over when these go on.

    ``only`` names the faults to do, if not all.
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
        only: Collection[str] = (),
    ) -> None:
        self._cluster, self._proxy, self._disks = cluster, proxy, disks
        self._dice = random.Random(f"{seed} nemesis")
        self._progress, self._pause = progress, pause
        self._recent: dict[str, deque[float]] = {}
        self.counts: Counter[str] = Counter()
        self.outages: list[float] = []
        """How long it took after each fault until writes were acknowledged again."""
        self.stuck = ""
        """The fault after which nothing was acknowledged for two minutes."""
        self._faults: list[tuple[str, Callable[[], bool], float]] = [
            ("kill web", lambda: self._kill("web"), 2),
            ("kill web process", lambda: self._kill_child("web"), 4),
            ("terminate backend", self._terminate_backend, 4),
            ("kill backend", self._kill_backend, 4),
            ("kill postmaster", lambda: self._kill("postgres"), 2),
            ("kill broker", lambda: self._kill("broker"), 2),
            ("kill worker", lambda: self._kill("worker"), 2),
            ("kill beat", lambda: self._kill("beat"), 1),
            ("stop web process", lambda: self._stop(self._child("web")), 2),
            ("stop backend", lambda: self._stop(self._backend()), 2),
            ("stop postmaster", lambda: self._stop(cluster.process("postgres")), 1),
            ("stop broker", lambda: self._stop(cluster.process("broker")), 1),
            ("stop worker", lambda: self._stop(self._child("worker")), 1),
            ("lose answers", self._lose_answers, 3),
        ]
        for name in disks.names:
            self._faults.append((f"fill {name}", lambda name=name: self._fill(name), 1.5))
        if only:
            self._faults = [fault for fault in self._faults if fault[0] in only]

    def run(self, stop: threading.Event) -> None:
        # Each kind once in random order, so that a short run has them all; then by weight.
        names = [name for name, _, _ in self._faults]
        first = self._dice.sample(names, len(names))
        while not stop.is_set():
            name = first.pop() if first else self._choose()
            if not self._is_due(name):
                stop.wait(0.5)
                continue
            before = self._progress()
            started = time.monotonic()
            if self._do(name):
                self.counts[name] += 1
                self._recent.setdefault(name, deque(maxlen=_RESTARTS)).append(started)
                self._await_progress(name, before, stop)
                self.outages.append(time.monotonic() - started)
            stop.wait(self._dice.uniform(0, 2 * self._pause))

    @property
    def kills(self) -> int:
        return sum(n for name, n in self.counts.items() if name.startswith(("kill", "terminate")))

    def _choose(self) -> str:
        names, weights = [name for name, _, _ in self._faults], [w for _, _, w in self._faults]
        return self._dice.choices(names, weights)[0]

    def _is_due(self, name: str) -> bool:
        if not name.startswith("kill"):
            return True
        recent = self._recent.get(name, ())
        return len(recent) < _RESTARTS or time.monotonic() - recent[0] > 65

    def _do(self, name: str) -> bool:
        function = next(function for known, function, _ in self._faults if known == name)
        with contextlib.suppress(psutil.Error, psycopg.Error, OSError):
            return function()
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
        """Of those that are at work now, if any."""
        with self._cluster.database(connect_timeout=5) as connection:
            done = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
                " ORDER BY state = 'idle', random() LIMIT 1"
            ).fetchone()
        return done is not None

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
