"""The judges of a history besides linearizability. Each returns the anomalies that it found."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.chaos.harness import linearizability
from tests.chaos.harness.history import FAIL, OK, Operation
from tests.chaos.harness.ledger import AuditRow, Ledger
from tests.chaos.harness.linearizability import Verdict

_WITH_VERSION = {"version.create", "table.create", "table.commit"}
"""The actions that each add one version to the ledger."""
_REQUEST = re.compile(r"id='(c\d+-\d+)'")
_NOT_KNOWN = re.compile("not known|unknown|lost while it committed", re.IGNORECASE)
FALSE_ANSWERS = {"false failure", "lost acknowledgement", "done twice"}


@dataclass(frozen=True)
class Anomaly:
    kind: str
    text: str
    log: str = ""
    """The server's log of the request, and the following lines."""

    def with_log(self, lines: Sequence[str]) -> "Anomaly":
        match = _REQUEST.search(self.text)
        name = f"request_id={match[1]}" if match else "-"
        starts = [at for at, line in enumerate(lines) if line.endswith(name)]
        log = "\n".join(line for at in starts[:3] for line in lines[at : at + 60])
        return replace(self, log=log)


def judge(
    operations: Sequence[Operation], ledger: Ledger, events: Sequence[AuditRow]
) -> tuple[list[Anomaly], list[Verdict]]:
    """All judges; the verdicts are those of linearizability."""
    verdicts = linearizability.judge(operations, ledger.committed)
    times, values = ledger.times, ledger.values
    return [
        *of_operations(operations, times, values),
        *of_ledger(ledger, events),
        *of_verdicts(verdicts, operations),
    ], verdicts


def of_operations(
    operations: Sequence[Operation], times: Mapping[str, int], values: Collection[str]
) -> list[Anomaly]:
    """Anomalies of a namespace. ``times``: number of executions of each request; ``values``: values
    of versions."""
    return [
        *answers(operations, times),
        *expected(operations),
        *batches(operations, values),
        *sessions(operations),
    ]


def of_ledger(ledger: Ledger, events: Sequence[AuditRow]) -> list[Anomaly]:
    return [*trail(ledger), *outbox(ledger, events), *order(ledger)]


def of_verdicts(verdicts: Iterable[Verdict], operations: Iterable[Operation]) -> list[Anomaly]:
    by_id = {operation.id: operation for operation in operations}
    return [
        Anomaly(
            verdict.result,
            f"{verdict.space}: {'; '.join(repr(by_id[number]) for number in verdict.unplaced)}",
        )
        for verdict in linearizability.illegal(verdicts)
    ]


def answers(operations: Iterable[Operation], times: Mapping[str, int]) -> list[Anomaly]:
    """An acknowledged write took effect once; a refused one did not."""
    anomalies = []
    for operation in operations:
        if not operation.is_write:
            continue
        finished_at = times.get(operation.id, 0)
        if operation.outcome == OK and finished_at == 0:
            anomalies.append(Anomaly("lost acknowledgement", repr(operation)))
        if operation.outcome == FAIL and finished_at:
            anomalies.append(Anomaly("false failure", repr(operation)))
        if finished_at > 1:
            anomalies.append(Anomaly("done twice", repr(operation)))
    return anomalies


def expected(operations: Iterable[Operation]) -> list[Anomaly]:
    """Refusals have a kind that the request can cause, and are not internal errors."""
    anomalies = []
    for operation in operations:
        error = operation.output.get("error", "")
        if error.startswith("unexpected"):
            anomalies.append(Anomaly("unexpected answer", repr(operation)))
        is_honest = operation.is_write and _NOT_KNOWN.search(operation.message)
        if operation.status == 500 and not is_honest:
            anomalies.append(Anomaly("unexpected answer", repr(operation)))
    return anomalies


def batches(operations: Iterable[Operation], present: Collection[str]) -> list[Anomaly]:
    """All versions of a batch are in the ledger, or none. ``present``: their values."""
    anomalies = []
    for operation in operations:
        values = {step["value"] for step in operation.steps if step["do"] == "add"}
        if values and 0 < sum(value in present for value in values) < len(values):
            anomalies.append(Anomaly("half batch", repr(operation)))
    return anomalies


def trail(ledger: Ledger) -> list[Anomaly]:
    """Each version has its audit row, and each audit row of a version its version."""
    entered = Counter(row.transaction for row in ledger.versions)
    recorded = Counter(row.transaction for row in ledger.audit if row.action in _WITH_VERSION)
    return [
        Anomaly(
            "trail",
            f"transaction {transaction} has {entered[transaction]} versions and"
            f" {recorded[transaction]} audit rows of versions",
        )
        for transaction in entered.keys() | recorded.keys()
        if entered[transaction] != recorded[transaction]
    ]


def outbox(ledger: Ledger, events: Sequence[AuditRow]) -> list[Anomaly]:
    """The events are the committed changes, in the order of their transactions."""
    rows = {row.id: row for row in ledger.audit}
    got = {event.id for event in events}
    anomalies = [Anomaly("event without a commit", repr(e)) for e in events if rows.get(e.id) != e]
    anomalies += [Anomaly("missing event", repr(row)) for row in ledger.audit if row.id not in got]
    anomalies += [
        Anomaly("events out of order", f"{before} before {after}")
        for before, after in itertools.pairwise(events)
        if before.position >= after.position
    ]
    return anomalies


def order(ledger: Ledger) -> list[Anomaly]:
    """The sequence of the events of an Iceberg table is the order of its versions."""
    number = {
        (row.table, row.transaction): row.version
        for row in ledger.versions
        if row.format == "iceberg"
    }
    last: dict[str, int] = {}
    anomalies = []
    for row in sorted(ledger.audit, key=lambda record: record.position[1]):
        version = number.get((row.table, row.transaction))
        if version is None or row.action not in _WITH_VERSION:
            continue
        if version <= last.get(row.table, -1):
            anomalies.append(Anomaly("reordered commit", f"version {version}: {row!r}"))
        last[row.table] = version
    return anomalies


def sessions(operations: Iterable[Operation]) -> list[Anomaly]:
    """A client never reads an older state of an Iceberg table than before."""
    newest: dict[tuple[int, str], int] = defaultdict(int)
    anomalies = []
    for operation in sorted(operations, key=lambda record: record.call):
        if operation.kind == "load" and operation.outcome == OK:
            key = (operation.process, operation.output["location"])
            sequence = operation.output["sequence"]
            if sequence < newest[key]:
                anomalies.append(Anomaly("non-monotonic read", repr(operation)))
            newest[key] = max(newest[key], sequence)
    return anomalies
