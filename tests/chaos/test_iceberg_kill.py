"""The web server is killed repeatedly while clients commit to Iceberg tables.

Each commit sets a property with its name, so the tables show which commits took effect.
"""

import itertools
import json
import random
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
import urllib3
from psycopg.rows import dict_row

from tests.chaos.storm import Outcome
from tests.live import LiveServer, Lost
from tests.stores.fixtures import MakeLiveProfile, Storage, bind
from tests.stores.s3 import S3Store

CLIENTS = 12
TABLES = tuple(f"t{number}" for number in range(5))
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": True}],
}


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    """A server with two worker processes, so that commits to a table really compete."""
    with LiveServer(workers=2, threads=12) as server:
        yield server


@pytest.fixture
def warehouse(server: LiveServer) -> Storage:
    return Storage("local", str(server.warehouse))


@pytest.mark.engines
@pytest.mark.timeout(900)  # about 30 s, and several times that on a busy machine
def test_kills_lose_no_commit_and_leave_no_file_unaccounted_for(
    server: LiveServer, warehouse: Storage, seed: int
) -> None:
    _kill_again_and_again(server, warehouse, seed, kills=2)


@pytest.mark.engines
@pytest.mark.timeout(900)
def test_kills_with_tables_in_an_object_store(
    server: LiveServer, s3: S3Store, make_live_profile: MakeLiveProfile, seed: int
) -> None:
    profile, root = make_live_profile(server, s3)
    _kill_again_and_again(server, Storage("s3", root, profile, s3), seed, kills=8)


@pytest.mark.chaos
def test_kills_for_longer(server: LiveServer, warehouse: Storage, seed: int, rounds: int) -> None:
    _kill_again_and_again(server, warehouse, seed, kills=rounds)


def _kill_again_and_again(server: LiveServer, storage: Storage, seed: int, kills: int) -> None:
    dice = random.Random(seed)
    with _Storm(server, storage, seed) as storm:
        for _ in range(kills):
            _wait_for_traffic(storm)
            time.sleep(dice.uniform(0, 0.2))
            server.kill()
            server.start(wait=False)
        _wait_for_traffic(storm)
    server.wait_until_idle()

    cut_off = _judge(storm)
    with server.database() as connection:
        connection.execute("UPDATE catalog_stagedfile SET created_at = created_at - interval '1 h'")
    server.manage("from catalog.services.iceberg import metadata_files as m\nwhile m.sweep(): pass")
    assert _judge(storm) == (0, 0)
    outcomes = Counter(request.outcome for request in storm.requests)
    assert outcomes[Outcome.COMMITTED] > 0, outcomes
    print(
        f"{kills} kills, {cut_off[0]} files and {cut_off[1]} notes of commits cut off, {outcomes}"
    )


def _wait_for_traffic(storm: "_Storm", commits: int = 15, within: float = 120.0) -> None:
    """Wait until the restarted server has acknowledged some commits."""
    deadline = time.monotonic() + within
    target = storm.committed + commits
    while storm.committed < target:
        assert time.monotonic() < deadline, f"no traffic:\n{storm.server.log}"
        time.sleep(0.01)


# --- the storm ---------------------------------------------------------------------------------


@dataclass
class _Request:
    """A commit: the tables that get its name as a property, and its outcome for the client."""

    name: str
    tables: tuple[str, ...]
    route: str
    body: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome = Outcome.UNKNOWN


