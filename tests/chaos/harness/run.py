"""One run: start, load, faults, recovery, final reads, judgement."""

import contextlib
import queue
import resource
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.harness import engines, judges, ledger, report
from tests.chaos.harness.background import BackgroundJudge, View, read_view
from tests.chaos.harness.clients import Client
from tests.chaos.harness.clock import Clock
from tests.chaos.harness.cluster import KEY, Cluster
from tests.chaos.harness.disks import Disks
from tests.chaos.harness.history import History
from tests.chaos.harness.judges import Anomaly
from tests.chaos.harness.nemesis import Nemesis, Pace
from tests.chaos.harness.pair import Pair
from tests.chaos.harness.proxy import Proxy
from tests.chaos.harness.spaces import Space, Spaces
from tests.chaos.harness.transport import Connection, NotSent

_AFTERWARDS = 40.0
"""Seconds that a short run may need after its load: recovery, reads, judgement, stop."""
_READERS = 4


@dataclass(frozen=True)
class Plan:
    """Plan of a run. ``seconds`` is the time under load and faults."""

    seconds: float
    seed: int
    clients: int = 12
    client_pause: float = 0.0
    """Seconds between the operations of a client, which uses a whole processor otherwise."""
    spaces: int = 5
    lifetime: int = 400
    engines: bool = True
    engine_pause: float = 0.3
    disks: bool = True
    clock: bool = True
    replica: bool = False
    """Two PostgreSQL servers, and failovers from one to the other."""
    pause: float = 1.5
    pace: Pace | None = None
    """Faults per minute; by default there are ``pause`` seconds between faults."""
    faults: tuple[str, ...] = ()
    """Names of the faults to inject; empty: all."""
    kills: int = 0
    operations: int = 0
    """Goals: the load continues until both are reached."""
    overtime: float = 1.25
    """Factor by which the load may exceed ``seconds`` to reach the goals."""
    budget: float | None = None
    """Seconds for the whole run: a slow start shortens the load, to a third at most."""
    keep: Path | None = None
    """File for the history; by default it is deleted with the home directory."""


def run(plan: Plan, say: Callable[[str], None] = print) -> report.Result:
    """Execute a plan. Raises RuntimeError if Monodon does not start or does not recover."""
    laps = _Laps()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="monodon-chaos-")))
        home.chmod(
            0o711
        )  # as root, PostgreSQL runs as another user, which must be able to enter the directory
        clock = Clock(home) if plan.clock else None
        pair = stack.enter_context(Pair(home)) if plan.replica else None
        disks = stack.enter_context(Disks(home, megabytes=768 + int(plan.seconds * 2)))
        cluster = stack.enter_context(Cluster(home, clock=clock, pair=pair))
        laps.lap("start")
        if plan.disks and pair is None:
            cluster.stop()
            disks.move(home / "postgres")
            cluster.start()
            laps.lap("moving to small disks")
        left_out = _left_out(plan, disks, clock)
        for reason in left_out:
            say(f"left out: {reason}")
        say(f"Monodon runs at {cluster.url}; seed {plan.seed}")
        return _Run(_Parts(plan, cluster, disks, laps, say, left_out), stack).result()


class _Laps:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = round(now - self._last, 1), now


@dataclass(frozen=True)
class _Parts:
    plan: Plan
    cluster: Cluster
    disks: Disks
    laps: _Laps
    say: Callable[[str], None]
    left_out: list[str]


