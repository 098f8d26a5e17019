"""Web server and worker are killed during commits. The events are exactly the commits.

A stream that reconnects with its last id and a receiver of webhooks both get each committed change at
least once, and nothing else.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.live import LiveServer, Lost
from tests.receiver import Receiver
from tests.streams import Listener

WRITERS = 6
_HOOK = """
from catalog.access import SYSTEM
from catalog.services.events import webhooks
webhooks.create_webhook(actor=SYSTEM, name="all", url={url!r}, types=["table.*"])
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer(
        workers=1, threads=8, MONODON_WEBHOOK_HOSTS="127.0.0.1", MONODON_EVENT_STREAMS="8"
    ) as server:
        yield server


@pytest.mark.timeout(600)
def test_events_match_commits_despite_kills(
    server: LiveServer, receiver: Receiver, seed: int
) -> None:
    _kill_while_committing(server, receiver, seed, commits=40, kills=2)


@pytest.mark.chaos
def test_events_match_a_thousand_commits_despite_kills(
    server: LiveServer, receiver: Receiver, seed: int
) -> None:
    _kill_while_committing(server, receiver, seed, commits=1000, kills=20)


def _kill_while_committing(
    server: LiveServer, receiver: Receiver, seed: int, *, commits: int, kills: int
) -> None:
    """Commit, and alternately kill the web server and the worker, `kills` times in total."""
    dice = random.Random(seed)
    server.manage(_HOOK.format(url=receiver.url))
    assert server.post("/v1/namespace/ws/create")[0] == 200
    server.start_worker()
    server.start_beat()
    acknowledged: set[str] = set()
    lock = threading.Lock()

    def write(number: int) -> None:
        """Create a table or, every third time, two in one commit. Retry only requests that were not
        executed."""
        names = [f"t{number}", f"u{number}"] if number % 3 == 0 else [f"t{number}"]
        while not _send(server, names):
            time.sleep(0.1)
        with lock:
            acknowledged.update(f"ws.{name}" for name in names)

    with Listener(server, last_id="0-0", types="table.*") as listener:
        with ThreadPoolExecutor(WRITERS) as writers:
            work = [writers.submit(write, number) for number in range(commits)]
            for kill in range(kills):
                goal = commits * (kill + 1) // (kills + 1)
                _until(lambda goal=goal: sum(future.done() for future in work) >= goal)
                time.sleep(dice.uniform(0, 0.2))
                if kill % 2 == 0:
                    server.kill()
                    server.wait_until_idle()
                    server.start()
                else:
                    server.kill_worker()
                    server.start_worker()
            for future in work:
                future.result()
        server.wait_until_idle()
        committed = _committed(server)
        _until(lambda: set(listener.ids) >= committed, within=240)
        _until(lambda: _let_claims_end(server) == 0, within=240)

    delivered = [event["id"] for event in receiver.events]
    assert set(listener.ids) == committed
    assert set(delivered) == committed
    assert len(committed) >= commits
    assert {event["subject"] for event in listener.events} >= acknowledged
    assert len(listener.ids) == len(
        set(listener.ids)
    )  # a stream repeats no event, because it has a position
    transactions = {event["data"]["transaction_id"] for event in listener.events}
    with server.database() as connection:
        rows = connection.execute(
            "SELECT id::text FROM catalog_transaction WHERE EXISTS (SELECT FROM catalog_auditevent"
            " WHERE transaction_id = catalog_transaction.id AND action LIKE 'table.%')"
        ).fetchall()
        tables = connection.execute("SELECT count(*) FROM catalog_table").fetchone()
    assert transactions == {row for (row,) in rows}
    assert tables == (len(committed),)  # each table was declared once
    print(
        f"{commits} commits, {kills} kills: {len(committed)} events, stream opened"
        f" {listener.opened} times, {len(delivered) - len(committed)} told twice by POST"
    )


def _send(server: LiveServer, names: list[str]) -> bool:
    """Create the tables; return True if they exist now. A lost answer may be that of a commit."""
    try:
        if len(names) == 1:
            status, answer = server.post(f"/v1/table/ws${names[0]}/declare")
        else:
            operations = [{"declare_table": {"id": ["ws", name]}} for name in names]
            status, answer = server.post("/v1/table/batch-commit", {"operations": operations})
    except Lost:
        return False
    assert status in {200, 409, 500, 503}, answer
    return status in {200, 409}  # 409: the commit whose answer was lost


def _committed(server: LiveServer) -> set[str]:
    """Ids of the expected events, from the audit trail of tables."""
    with server.database() as connection:
        rows = connection.execute(
            "SELECT xid::text || '-' || id FROM catalog_auditevent"
            " WHERE outcome = 'done' AND action LIKE 'table.%'"
        ).fetchall()
    return {identity for (identity,) in rows}


def _let_claims_end(server: LiveServer) -> int:
    """Number of events still to be delivered to the webhook; interrupted deliveries are due again."""
    with server.database() as connection:
        connection.execute(
            "UPDATE catalog_webhookdelivery SET due_at = now()"
            " WHERE status = 'pending' AND due_at > now() + interval '30 s'"
        )
        count = connection.execute(
            "SELECT count(*) FROM catalog_auditevent event WHERE outcome = 'done'"
            " AND action LIKE 'table.%' AND NOT EXISTS (SELECT FROM catalog_webhookdelivery told"
            " WHERE told.event = event.id AND told.status = 'delivered')"
        ).fetchone()
    assert count is not None
    return int(count[0])


def _until(holds: Callable[[], bool], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