class _Storm:
    """Run in the background until the end of the block."""

    def __init__(self, server: LiveServer, storage: Storage, seed: int) -> None:
        self.server = server
        self.storage = storage
        self.requests: list[_Request] = []
        self.committed = 0
        self._seed = seed
        self._stop = threading.Event()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        assert self.server.post("/v1/namespaces", {"namespace": ["storm"]})[0] == 200
        if self.storage.profile is not None:
            bind(self.server, ["storm"], self.storage.profile)
            time.sleep(1.1)  # the server reads its profiles once a second
        for table in TABLES:
            status, answer = self.server.post(
                "/v1/namespaces/storm/tables", {"name": table, "schema": SCHEMA}
            )
            assert status == 200, answer
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._clients = [self._pool.submit(self._work, number) for number in range(CLIENTS)]
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()

    def _work(self, number: int) -> None:
        dice = random.Random(f"{self._seed} {number}")
        while not self._stop.is_set():
            request = self._invent(dice)
            self.requests.append(request)
            try:
                status, answer = self.server.post(
                    request.route, request.body, request_id=request.name
                )
            except Lost:
                self._await_server()
                continue
            if status == 409:
                request.outcome = Outcome.REFUSED
            else:
                assert status in {200, 204}, answer
                request.outcome = Outcome.COMMITTED
                self.committed += 1

    def _await_server(self) -> None:
        while not self._stop.is_set():
            try:
                socket.create_connection(("127.0.0.1", self.server.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return

    def _invent(self, dice: random.Random) -> _Request:
        name = f"storm-{next(self._numbers)}"
        kind = dice.choices(("one", "several", "refused", "create"), (55, 25, 10, 10))[0]
        match kind:
            case "several":
                tables = tuple(dice.sample(TABLES, dice.randint(2, 3)))
                changes = [_commit(name, table) for table in tables]
                body = {"table-changes": changes}
                return _Request(name, tables, "/v1/transactions/commit", body)
            case "refused":
                tables = tuple(dice.sample(TABLES, 2))
                first, second = (_commit(name, table) for table in tables)
                stale = {"type": "assert-table-uuid", "uuid": str(uuid.UUID(int=7))}
                second["requirements"].append(stale)
                body = {"table-changes": [first, second]}
                return _Request(name, tables, "/v1/transactions/commit", body)
            case "create":
                body = {"name": name, "schema": SCHEMA, "properties": {name: "x"}}
                return _Request(name, (name,), "/v1/namespaces/storm/tables", body)
            case _:
                table = dice.choice(TABLES)
                route = f"/v1/namespaces/storm/tables/{table}"
                return _Request(name, (table,), route, _commit(name, table))


def _commit(name: str, table: str) -> dict[str, Any]:
    return {
        "identifier": {"namespace": ["storm"], "name": table},
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": {name: "x"}}],
    }


# --- judgement ---------------------------------------------------------------------------------


def _judge(storm: _Storm) -> tuple[int, int]:
    """Compare answers, tables, ledger, files and records of pending files.

    Returns the number of recorded files that are not in the ledger, and the number of records.
    """
    server = storm.server
    with server.database() as connection:
        rows = connection.cursor(row_factory=dict_row).execute
        ledger = rows(
            "SELECT t.name, v.version, v.manifest_path FROM catalog_tableversion v"
            " JOIN catalog_table t ON t.id = v.table_id ORDER BY v.version"
        ).fetchall()
        notes = {row["path"] for row in rows("SELECT path FROM catalog_stagedfile").fetchall()}
        commits_by_request = Counter(
            row["request_id"]
            for row in rows("SELECT request_id FROM catalog_transaction").fetchall()
        )
        names = [row["name"] for row in rows("SELECT name FROM catalog_table").fetchall()]

    entries: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    for row in ledger:
        path = row["manifest_path"].removeprefix("file://")
        entries[row["name"]].append((row["version"], path))
    properties = {}
    for name, versions in entries.items():
        assert [version for version, _ in versions] == list(range(len(versions))), name
        properties[name] = _is_as_stored(storm, name, versions[-1][1])

    _agrees_with_answers(storm, properties, commits_by_request)
    # A version for each commit, and one for each creation.
    standing = [request for request in storm.requests if commits_by_request[request.name]]
    assert len(ledger) == len(TABLES) + sum(len(request.tables) for request in standing)

    entered = {path for versions in entries.values() for _, path in versions}
    files_present = {f"{storm.storage.root}/{name}" for name in storm.storage.files()}
    assert entered <= files_present, "a version has lost its file"
    assert files_present - entered <= notes, "a file is not accounted for"
    assert not entered & notes, "what is current is about to be swept"
    return len(files_present - entered), len(notes)


def _is_as_stored(storm: _Storm, table: str, path: str) -> set[str]:
    """Assert that loadTable answers the bytes of the current metadata file. Return its properties."""
    server = storm.server
    answer = urllib3.request(
        "GET",
        f"{server.url}/v1/namespaces/storm/tables/{table}",
        headers={"x-api-key": server.key, "accept-encoding": "gzip"},
        timeout=60,
        retries=urllib3.Retry(total=None, connect=100, read=0, backoff_factor=0.1, backoff_max=1),
    )
    assert answer.status == 200, answer.data
    answer_body = json.loads(answer.data)
    assert answer_body["metadata-location"].removeprefix("file://") == path
    content = storm.storage.read(path)
    assert content in answer.data
    assert json.loads(content) == answer_body["metadata"]
    return set(answer_body["metadata"]["properties"])


def _agrees_with_answers(
    storm: _Storm, properties: dict[str, set[str]], commits: Counter[str]
) -> None:
    """Acknowledged properties are in all their tables, once; refused ones are in none."""
    for request in storm.requests:
        standing = {request.name in properties.get(table, ()) for table in request.tables}
        assert len(standing) == 1, f"half done: {request}"
        assert commits[request.name] == standing.pop(), request
        match request.outcome:
            case Outcome.COMMITTED:
                assert commits[request.name] == 1, f"lost: {request}"
            case Outcome.REFUSED:
                assert commits[request.name] == 0, f"done though refused: {request}"
