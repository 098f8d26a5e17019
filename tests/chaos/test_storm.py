"""32 threads of mixed commits on shared tables."""

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chaos.judgement import Ledger, is_busy, judge
from tests.chaos.storm import THREADS, Outcome, Storm
from tests.factories import manifest
from tests.live import LiveServer


def test_mixed_batches_are_atomic_and_never_deadlock(server: LiveServer, seed: int) -> None:
    _storm(server, seed, requests_each=60)


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


def test_a_loser_sees_the_winner_at_once(server: LiveServer) -> None:
    """A 409 is never visible before the winner's row is: Lance clients ask right after it."""
    threads, versions, table = 16, 40, "race$t"
    assert server.post("/v1/namespace/race/create")[0] == 200
    _, declared = server.post(f"/v1/table/{table}/declare")
    directory = Path(declared["location"]) / "_versions"
    directory.mkdir(parents=True)
    barrier = threading.Barrier(threads)
    answers: dict[int, list[int]] = {version: [] for version in range(1, versions + 1)}
    describes: list[tuple[int, int, dict]] = []

    def contend(number: int) -> None:
        for version, answer_ in answers.items():
            staged = directory / f"{2**64 - 1 - version:020d}.manifest-{number}"
            staged.write_bytes(manifest(version, text=b"%d %d" % (version, number)))
            body = {"version": version, "manifest_path": str(staged).lstrip("/")}
            barrier.wait(60)
            status, answer = server.post(f"/v1/table/{table}/version/create", body)
            answer_.append(status)
            if status == 409:
                assert answer["code"] == 14
                route = f"/v1/table/{table}/version/describe"
                describes.append((version, *server.post(route, {"version": version})))
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
    server: LiveServer, version: int | None, expected: set[int]
) -> None:
    """One batch deregisters a table and declares it again; writers see the old or the new table."""
    table, path = ["swap", "t"], "swap$t"
    declare = {"declare_table": {"id": table}}
    replace = [{"deregister_table": {"id": table}}, declare]
    stop = threading.Event()
    answers: list[int] = []

    def commit(operations: list[dict]) -> None:
        status, answer = server.post("/v1/table/batch-commit", {"operations": operations})
        assert status == 200, answer

    def write(number: int) -> None:
        for count in itertools.count(2):
            if stop.is_set():
                return
            body = {"version": version or 1000 * number + count, "manifest_path": "elsewhere/next"}
            answers.append(server.post(f"/v1/table/{path}/version/create", body)[0])

    assert server.post("/v1/namespace/swap/create")[0] == 200
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
def test_concurrent_creators_create_a_namespace_once(server: LiveServer, mode: str) -> None:
    threads = 8
    barrier = threading.Barrier(threads)

    def create(_: int) -> list[tuple[int, bool]]:
        answers = []
        for number in range(20):
            barrier.wait(60)
            status, answer = server.post(f"/v1/namespace/n{number}/create", {"mode": mode})
            answers.append((status, "transaction_id" in answer))
        return answers

    with ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(create, range(threads)))

    loser = (409, False) if mode == "Create" else (200, False)
    for rivals in zip(*answers, strict=True):
        assert Counter(rivals) == {(200, True): 1, loser: threads - 1}
