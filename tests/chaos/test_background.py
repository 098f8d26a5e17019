"""A namespace judged during the run is judged again if it changes later."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness.background import BackgroundJudge, View
from tests.chaos.harness.clients import Client
from tests.chaos.harness.cluster import Cluster
from tests.chaos.harness.history import OK, UNKNOWN, History, Operation
from tests.chaos.harness.spaces import Spaces
from tests.chaos.harness.transport import Connection

_CREATE = {"do": "create", "name": "a", "format": "lance", "id": "/w/a"}
_DROP = {"do": "drop", "name": "a", "format": "lance"}


class _Run:
    """One client that sends one operation after the other to one namespace."""

    def __init__(self, directory: Path) -> None:
        self.history = History(directory / "history")
        spaces = Spaces(directory, 1, 400)
        reader = Client(1, Connection("http://127.0.0.1:9", "key"), spaces, self.history, 7)
        self.output: list[str] = []
        # Only `_judge_due` asks the server; the subject of these tests is the end of the run.
        cluster: Any = Cluster.__new__(Cluster)
        self.judge = BackgroundJudge(cluster, self.history, spaces, reader, self.output.append)
        self._numbers = itertools.count(1)

    def write(self, step: dict[str, Any], outcome: str) -> str:
        return self._finished_operation("write", steps=[step], outcome=outcome)

    def read(self, *names: str) -> View:
        output = {"names": list(names)}
        self._finished_operation("names", format="lance", output=output, outcome=OK)
        return [("names", "lance", "", output)]

    def _finished_operation(self, kind: str, **fields: Any) -> str:
        operation = Operation(f"c0-{next(self._numbers)}", 0, "s1", kind, **fields)
        self.history.begin(operation)
        self.history.end(operation)
        return operation.id

    def result(self) -> str:
        (verdict,) = self.judge.verdicts
        return verdict.result


@pytest.fixture
def run(tmp_path: Path) -> _Run:
    return _Run(tmp_path)


def test_unchanged_spaces_keep_their_verdict(run: _Run) -> None:
    created = run.write(_CREATE, OK)
    run.judge.finish("s1", run.read("a"), {created})
    before = run.judge.verdicts
    run.judge.finish("s1", run.read("a"), {created})
    assert run.judge.verdicts == before
    assert (run.result(), run.judge.anomalies, run.output) == ("linearizable", {"s1": []}, [])


def test_losses_after_the_verdict_are_detected(run: _Run) -> None:
    created = run.write(_CREATE, OK)
    run.judge.finish("s1", run.read("a"), {created})
    assert run.result() == "linearizable"
    operations = run.judge.finish("s1", run.read(), {created})
    assert [operation.kind for operation in operations] == ["write", "names", "names"]
    assert run.result() == "not linearizable"
    assert [anomaly.kind for anomaly in run.judge.anomalies["s1"]] == ["not linearizable"]
    assert run.output[0].startswith("not linearizable: s1")


def test_commits_after_the_verdict_are_considered(run: _Run) -> None:
    created, dropped = run.write(_CREATE, OK), run.write(_DROP, UNKNOWN)
    run.judge.finish("s1", run.read("a"), {created})
    assert run.result() == "linearizable"
    run.judge.finish("s1", run.read(), {created, dropped})
    assert (run.result(), run.judge.anomalies) == ("linearizable", {"s1": []})


def test_an_invisible_commit_is_detected(run: _Run) -> None:
    created, dropped = run.write(_CREATE, OK), run.write(_DROP, UNKNOWN)
    run.judge.finish("s1", run.read("a"), {created})
    other = run.write(_CREATE | {"name": "b", "id": "/w/b"}, OK)
    run.judge.finish("s1", run.read("a"), {created, dropped, other})
    assert run.result() == "not linearizable"
