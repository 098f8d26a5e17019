"""Database sessions end during requests, and no answer is false.

A successful request took effect exactly once, and a refused one changed nothing. Only a request whose
outcome is reported as unknown may have done either.
"""

import io
import itertools
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import lance
import psycopg
import pyarrow as pa
import pytest
import urllib3

from tests.background import Background
from tests.chaos.cutting import Proxy
from tests.factories import ICEBERG_SCHEMA
from tests.live import LiveServer

CLIENTS = 12
TABLES = ("a", "b", "c")
KILLS_OF_A_NAMESPACE = 400
"""Clients then continue in another namespace, before large metadata of its tables makes them slow."""
ARROW = "application/vnd.apache.arrow.stream"


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass
class Sent:
    """A request, identified by a mark that it writes when it is executed."""

    kind: str
    mark: str
    outcome: Outcome
    answer: str


class Clients(Background):
    """Threads that send requests to a namespace one after the other, each with its own mark."""

    def __init__(self, server: LiveServer, seed: int, space: str) -> None:
        self._server, self._seed, self._space = server, seed, space
        self._http = urllib3.PoolManager(maxsize=CLIENTS, retries=False)
        self._versions = {name: itertools.count(2) for name in TABLES}
        self.sent: list[Sent] = []
        super().__init__(CLIENTS)

    def work(self, number: int) -> None:
        dice = random.Random(f"{self._seed} {self._space} {number}")
        kinds = ("version", "batch", "namespace", "insert", "keyed insert", "commit", "commits")
        while not self._stop.is_set():
            kind = dice.choice(kinds)
            mark = uuid.uuid4().hex
            path, body, headers = self._request(kind, mark, dice)
            outcome, answer = self._send(path, body, headers)
            while kind == "keyed insert" and outcome is not Outcome.DONE:
                # With the key, it is safe to repeat the request until it succeeds.
                if self._stop.wait(0.02):
                    break
                outcome, answer = self._send(path, body, headers)
            self.sent.append(Sent(kind, mark, outcome, answer))

    def _request(
        self, kind: str, mark: str, dice: random.Random
    ) -> tuple[str, bytes, dict[str, str]]:
        headers = {"content-type": "application/json"}
        first, second = dice.sample(TABLES, 2)
        match kind:
            case "version":
                path, body = (
                    f"/v1/table/{self._space}${first}/version/create",
                    self._version(first, mark),
                )
            case "batch":
                steps = [
                    {
                        "create_table_version": {
                            "id": [self._space, name],
                            **self._version(name, mark),
                        }
                    }
                    for name in (first, second)
                ]
                path, body = "/v1/table/batch-commit", {"operations": steps}
            case "namespace":
                path, body = f"/v1/namespace/{self._space}${mark}/create", {}
            case "insert" | "keyed insert":
                sink = io.BytesIO()
                rows = pa.table({"mark": [mark]})
                with pa.ipc.new_stream(sink, rows.schema) as writer:
                    writer.write_table(rows)
                headers = {"content-type": ARROW}
                if kind == "keyed insert":
                    headers["idempotency-key"] = str(uuid.uuid4())
                return f"/v1/table/{self._space}$rows/insert", sink.getvalue(), headers
            case "commit":
                path, body = f"/v1/namespaces/{self._space}/tables/ice0", self._change(mark)
            case _:
                path = "/v1/transactions/commit"
                body = {"table-changes": [self._change(mark, name) for name in ("ice1", "ice2")]}
        return path, json.dumps(body).encode(), headers

    def _version(self, table: str, mark: str) -> dict[str, object]:
        number = next(self._versions[table])
        return {"version": number, "manifest_path": f"elsewhere/{mark}", "metadata": {"mark": mark}}

    def _change(self, mark: str, name: str = "") -> dict[str, object]:
        update = {"action": "set-properties", "updates": {f"m-{mark}": "1"}}
        change: dict[str, object] = {"requirements": [], "updates": [update]}
        if name:
            change["identifier"] = {"namespace": [self._space], "name": name}
        return change

    def _send(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[Outcome, str]:
        headers = {"x-api-key": self._server.key, **headers}
        try:
            answer = self._http.request(
                "POST", self._server.url + path, body=body, headers=headers, timeout=60
            )
        except urllib3.exceptions.HTTPError as error:
            return Outcome.UNKNOWN, repr(error)
        text = f"{answer.status} {answer.data.decode()[:400]}"
        if answer.status < 300:
            return Outcome.DONE, text
        if answer.status in {429, 503}:
            assert "retry-after" in answer.headers, text
        if answer.status == 500:
            assert "outcome" in text or "CommitStateUnknown" in text or "was made" in text, text
            return Outcome.UNKNOWN, text
        return Outcome.REFUSED, text


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(workers=2, threads=6) as server:
        yield server


def prepare(server: LiveServer, space: str = "ns") -> None:
    def must(path: str, body: dict | None = None) -> None:
        status, answer = server.post(path, body)
        assert status == 200, answer

    must(f"/v1/namespace/{space}/create")
    for name in TABLES:
        path = f"/v1/table/{space}${name}"
        must(f"{path}/declare")
        must(f"{path}/version/create", {"version": 1, "manifest_path": "elsewhere/1"})
    for number in range(3):
        path = f"/v1/namespaces/{space}/tables"
        must(path, {"name": f"ice{number}", "schema": ICEBERG_SCHEMA})
    empty = pa.schema({"mark": pa.string()}).empty_table()
    lance.write_dataset(empty, namespace_client=server.client(), table_id=[space, "rows"])


def end_sessions(database: psycopg.Connection, dice: random.Random) -> Counter[str]:
    """End some sessions of the server, active ones first. Return the numbers of both kinds."""
    rows = database.execute(
        "SELECT pg_terminate_backend(pid), state = 'idle' FROM ("
        "  SELECT pid, state FROM pg_stat_activity WHERE datname = current_database()"
        "  AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        "  ORDER BY state = 'idle', random() LIMIT %s)",
        [dice.randint(1, 3)],
    )
    return Counter("idle" if is_idle else "at work" for is_ended, is_idle in rows if is_ended)


