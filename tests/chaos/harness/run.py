"""One run: start, load, break, heal, read everything once more, judge."""

import contextlib
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.harness import engines, judges, ledger, report
from tests.chaos.harness.clients import Client
from tests.chaos.harness.cluster import KEY, Cluster
from tests.chaos.harness.disks import Disks
from tests.chaos.harness.history import OK, History
from tests.chaos.harness.judges import Anomaly
from tests.chaos.harness.nemesis import Nemesis
from tests.chaos.harness.proxy import Proxy
from tests.chaos.harness.spaces import Spaces
from tests.chaos.harness.transport import Connection, NotSent

_AFTERWARDS = 40.0
"""Seconds that a short run may need after its load: healing, reading, judging, stopping."""


@dataclass(frozen=True)
class Plan:
    """What a run does. ``seconds`` are those under load and faults."""

    seconds: float
    seed: int
    clients: int = 12
    spaces: int = 5
    lifetime: int = 400
    engines: bool = True
    disks: bool = True
    pause: float = 1.5
    faults: tuple[str, ...] = ()
    """The names of the only faults to do; empty: all."""
    budget: float | None = None
    """Seconds for the whole run: a slow start shortens the load, to a third at most."""
    keep: Path | None = None
    """Where the history stays; else it goes with the home."""


def run(plan: Plan, say: Callable[[str], None] = print) -> report.Result:
    """Raises RuntimeError if Monodon does not start, or does not come back."""
    clock = _Clock()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="monodon-chaos-")))
        home.chmod(0o711)  # as root, PostgreSQL runs as another user and must pass through
        disks = stack.enter_context(Disks(home, megabytes=512 + int(plan.seconds * 1.5)))
        cluster = stack.enter_context(Cluster(home))
        clock.lap("start")
        if plan.disks:
            cluster.stop()
            disks.move(home / "postgres")
            cluster.start()
            clock.lap("moving to small disks")
        say(f"Monodon runs at {cluster.url}; seed {plan.seed}")
        return _Run(_Parts(plan, cluster, disks, clock, say), stack).result()


class _Clock:
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
    clock: _Clock
    say: Callable[[str], None]


