"""Monodon, Lance's reference server and PostgreSQL, taking turns."""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load, processes, wrk
from benchmarks.load import Size
from benchmarks.sides import SETTINGS, Monodon, PostgreSQL, Reference, Sample, Side
from benchmarks.stack import running

OPERATIONS = {
    "describe": "describe a table",
    "exists": "does a table exist",
    "list": "list of 100 tables",
    "latest": "newest version of a table",
    "versions": "list of 100 versions",
    "create": "create a version, staged manifest",
    "record": "create a version, plain path",
    "batch": "batch of 10 such versions",
}
SIZE = Size(namespaces=100, tables=100, versions=100)
MAX_FOREIGN_SHARE = 0.15
REFERENCE_SIZE = Size(namespaces=1, tables=100, versions=100)

Key = tuple[str, str, int]
"""Operation, side, connections."""


@dataclass(frozen=True)
class Plan:
    operations: tuple[str, ...]
    connections: tuple[int, ...]
    rounds: int
    seconds: int


@dataclass
class Outcome:
    plan: Plan
    samples: dict[Key, list[Sample]]
    web_megabytes: list[float]
    load: str
    foreign_share: float = 0.0
    """The share of the processors' time that other programs took during the measurement."""
    seconds: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """True if other programs took so much time that ratios would be wrong."""
        return self.foreign_share > MAX_FOREIGN_SHARE

    def median(self, operation: str, side: str, connections: int, figure: str) -> float | None:
        samples = self.samples.get((operation, side, connections))
        return statistics.median(getattr(sample, figure) for sample in samples) if samples else None

    def ratio(
        self, operation: str, connections: int, other: str, other_operation: str = ""
    ) -> float | None:
        """The median of the rounds' ratios, since both sides of a round have the same conditions.

        None if a side was not measured, or the measurement was disturbed.
        """
        if self.is_disturbed:
            return None
        ours = self.samples.get((operation, "monodon", connections))
        theirs = self.samples.get((other_operation or operation, other, connections))
        if not ours or not theirs:
            return None
        return statistics.median(
            a.operations_per_second / b.operations_per_second
            for a, b in zip(ours, theirs, strict=True)
        )


def compare(plan: Plan, directory: Path | None) -> Outcome:
    wrk.require()
    began = time.monotonic()
    with running(directory) as stack:
        url = stack.postgres.url
        report_progress("migrations")
        stack.bootstrap(url)
        report_progress(f"load: {SIZE}")
        load.seed(url, SIZE, stack.warehouse)
        report_progress(f"servers and the reference's content: {REFERENCE_SIZE}")
        web, port = stack.start_web(url, settings=SETTINGS)
        adapter, adapter_port, _ = stack.start_reference()
        scratch = stack.root / "requests"
        ours = Monodon(port, SIZE, scratch, web.pid, stack.postgres_pid)
        ours.stage_in(url, "ns0001")
        reference = Reference(adapter_port, REFERENCE_SIZE, scratch, adapter.pid)
        reference.fill()
        for server in (ours, reference):
            server.check()
        sides: list[Side] = [ours, reference]
        sides += [PostgreSQL(stack, url, protocol) for protocol in ("simple", "prepared")]
        described = f"{SIZE}; RestAdapter: {REFERENCE_SIZE}"
        outcome = Outcome(plan, {}, [], described)
        report_progress("warming up")
        for operation in plan.operations:
            ours.measure(operation, connections=16, seconds=1)
        take_turns(outcome, sides)
        outcome.web_megabytes = processes.resident_megabytes(web.pid)
    outcome.seconds = time.monotonic() - began
    return outcome


def take_turns(
    outcome: Outcome,
    sides: Sequence[Side],
    suits: Callable[[str, int], bool] = lambda operation, connections: True,
) -> None:
    """Compare the sides. ``suits`` is true if an operation is measured with that many connections."""
    with processes.ForeignLoad([pid for side in sides for pid in side.roots()]) as foreign:
        outcome.samples = _samples(sides, outcome.plan, suits)
    outcome.foreign_share = foreign.share


def _samples(
    sides: Sequence[Side], plan: Plan, suits: Callable[[str, int], bool]
) -> dict[Key, list[Sample]]:
    samples: dict[Key, list[Sample]] = {}
    for connections in plan.connections:
        for number in range(plan.rounds):
            for operation in plan.operations:
                if not suits(operation, connections):
                    continue
                report_progress(
                    f"{connections} connections, round {number + 1}/{plan.rounds}: {operation}"
                )
                for side in sides:
                    if side.serves(operation):
                        sample = side.measure(
                            operation, connections=connections, seconds=plan.seconds
                        )
                        samples.setdefault((operation, side.name, connections), []).append(sample)
    return samples


def report_progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)