def judge(server: LiveServer, sent: list[Sent], space: str = "ns") -> Counter[str]:
    """Assert that no answer is false. Return the number of requests by outcome."""
    server.wait_until_idle()
    server.settle()
    rows = lance.dataset(namespace_client=server.client(), table_id=[space, "rows"]).to_table()
    counts: Counter[str] = Counter(rows["mark"].to_pylist())
    with server.database() as database:
        for mark, count in database.execute(
            "SELECT metadata ->> 'mark', count(*) FROM catalog_tableversion"
            " WHERE metadata ? 'mark' GROUP BY 1"
        ):
            counts[mark] += count
        for (name,) in database.execute("SELECT name FROM catalog_namespace"):
            counts[name] += 1
    for number in range(3):
        answer = urllib3.request(
            "GET",
            f"{server.url}/v1/namespaces/{space}/tables/ice{number}",
            headers={"x-api-key": server.key},
        )
        for name in answer.json()["metadata"]["properties"]:
            counts[name.removeprefix("m-")] += 1
    false = []
    for request in sent:
        whole = 2 if request.kind in {"batch", "commits"} else 1
        allowed = {
            Outcome.DONE: {whole},
            Outcome.REFUSED: {0},
            Outcome.UNKNOWN: {0, whole},
        }[request.outcome]
        if counts[request.mark] not in allowed:
            false.append((request, counts[request.mark]))
    assert false == []
    return Counter(request.outcome.value for request in sent)


def _shares(total: int) -> Iterator[tuple[str, int]]:
    """Namespaces, each with its share of the kills."""
    for start in range(0, total, KILLS_OF_A_NAMESPACE):
        yield f"ns{start}", min(KILLS_OF_A_NAMESPACE, total - start)


def _under_kills(server: LiveServer, seed: int, kills: int) -> None:
    dice = random.Random(seed)
    ended: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    for space, share in _shares(kills):
        prepare(server, space)
        goal = ended.total() + share
        with server.database() as database, Clients(server, seed, space) as clients:
            while ended.total() < goal or ended["at work"] < goal / 4:
                time.sleep(dice.uniform(0, 0.15))
                ended += end_sessions(database, dice)
            time.sleep(1)
        outcomes += judge(server, clients.sent, space)
        _report(began, f"sessions ended {dict(ended)}", outcomes)
    assert outcomes["done"] > outcomes.total() / 2


def _under_cuts(seed: int, cuts: int) -> None:
    server = LiveServer(workers=2, threads=6)
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    with Proxy(server.database_url, seed, probability=0.25) as proxy:
        server._environment["DATABASE_URL"] = proxy.url
        with server:
            for space, share in _shares(cuts):
                prepare(server, space)
                goal = proxy.cuts.total() + share
                proxy.is_cutting = True
                deadline = time.monotonic() + 60 + 6 * share
                with Clients(server, seed, space) as clients:
                    while proxy.cuts.total() < goal:
                        assert time.monotonic() < deadline, dict(proxy.cuts)
                        time.sleep(0.05)
                proxy.is_cutting = False
                outcomes += judge(server, clients.sent, space)
                _report(began, f"commits cut off {dict(proxy.cuts)}", outcomes)
            assert outcomes["done"] > outcomes.total() / 2
            assert all(proxy.cuts.values())


def _report(began: float, finished: str, outcomes: Counter[str]) -> None:
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s: {finished}, {outcomes.total()} requests: {dict(outcomes)}, none false")


@pytest.mark.timeout(600)
def test_no_answer_is_false_while_sessions_are_ended(server: LiveServer, seed: int) -> None:
    _under_kills(server, seed, kills=20)


@pytest.mark.timeout(600)
def test_no_answer_is_false_while_commits_are_cut_off(live_template: None, seed: int) -> None:
    _under_cuts(seed, cuts=15)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_no_answer_is_false_while_sessions_are_ended_for_longer(
    server: LiveServer, seed: int, rounds: int
) -> None:
    _under_kills(server, seed, kills=50 * rounds)


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_no_answer_is_false_while_commits_are_cut_off_for_longer(
    live_template: None, seed: int, rounds: int
) -> None:
    _under_cuts(seed, cuts=50 * rounds)