class _Run:
    def __init__(self, parts: _Parts, stack: contextlib.ExitStack) -> None:
        plan, cluster, disks = parts.plan, parts.cluster, parts.disks
        self._plan, self._cluster, self._disks = plan, cluster, disks
        self._clock, self._say = parts.clock, parts.say
        self._counted = 0
        directory = plan.keep or cluster.home
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"history-{plan.seed}.jsonl"
        self._history = History(self._path)
        stack.callback(self._history.close)
        self._proxy = stack.enter_context(Proxy(cluster.port))
        self._spaces = Spaces(
            cluster.warehouse / f"harness-{uuid.uuid4().hex[:8]}", plan.spaces, plan.lifetime
        )
        self._acknowledged = 0
        self._nemesis = Nemesis(
            cluster,
            self._proxy,
            disks,
            seed=plan.seed,
            progress=self._progress,
            pause=plan.pause,
            only=plan.faults,
        )
        self._follower = ledger.Follower(Connection(cluster.url, KEY))
        self._engines: list[engines.Engine] = []

    def _progress(self) -> int:
        """Acknowledged writes; counted from where it left off."""
        operations = self._history.operations
        end = len(operations)
        done = operations[self._counted : end]
        self._counted = end
        self._acknowledged += sum(op.outcome == OK and op.is_write for op in done)
        return self._acknowledged

    def result(self) -> report.Result:
        with self._load():
            self._sleep()
        self._clock.lap("load and faults")
        self._cluster.resume_all()
        self._cluster.wait_ready()
        self._cluster.wait_until_idle()
        self._read_everything()
        self._clock.lap("reading everything")
        with self._cluster.database() as connection:
            rows = ledger.load(connection)
        anomalies, verdicts = judges.judge(self._history.operations, rows, self._follower.events)
        anomalies += engines.judge(self._history.operations)
        lines = self._cluster.log.splitlines() if anomalies else []
        anomalies = [anomaly.with_log(lines) for anomaly in anomalies]
        if self._plan.keep:
            log = self._plan.keep / f"server-{self._plan.seed}.log"
            log.write_text(self._cluster.log, encoding="utf-8")
        if self._nemesis.stuck:
            anomalies.append(Anomaly("no progress", f"after {self._nemesis.stuck}"))
        self._clock.lap("judging")
        operations = self._history.operations
        return report.Result(
            seed=self._plan.seed,
            seconds=self._clock.laps["load and faults"],
            operations=len(operations),
            outcomes=dict(Counter(operation.outcome for operation in operations)),
            commits=len(rows.transactions),
            events=len(self._follower.events),
            spaces=len(verdicts),
            undecided=sum(verdict.result == "undecided" for verdict in verdicts),
            faults=dict(self._nemesis.counts),
            kills=self._nemesis.kills,
            longest_outage=max(self._nemesis.outages, default=0.0),
            left_out=_left_out(self._plan, self._disks),
            anomalies=anomalies,
            commit=report.commit(),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=report.machine(),
            phases=self._clock.laps,
            history=str(self._path) if self._plan.keep else "",
        )

    @contextlib.contextmanager
    def _load(self) -> Iterator[None]:
        plan, cluster = self._plan, self._cluster
        clients = [self._client(number) for number in range(plan.clients)]
        if plan.engines:
            self._engines = _create_engines(cluster, self._history, plan.seed)
        stop, calm = threading.Event(), threading.Event()
        load = [
            threading.Thread(target=client.run, args=(stop,), name=f"client {client.number}")
            for client in clients
        ]
        load += [threading.Thread(target=engine.run, args=(stop,)) for engine in self._engines]
        load.append(threading.Thread(target=self._follower.run, args=(stop,)))
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

    def _client(self, number: int) -> Client:
        """Every fourth goes through the proxy that loses answers."""
        url = self._proxy.url if number % 4 == 3 else self._cluster.url
        connection = Connection(url, KEY)
        return Client(number, connection, self._spaces, self._history, self._plan.seed)

    def _sleep(self) -> None:
        started = time.monotonic()
        seconds = self._plan.seconds
        if self._plan.budget is not None:
            left = self._plan.budget - sum(self._clock.laps.values()) - _AFTERWARDS
            seconds = min(seconds, max(left, seconds / 3))
        while (elapsed := time.monotonic() - started) < seconds:
            time.sleep(min(30.0, seconds - elapsed))
            if self._nemesis.stuck:
                return
            self._say(
                f"{time.monotonic() - started:6.0f} s  {len(self._history.operations)} operations,"
                f" {self._nemesis.kills} kills"
            )

    def _read_everything(self) -> None:
        connection = Connection(self._cluster.url, KEY)
        number = self._plan.clients
        reader = Client(number, connection, self._spaces, self._history, self._plan.seed)
        for space in self._spaces.all:
            for _ in range(20):  # the server may still be coming back
                try:
                    reader.read_all(space)
                    break
                except NotSent:
                    time.sleep(0.5)
        for engine in self._engines:
            engine.read()
        self._follower.finish()


def _create_engines(cluster: Cluster, history: History, seed: int) -> list[engines.Engine]:
    made: list[engines.Engine] = []
    probe = engines.Operation("engines", -1, engines.SPACE, "create namespace")
    Connection(cluster.url, KEY).send(probe, "POST", f"/v1/namespace/{engines.SPACE}/create")
    for kind, first in ((engines.LanceEngine, 1001), (engines.IcebergEngine, 2001)):
        pair = [kind(first + n, cluster.url, KEY, history, seed=seed) for n in range(2)]
        pair[0].create()
        made += pair
    return made


def _left_out(plan: Plan, disks: Disks) -> list[str]:
    reasons = []
    if not plan.disks:
        reasons.append("full disks: not in this version")
    elif disks.missing:
        reasons.append(f"full disks: {disks.missing}")
    if plan.faults:
        reasons.append(f"all faults but {', '.join(plan.faults)}")
    return reasons
