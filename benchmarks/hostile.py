"""Measure the throughput of honest clients, and the latency of /health/live, under attack.

    python -m benchmarks.hostile [--sockets 2000] [--seconds 10] [--kinds slow_body,idle]

Kinds of sockets that want to cost the server more than they cost their owner (benchmarks/attackers.py), each
from addresses of their own on the loopback network. Meanwhile wrk describes tables as an honest client does,
and /health/live is asked 20 times a second.

Real attackers use other machines. Here they share the processors of the server, so a row has several figures:

capacity    what the server keeps: CPU of the web server and PostgreSQL per honest request without an attack,
            divided by the same with it
honest      requests of honest clients per second of the CPU time that attackers do not use, relative to the same
            without an attack. Idle time counts as not used: a server that waits gains nothing.
by clock    requests of honest clients per second, relative to the same without an attack
dummy       the same while the attackers attack a dummy in another process instead (benchmarks/attack_sink.py),
            which closes their connections as often: what attackers and network take from the processors
alone       CPU of the web server and PostgreSQL for the attack, without honest clients
"""

import argparse
import resource
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Self

from benchmarks.attack_sink import Sink, lifetimes
from benchmarks.attackers import KINDS, Attack, Target
from server.options import PROJECT

GOAL_LIVE_MS, GOAL_SHARE = 100.0, 0.8
_CONNECTIONS = 8
_NAMESPACES, _TABLES = 10, 20
_BEFORE_SECONDS, _ALONE_SECONDS = 5.0, 3.0
"""The times of an attack before and after the honest load."""


