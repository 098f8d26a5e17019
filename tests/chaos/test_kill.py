"""The web server is killed repeatedly during a storm; no acknowledged commit is lost."""

import random
import time
from collections.abc import Iterator

import pytest

from tests.chaos.judgement import Ledger, is_settled, judge, names_readable_manifests
from tests.chaos.storm import Outcome, Storm
from tests.live import LiveServer


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    """A server with one worker process, because a second one would rarely start before the next
    kill."""
    with LiveServer(workers=1, threads=16) as server:
        yield server


@pytest.mark.timeout(900)  # about 20 s, and several times that on a busy machine
def test_kills_leave_no_partial_commit(server: LiveServer, seed: int) -> None:
    _kill_again_and_again(server, seed, kills=2)


@pytest.mark.chaos
def test_kills_for_longer(server: LiveServer, seed: int, rounds: int) -> None:
    _kill_again_and_again(server, seed, kills=rounds)


def _kill_again_and_again(server: LiveServer, seed: int, kills: int) -> None:
    dice = random.Random(seed)
    interrupted = 0
    storm = Storm(server, seed, with_files=True)
    with storm:
        for _ in range(kills):
            _wait_for_traffic(storm)
            time.sleep(dice.uniform(0, 0.3))
            server.kill()
            interrupted += _moves_to_finish(server)
            server.start(wait=False)
        _wait_for_traffic(storm)
    server.wait_until_idle()

    with server.database() as connection:
        ledger = Ledger(connection)
    judge(storm, ledger)
    assert names_readable_manifests(server, ledger) > 0
    server.settle()
    with server.database() as connection:
        ledger = Ledger(connection)
    judge(storm, ledger)
    is_settled(storm, ledger)
    assert names_readable_manifests(server, ledger) > 0
    outcomes = dict.fromkeys(Outcome, 0)
    for request in storm.requests:
        outcomes[request.outcome] += 1
    assert min(outcomes.values()) > 0, outcomes
    print(f"{kills} kills, {interrupted} moves interrupted, {outcomes}")


def _wait_for_traffic(storm: Storm, commits: int = 10, within: float = 60.0) -> None:
    """Wait until the restarted server has acknowledged some commits."""
    deadline = time.monotonic() + within
    target = storm.committed + commits
    while storm.committed < target:
        assert time.monotonic() < deadline, f"no traffic:\n{storm.server.log}"
        time.sleep(0.01)


def _moves_to_finish(server: LiveServer) -> int:
    """Number of committed versions whose manifests the killed server did not move."""
    server.wait_until_idle()
    with server.database() as connection:
        query = "SELECT count(*) FROM catalog_tableversion WHERE staged_path IS NOT NULL"
        return int(connection.execute(query).fetchone()[0])
