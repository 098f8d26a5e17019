"""32 threads of mixed commits on shared tables."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos.judgement import Ledger, is_busy, judge
from tests.chaos.storm import THREADS, Outcome, Storm
from tests.factories import manifest
from tests.live import LiveServer

pytestmark = pytest.mark.xdist_group("storm")  # the shared server starts once


@pytest.fixture(scope="module")
def shared(live_template: None) -> Iterator[LiveServer]:
    """A server for tests that leave it running, each with namespaces of its own."""
    with LiveServer(workers=2, threads=16) as server:
        yield server


def test_mixed_batches_are_atomic_and_never_deadlock(server: LiveServer, seed: int) -> None:
    _storm(server, seed, requests_each=15)


@pytest.mark.chaos
def test_mixed_batches_for_longer(server: LiveServer, seed: int, rounds: int) -> None:
    _storm(server, seed, requests_each=20 * rounds)


def _storm(server: LiveServer, seed: int, requests_each: int) -> None:
    storm = Storm(server, seed, with_files=False)
    storm.run(requests_each)

    assert len(storm.requests) == THREADS * requests_each
    failed = [
        r
        for r in storm.requests
        if (r.status >= 500 and not is_busy(r)) or r.outcome is Outcome.UNKNOWN
    ]
    assert failed == [], server.log
    with server.database() as connection:
        judge(storm, Ledger(connection))
    # Not even one that the engine's retry hid; the server's connections report when they close.
    server.stop()
    server.wait_until_idle()
    with server.database() as connection:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert connection.execute(query).fetchone() == (0,)


def test_a_loser_sees_the_winner_at_once(shared: LiveServer) -> None:
    """A 409 is never visible before the winner's row is: Lance clients ask right after it."""
    threads, versions, table = 16, 20, "race$t"
    assert shared.post("/v1/namespace/race/create")[0] == 200
    _, declared = shared.post(f"/v1/table/{table}/declare")
    directory = Path(declared["location"]) / "_versions"
    directory.mkdir(parents=True)
    barrier = threading.Barrier(threads)
    answers: dict[int, list[int]] = {version: [] for version in range(1, versions + 1)}
    describes: list[tuple[int, int, dict]] = []

    def contend(number: int) -> None:
        for version, statuses in answers.items():
            staged = directory / f"{2**64 - 1 - version:020d}.manifest-{number}"
            staged.write_bytes(manifest(version, text=b"%d %d" % (version, number)))
            body = {"version": version, "manifest_path": str(staged).lstrip("/")}
            barrier.wait(60)
            status, answer = shared.post(f"/v1/table/{table}/version/create", body)
            statuses.append(status)
            if status == 409:
                assert answer["code"] == 14
                route = f"/v1/table/{table}/version/describe"
                describes.append((version, *shared.post(route, {"version": version})))
            else:
                winners[version] = number

    winners: dict[int, int] = {}
    with ThreadPoolExecutor(threads) as pool:
        for contender in [pool.submit(contend, number) for number in range(threads)]:
            contender.result()

    for statuses in answers.values():
        assert sorted(statuses) == [200] + [409] * (threads - 1)
    assert len(describes) == versions * (threads - 1)
    for version, status, answer in describes:
        assert status == 200, answer
        path = Path("/" + answer["version"]["manifest_path"])
        text = b"%d %d" % (version, winners[version])
        assert path.read_bytes() == manifest(version, text=text)


@pytest.mark.parametrize(
    ("version", "expected"), [(None, {200}), (7, {200, 409})], ids=["own numbers", "same number"]
)
def test_a_replaced_table_is_never_missing(
    shared: LiveServer, version: int | None, expected: set[int]
) -> None:
    """One batch deregisters a table and declares it again; writers see the old or the new table."""
    namespace = f"swap{version}"
    table, path = [namespace, "t"], f"{namespace}$t"
    declare = {"declare_table": {"id": table}}
    replace = [{"deregister_table": {"id": table}}, declare]
    stop = threading.Event()
    answers: list[int] = []

    def commit(operations: list[dict]) -> None:
        status, answer = shared.post("/v1/table/batch-commit", {"operations": operations})
        assert status == 200, answer

    def write(number: int) -> None:
        for count in itertools.count(2):
            if stop.is_set():
                return
            body = {"version": version or 1000 * number + count, "manifest_path": "elsewhere/next"}
            answers.append(shared.post(f"/v1/table/{path}/version/create", body)[0])

    assert shared.post(f"/v1/namespace/{namespace}/create")[0] == 200
    commit([declare])
    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write, number) for number in range(1, 9)]
        try:
            for _ in range(60):
                commit(replace)
        finally:
            stop.set()
    for writer in writers:
        writer.result()
    assert len(answers) > 60
    assert set(answers) == expected, Counter(answers)


@pytest.mark.parametrize("mode", ["Create", "ExistOk"])
def test_concurrent_creators_create_a_namespace_once(shared: LiveServer, mode: str) -> None:
    threads = 8
    barrier = threading.Barrier(threads)

    def create(_: int) -> list[tuple[int, bool]]:
        answers = []
        for number in range(20):
            barrier.wait(60)
            status, answer = shared.post(f"/v1/namespace/{mode}{number}/create", {"mode": mode})
            answers.append((status, "transaction_id" in answer))
        return answers

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(create, range(threads)))

    loser = (409, False) if mode == "Create" else (200, False)
    for rivals in zip(*answers, strict=True):
        assert Counter(rivals) == {(200, True): 1, loser: threads - 1}
