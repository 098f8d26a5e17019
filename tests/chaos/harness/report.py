"""Results of a run: for people, for a file, and for the table in docs/correctness.md."""

import json
import os
import platform
import subprocess
from collections import Counter
from dataclasses import asdict, dataclass, field

import psutil

from server.options import PROJECT
from tests.chaos.harness.judges import FALSE_ANSWERS, Anomaly


@dataclass
class Result:
    seed: int
    seconds: float
    sent: int
    """Operations of the history."""
    operations: int
    """Number of judged operations; the others are reads without an answer."""
    outcomes: dict[str, int]
    commits: int
    events: int
    spaces: int
    undecided: int
    faults: dict[str, int]
    kills: int
    outages: dict[str, float]
    """Longest time without an acknowledged write, by fault."""
    left_out: list[str]
    anomalies: list[Anomaly]
    commit: str = ""
    at: str = ""
    machine: str = ""
    memory: int = 0
    """Peak memory of the harness, in MB."""
    phases: dict[str, float] = field(default_factory=dict)
    history: str = ""

    @property
    def false_answers(self) -> list[Anomaly]:
        return [anomaly for anomaly in self.anomalies if anomaly.kind in FALSE_ANSWERS]

    @property
    def longest_outage(self) -> float:
        return max(self.outages.values(), default=0.0)

    def as_json(self) -> str:
        return json.dumps(asdict(self) | {"false_answers": len(self.false_answers)}, indent=2)

    def summary(self) -> str:
        """Summary for people."""
        outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(self.outcomes.items()))
        faults = ", ".join(f"{n} {name}" for name, n in sorted(self.faults.items()))
        wrong = len(self.false_answers)
        after = f"after {max(self.outages, key=self.outages.__getitem__)}" if self.outages else ""
        kinds = Counter(anomaly.kind for anomaly in self.anomalies)
        lines = [
            f"{self.operations} operations judged, of {self.sent} sent: {outcomes}",
            f"a second: {self.operations / max(self.seconds, 1):.0f} operations",
            f"a minute: {self.kills / max(self.seconds, 1) * 60:.1f} kills",
            f"{self.commits} commits, {self.events} events",
            f"{self.kills} kills of {sum(self.faults.values())} faults: {faults}",
            f"anomalies: {len(self.anomalies)}, of which false answers: {wrong}",
            f"{self.spaces} namespaces judged, of which undecided: {self.undecided}",
            f"longest time without an acknowledged write: {self.longest_outage:.1f} s {after}".rstrip(),
            *(f"left out: {reason}" for reason in self.left_out),
            f"seed {self.seed}, {self.seconds:.0f} s of load, commit {self.commit}, {self.machine}",
            f"memory of the harness: {self.memory} MB",
            *(f"  {n} × {kind}" for kind, n in kinds.most_common()),
            *(
                f"    {anomaly.kind}: {anomaly.text[:1200]}\n{anomaly.log}"
                for anomaly in self.anomalies[:20]
            ),
        ]
        return "\n".join(lines)


def commit() -> str:
    completed = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return completed.stdout.strip()


def machine() -> str:
    gigabytes = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} processors, {gigabytes:.0f} GiB, {platform.system()}"