def _own_cpu_seconds() -> float:
    """CPU of this process and of wrk."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Pulse:
    """Latency of /health/live, measured 20 times a second, each time over a new connection."""

    def __init__(self, port: int) -> None:
        self.milliseconds: list[float] = []
        self._url = f"http://127.0.0.1:{port}/health/live"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(0.05):
            began = time.perf_counter()
            try:
                with urllib.request.urlopen(self._url, timeout=10) as answer:
                    answer.read()
            except OSError:
                self.milliseconds.append(10_000.0)
            else:
                self.milliseconds.append((time.perf_counter() - began) * 1000)

    def percentile(self, fraction: float) -> float:
        ordered = sorted(self.milliseconds) or [10_000.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def _second_key(environment: dict[str, str]) -> str:
    """A key of another principal than the honest clients'."""
    made = subprocess.run(
        [sys.executable, "-c", _MAKE_KEY],
        cwd=PROJECT,
        env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings"},
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stdout.strip().splitlines()[-1]


_MAKE_KEY = """
import django
django.setup()
from catalog.access import SYSTEM
from catalog.services.access import api_keys
print(api_keys.create_api_key(actor=SYSTEM, name="hostile")[1])
"""


@dataclass(frozen=True)
class Round:
    """Honest requests without an attack, with it, and while a dummy is attacked."""

    calm: "Measurement"
    hostile: "Measurement"
    dummy: "Measurement"
    alone: float
    """CPU seconds of the web server and PostgreSQL per second of the attack, without honest clients."""


@dataclass(frozen=True)
class Measurement:
    """Honest requests during some seconds."""

    per_second: float
    per_cpu_second: float
    """Requests per second of CPU that the server, PostgreSQL and the honest clients used, or that was
    idle: the attackers and other programs have left it."""
    server_microseconds: float
    """CPU of the web server and PostgreSQL per request, including what the attackers cost them."""
    attackers: float
    """CPU seconds of the attackers per second."""
    live_ms: float
    """The 99th percentile of /health/live."""


@dataclass(frozen=True)
class Server:
    """The attacked server."""

    target: Target
    processes: list[int]
    """The web server and PostgreSQL."""
    sockets: int
    """Number of hostile sockets."""
    seconds: int
    """Duration of a measurement."""

    def measure(self, seed: int, attackers: list[int]) -> Measurement:
        """Load the server with honest requests. ``attackers``: the processes of the attack, if there is one."""
        from benchmarks import processes, wrk

        began = time.monotonic()
        served = processes.cpu_seconds(self.processes)
        attacked = processes.cpu_seconds(attackers)
        idle, own = processes.idle_seconds(), _own_cpu_seconds()
        with Pulse(self.target.port) as pulse:
            run = wrk.run(
                "describe",
                port=self.target.port,
                connections=_CONNECTIONS,
                seconds=self.seconds,
                namespaces=_NAMESPACES,
                tables=_TABLES,
                seed=seed,
            )
        seconds = time.monotonic() - began
        served = processes.cpu_seconds(self.processes) - served
        attacked = processes.cpu_seconds(attackers) - attacked
        idle, own = processes.idle_seconds() - idle, _own_cpu_seconds() - own
        return Measurement(
            run.requests / run.seconds,
            run.requests / (served + own + idle),
            served / run.requests * 1e6,
            attacked / seconds,
            pulse.percentile(0.99),
        )

    def measure_round(self, kinds: list[str], seed: int) -> Round:
        """Measure during an attack, during one against a dummy, and without one before and after."""
        from benchmarks import processes

        before = self.measure(seed, [])
        seconds = _BEFORE_SECONDS + self.seconds + _ALONE_SECONDS + 2
        with Attack(self.target, kinds, self.sockets, seconds) as attack:
            time.sleep(_BEFORE_SECONDS)
            began, opened = time.monotonic(), list(attack.opened)
            hostile = self.measure(seed, [attack.pid])
            taken = time.monotonic() - began
            rates = [
                (after - before) / taken
                for before, after in zip(opened, attack.opened, strict=True)
            ]
            alone = processes.cpu_seconds(self.processes)
            time.sleep(_ALONE_SECONDS)
            alone = (processes.cpu_seconds(self.processes) - alone) / _ALONE_SECONDS
        time.sleep(1)
        with Sink(lifetimes(kinds, self.sockets, rates)) as sink:
            aimed = Target(sink.port, self.target.key)
            with Attack(aimed, kinds, self.sockets, seconds) as attack:
                time.sleep(_BEFORE_SECONDS)
                dummy = self.measure(seed, [attack.pid])
        time.sleep(1)
        return Round(_mean(before, self.measure(seed, [])), hostile, dummy, alone)


def _mean(first: Measurement, second: Measurement) -> Measurement:
    pairs = zip(astuple(first), astuple(second), strict=True)
    return Measurement(*(statistics.mean(pair) for pair in pairs))


def main() -> None:
    from benchmarks import load, wrk
    from benchmarks.stack import running

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sockets", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="each,all", help=f"of {', '.join(KINDS)}, each, all")
    options = parser.parse_args()
    words = options.kinds.split(",")
    if unknown := [word for word in words if word not in {*KINDS, "each", "all"}]:
        parser.error(f"unknown kinds: {', '.join(unknown)}")
    wrk.require()
    with running(None) as stack:
        url = stack.postgres.url
        stack.bootstrap(url)
        load.seed(url, load.Size(_NAMESPACES, _TABLES, versions=5), stack.warehouse)
        web, port = stack.start_web(url)
        target = Target(port, _second_key(stack.environment(url)))
        urllib.request.urlopen(f"http://127.0.0.1:{port}/schema/lance", timeout=60).read()
        server = Server(target, [web.pid, stack.postgres_pid], options.sockets, options.seconds)
        server.measure(0, [])
        groups = []
        for word in words:
            if word == "each":
                groups += [[kind] for kind in KINDS]
            else:
                groups.append(list(KINDS) if word == "all" else [word])
        failed = False
        print(f"{options.sockets} sockets, {options.rounds} rounds of {options.seconds} s")
        print(_HEADING)
        for kinds in groups:
            rounds = [server.measure_round(kinds, number) for number in range(options.rounds)]
            name = kinds[0] if len(kinds) < len(KINDS) else "all"
            failed = not _show(name, rounds) or failed
    sys.exit(failed)


_HEADING = (
    f"{'':14}{'capacity':>9}{'honest':>8}{'by clock':>10}{'dummy':>7}{'server µs/request':>19}"
    f"{'alone ms/s':>12}{'attackers ms/s (dummy)':>24}{'live p99 ms':>14}"
)


def _show(name: str, rounds: list[Round]) -> bool:
    """Print the medians of the rounds; True if the goals are reached."""

    def median(value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, rounds))

    capacity = median(lambda r: r.calm.server_microseconds / r.hostile.server_microseconds)
    share = median(lambda r: r.hostile.per_cpu_second / r.calm.per_cpu_second)
    by_clock = median(lambda r: r.hostile.per_second / r.calm.per_second)
    dummy = median(lambda r: r.dummy.per_second / r.calm.per_second)
    before = median(lambda r: r.calm.server_microseconds)
    after = median(lambda r: r.hostile.server_microseconds)
    alone = median(lambda r: r.alone * 1000)
    attackers = median(lambda r: r.hostile.attackers * 1000)
    of_dummy = median(lambda r: r.dummy.attackers * 1000)
    calm_ms, live_ms = median(lambda r: r.calm.live_ms), median(lambda r: r.hostile.live_ms)
    is_good = min(capacity, share) >= GOAL_SHARE and live_ms < GOAL_LIVE_MS
    print(
        f"{name:14}{capacity:9.0%}{share:8.0%}{by_clock:10.0%}{dummy:7.0%}"
        f"{f'{before:.0f} -> {after:.0f}':>19}{alone:12.0f}{f'{attackers:.0f} ({of_dummy:.0f})':>24}"
        f"{f'{calm_ms:.1f} -> {live_ms:.1f}':>14}{'' if is_good else '  MISSED'}",
        flush=True,
    )
    return is_good


if __name__ == "__main__":
    main()