class _Run:
    def __init__(self, parts: _Parts, stack: contextlib.ExitStack) -> None:
        plan, cluster, disks = parts.plan, parts.cluster, parts.disks
        self._plan, self._cluster = plan, cluster
        self._laps, self._say, self._left_out = parts.laps, parts.say, parts.left_out
        directory = plan.keep or cluster.home
        name = f"history-{plan.seed}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        self._history = History(directory / name)
        stack.callback(self._history.close)
        self._proxy = stack.enter_context(Proxy(cluster.port))
        self._spaces = Spaces(
            cluster.warehouse / f"harness-{uuid.uuid4().hex[:8]}", plan.spaces, plan.lifetime
        )
        self._nemesis = Nemesis(
            cluster,
            self._proxy,
            disks,
            seed=plan.seed,
            progress=lambda: self._history.acknowledged,
            pause=plan.pause,
            pace=plan.pace,
            only=plan.faults,
        )
        self._judge = BackgroundJudge(
            cluster, self._history, self._spaces, self._client(plan.clients), self._say
        )
        self._follower = ledger.Follower(Connection(cluster.url, KEY))
        self._engines: list[engines.Engine] = []

    def result(self) -> report.Result:
        with self._load():
            self._sleep()
        self._laps.lap("load and faults")
        self._cluster.resume_all()
        self._cluster.wait_ready()
        self._cluster.wait_until_idle()
        views = self._read_everything()
        self._laps.lap("reading everything")
        with self._cluster.database() as connection:
            rows = ledger.load(connection)
        judged, anomalies = self._judge_everything(rows, views)
        if anomalies:
            lines = self._cluster.log.splitlines()
            anomalies = [anomaly.with_log(lines) for anomaly in anomalies[:200]] + anomalies[200:]
        if self._plan.keep:
            log = self._plan.keep / f"server-{self._plan.seed}.log"
            log.write_text(self._cluster.log, encoding="utf-8")
        if self._nemesis.stuck:
            anomalies.append(Anomaly("no progress", f"after {self._nemesis.stuck}"))
        self._laps.lap("judging")
        verdicts = self._judge.verdicts
        return report.Result(
            seed=self._plan.seed,
            seconds=self._laps.laps["load and faults"],
            sent=self._history.operations,
            operations=judged,
            outcomes=dict(self._history.outcomes),
            commits=len(rows.transactions),
            events=len(self._follower.events),
            spaces=len(verdicts),
            undecided=sum(verdict.result == "undecided" for verdict in verdicts),
            faults=dict(self._nemesis.counts),
            kills=self._nemesis.kills,
            outages={name: max(outages) for name, outages in self._nemesis.outages.items()},
            left_out=self._left_out,
            anomalies=anomalies,
            commit=report.commit(),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=report.machine(),
            memory=_megabytes(),
            phases=self._laps.laps,
            history=str(self._history.directory) if self._plan.keep else "",
        )

    @contextlib.contextmanager
    def _load(self) -> Iterator[None]:
        plan, cluster = self._plan, self._cluster
        clients = [self._client(number) for number in range(plan.clients)]
        if plan.engines:
            self._engines = _create_engines(cluster, self._history, plan)
        stop, calm = threading.Event(), threading.Event()
        load = [
            threading.Thread(
                target=client.run, args=(stop, plan.client_pause), name=f"client {client.number}"
            )
            for client in clients
        ]
        load += [threading.Thread(target=engine.run, args=(stop,)) for engine in self._engines]
        load.append(threading.Thread(target=self._follower.run, args=(stop,)))
        load.append(threading.Thread(target=self._judge.run, args=(stop,)))
        nemesis = threading.Thread(target=self._nemesis.run, args=(calm,))
        for thread in (*load, nemesis):
            thread.start()
        try:
            yield
        finally:
            calm.set()
            nemesis.join()
            cluster.resume_all()
            stop.set()
            for thread in load:
                thread.join()
            self._judge.close()

    def _client(self, number: int) -> Client:
        """A client; every fourth one uses the proxy that loses answers."""
        url = self._proxy.url if number % 4 == 3 else self._cluster.url
        connection = Connection(url, KEY)
        return Client(number, connection, self._spaces, self._history, self._plan.seed)

    def _sleep(self) -> None:
        started = time.monotonic()
        seconds = self._plan.seconds
        if self._plan.budget is not None:
            remaining = self._plan.budget - sum(self._laps.laps.values()) - _AFTERWARDS
            seconds = min(seconds, max(remaining, seconds / 3))
        longest = seconds * self._plan.overtime
        while (elapsed := time.monotonic() - started) < longest:
            remaining = seconds - elapsed
            if remaining <= 0 and self._goals_are_reached():
                return
            time.sleep(min(30.0, remaining) if remaining > 0 else min(5.0, longest - elapsed))
            if self._nemesis.stuck:
                return
            self._report_progress(time.monotonic() - started)

    def _goals_are_reached(self) -> bool:
        is_long_enough = self._history.judged >= self._plan.operations
        return is_long_enough and self._nemesis.kills >= self._plan.kills

    def _report_progress(self, elapsed: float) -> None:
        operations, kills = self._history.operations, self._nemesis.kills
        verdicts = self._judge.verdicts
        wrong = sum(verdict.result != "linearizable" for verdict in verdicts)
        self._say(
            f"{elapsed:6.0f} s  {operations} operations ({operations / elapsed:.0f}/s),"
            f" {kills} kills ({kills / elapsed * 60:.1f}/min),"
            f" {len(verdicts)} of {len(self._spaces.all)} namespaces judged, {wrong} not linearizable,"
            f" {_megabytes()} MB"
        )

    # -- after the load

    def _read_everything(self) -> dict[str, View | None]:
        views: dict[str, View | None] = {}
        spaces: queue.SimpleQueue[Space] = queue.SimpleQueue()
        for space in self._spaces.all:
            spaces.put(space)

        def read(number: int) -> None:
            connection = Connection(self._cluster.url, KEY)
            reader = Client(number, connection, self._spaces, self._history, self._plan.seed)
            with contextlib.suppress(queue.Empty), contextlib.closing(connection):
                while True:
                    space = spaces.get_nowait()
                    views[space.name] = _read_patiently(reader, space)

        first = self._plan.clients + 1
        readers = [threading.Thread(target=read, args=(first + n,)) for n in range(_READERS)]
        for thread in readers:
            thread.start()
        for thread in readers:
            thread.join()
        for engine in self._engines[::2]:  # one of each format
            engine.read_all()
        self._follower.finish()
        self._follower.close()
        return views

    def _judge_everything(
        self, rows: ledger.Ledger, views: dict[str, View | None]
    ) -> tuple[int, list[Anomaly]]:
        """The number of judged operations, and the anomalies."""
        times, values, committed = rows.times, rows.values, rows.committed
        # Store the histories as well, so that they can be judged again.
        requests = "\n".join(sorted(committed))
        (self._history.directory / "committed.txt").write_text(requests + "\n", encoding="utf-8")
        judged, anomalies = 0, judges.of_ledger(rows, self._follower.events)
        for name in [space.name for space in self._spaces.all]:
            operations = self._judge.finish(name, views.get(name), committed)
            anomalies += self._judge.anomalies.get(name, [])
            anomalies += judges.of_operations(operations, times, values)
            judged += sum(operation.is_judged for operation in operations)
        operations = self._history.read(engines.SPACE)
        anomalies += engines.judge(operations)
        judged += sum(operation.is_judged for operation in operations)
        return judged, anomalies


