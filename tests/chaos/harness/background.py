"""Judges finished namespaces during the run, so that their operations need not be kept in memory."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.chaos.harness import judges, ledger, linearizability
from tests.chaos.harness.cluster import Cluster
from tests.chaos.harness.history import OK, History, Operation
from tests.chaos.harness.judges import Anomaly
from tests.chaos.harness.linearizability import Verdict
from tests.chaos.harness.session import Session
from tests.chaos.harness.spaces import Space, Spaces
from tests.chaos.harness.transport import NotSent

_SETTLED = 10.0
"""Seconds between the last operation of a namespace and its judgement. Most requests for which no
client waits have ended by then. Later changes are detected at the end of the run."""
_DEFINITE = {"missing", "no version"}
View = list[tuple[str, str, str, dict[str, Any]]]


@dataclass
class Judged:
    verdict: Verdict
    committed: frozenset[str]
    """The unacknowledged requests that the verdict assumed to be executed."""
    view: View


@dataclass
class _Waiting:
    space: Space
    since: float = field(default_factory=time.monotonic)
    view: View | None = None


class BackgroundJudge:
    """Judges the linearizability of one namespace after the other. ``reader`` is a separate client."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        spaces: Spaces,
        reader: Session,
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._history, self._spaces = cluster, history, spaces
        self._reader, self._say = reader, say
        self._waiting: dict[str, _Waiting] = {}
        self._judged: dict[str, Judged] = {}
        self.anomalies: dict[str, list[Anomaly]] = {}

    @property
    def verdicts(self) -> list[Verdict]:
        return [judged.verdict for judged in self._judged.values()]

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(5):
            # Retry later: the server or the database may be unreachable.
            with contextlib.suppress(NotSent, psycopg.Error):
                self._judge_due()

    def close(self) -> None:
        self._reader.close()

    def _judge_due(self) -> None:
        for space in self._spaces.over():
            if space.name not in self._judged:
                self._waiting.setdefault(space.name, _Waiting(space))
        now = time.monotonic()
        due = [case for case in self._waiting.values() if now - case.since > _SETTLED]
        if due and self._cluster.is_idle(_SETTLED):
            self._read(due)
        self._judge_those_read()

    def _read(self, due: list[_Waiting]) -> None:
        with contextlib.suppress(NotSent):
            for waiting in due:
                if waiting.view is None:
                    waiting.view = read_view(self._reader, waiting.space)

    def _judge_those_read(self) -> None:
        read = [case for case in self._waiting.values() if case.view is not None]
        ready = {case.space.name: self._history.read(case.space.name) for case in read}
        doubtful = [op.id for operations in ready.values() for op in operations if _is_doubtful(op)]
        if not ready:
            return
        with self._cluster.database(connect_timeout=5) as connection:
            committed = ledger.carried_out(connection, doubtful)
        for waiting in read:
            name = waiting.space.name
            self._judge(name, ready[name], committed, waiting.view or [], processors=1)
            del self._waiting[name]

    def _judge(
        self,
        name: str,
        operations: list[Operation],
        committed: set[str],
        view: View,
        *,
        processors: int | None = None,
    ) -> None:
        verdicts = linearizability.judge(operations, committed, processors=processors)
        if not verdicts:
            return
        mine = frozenset(op.id for op in operations if _is_doubtful(op) and op.id in committed)
        self._judged[name] = Judged(verdicts[0], mine, view)
        self.anomalies[name] = judges.of_verdicts(verdicts, operations)
        for anomaly in self.anomalies[name]:
            self._say(f"{anomaly.kind}: {anomaly.text[:2000]}")

    def finish(self, name: str, view: View | None, committed: set[str]) -> list[Operation]:
        """The final verdict on a namespace, and its operations.

        ``view`` is the state after the run. The namespace is judged again if the state has changed
        since, or if more was committed.
        """
        operations = self._history.read(name)
        before = self._judged.get(name)
        mine = {op.id for op in operations if _is_doubtful(op) and op.id in committed}
        if before is None or view != before.view or mine != before.committed:
            self._judge(name, operations, committed, view or [])
        return operations


def read_view(reader: Session, space: Space) -> View | None:
    """The complete state of a namespace; None if a read got no answer."""
    reads = reader.read_all(space)
    if any(op.outcome != OK and op.output.get("error") not in _DEFINITE for op in reads):
        return None
    return [(op.kind, op.format, op.name, op.output) for op in reads]


def _is_doubtful(operation: Operation) -> bool:
    return operation.is_write and operation.outcome != OK