def _read_patiently(reader: Client, space: Space) -> View | None:
    """Read, with retries while the server recovers."""
    for _ in range(20):
        with contextlib.suppress(NotSent):
            if (view := read_view(reader, space)) is not None:
                return view
        time.sleep(0.5)
    return None


def _create_engines(cluster: Cluster, history: History, plan: Plan) -> list[engines.Engine]:
    made: list[engines.Engine] = []
    probe = engines.Operation("engines", -1, engines.SPACE, "create namespace")
    with contextlib.closing(Connection(cluster.url, KEY)) as connection:
        connection.send(probe, "POST", f"/v1/namespace/{engines.SPACE}/create")
    for kind, name, first in (
        (engines.LanceEngine, "lance", 1001),
        (engines.IcebergEngine, "iceberg", 2001),
    ):
        shared = engines.Shared(name)
        made += [
            kind(
                first + n, cluster.url, KEY, history, shared,
                seed=plan.seed, pause=plan.engine_pause,
            )
            for n in range(2)
        ]  # fmt: skip
    return made


def _left_out(plan: Plan, disks: Disks, clock: Clock | None) -> list[str]:
    reasons = []
    if plan.replica:
        reasons.append("full disks: not with a replica")
    else:
        reasons.append("failover: only with a replica")
        if not plan.disks:
            reasons.append("full disks: not in this version")
        elif disks.missing:
            reasons.append(f"full disks: {disks.missing}")
    if clock is None or clock.missing:
        reasons.append(f"jumps of the clock: {clock.missing if clock else 'not in this version'}")
    if plan.faults:
        reasons.append(f"all faults but {', '.join(plan.faults)}")
    return reasons


def _megabytes() -> int:
    """Peak memory of this process, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (2**20 if sys.platform == "darwin" else 2**10)
