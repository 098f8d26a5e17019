"""An older release is replaced by this one under load, as docs/operations.md describes it.

Two web servers are behind a load balancer, with one database: the older release serves alone, then while this
release migrates the database, then beside it, and then it is stopped. Workers and beat follow.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lance
import psycopg
import pyarrow as pa
import pytest

from tests import checkout
from tests.api.client import stream
from tests.chaos.harness import judges, ledger
from tests.chaos.harness.ledger import Ledger
from tests.checkout import Checkout
from tests.clients import pyice
from tests.clients.balancer import Balancer
from tests.live import KEY, LiveServer
from tests.receiver import Receiver
from tests.upgrade.load import (
    ARROW,
    ICEBERG_SCHEMA,
    ROWS,
    SPACE,
    AdminPages,
    CloneAppends,
    Events,
    Front,
    IcebergAppends,
    Jobs,
    LanceAppends,
    LanceVersions,
    Load,
    all_loads,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1500)]

PASSWORD = "narwhals have one tusk"
STEPS = 2
"""The number of steps that each client makes in each phase."""
START_SECONDS = 300.0
_FAULT = re.compile(r"\b(ERROR|CRITICAL)\b|Traceback")


@pytest.fixture(scope="session")
def old_checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return checkout.older(tmp_path_factory.mktemp("older"))


@pytest.fixture
def servers(old_checkout: Checkout, tmp_path: Path) -> Iterator[tuple[LiveServer, LiveServer]]:
    """The older release, which serves, and this one, which does not run yet."""
    settings = {
        "MONODON_ADMIN_PASSWORD": PASSWORD,
        "MONODON_ALLOWED_ROOTS": str(tmp_path),
        "MONODON_WEBHOOK_HOSTS": "127.0.0.1",
        # Otherwise, jobs wait behind those that purge dropped tables.
        "MONODON_TRASH_SECONDS": "604800",
        "MONODON_WORKER_CONCURRENCY": "2",
    }
    old = LiveServer(workers=1, checkout=old_checkout, **settings)
    new = LiveServer(workers=1, beside=old, **settings)
    try:
        old.bootstrap()
        old.start(wait=False)
        old.wait_ready(START_SECONDS)
        old.start_worker()
        old.start_beat()
        yield old, new
    finally:
        new.close()
        old.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def start_again(old: LiveServer) -> None:
    """Start another server of the older release after the migrations, as after a crash."""
    with LiveServer(workers=1, beside=old, checkout=old.checkout) as another:
        another.bootstrap()
        assert Front(another.port).get("/health/ready", key="")["status"] == "ok"
        Front(another.port).post(f"/v1/namespace/{SPACE}/describe")
        assert faults(another) == []


class Clones:
    """Shallow clones of a table, with a principal that may read them and not the table."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: list[str] = []
        self.key = ""

    def add(self, server: LiveServer, name: str) -> None:
        """Register a clone, whose rows are in files of the source, at one of the servers."""
        front, location = Front(server.port), str(self._directory / name)
        source = lance.dataset(front.post(f"/v1/table/{SPACE}$source/describe")["location"])
        source.shallow_clone(location, source.version)
        front.post(f"/v1/table/clones${name}/register", {"location": location})
        self._names.append(name)

    def are_readable(self, *servers: LiveServer) -> None:
        """Check that the principal can read all clones at each server."""
        query = {"k": 100, "vector": {}, "columns": {"column_names": ["row"]}}
        for server in servers:
            for name in self._names:
                front = Front(server.port)
                data = front.post(f"/v1/table/clones${name}/query", query, key=self.key)
                assert pa.ipc.open_file(data).read_all().num_rows >= ROWS, (name, server.port)
            front.send(
                "POST", f"/v1/table/{SPACE}$source/query", query, expected=(403, 404), key=self.key
            )


def wait_until(condition: Callable[[], bool], reason: str, within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, reason
        time.sleep(0.1)


def advance(loads: Sequence[Load], phase: str, steps: int = STEPS) -> None:
    """Wait until every client has made further steps."""
    began = time.monotonic()
    goal = {load.name: load.steps + steps for load in loads}
    wait_until(
        lambda: all(load.steps >= goal[load.name] for load in loads),
        f"{phase}: {[(load.name, load.steps, goal[load.name]) for load in loads]}",
        within=400,
    )
    failures = sum(len(load.failures) for load in loads)
    print(f"{phase}: {time.monotonic() - began:.0f} s, {failures} failures so far")


def test_the_older_release_is_replaced_under_load(
    servers: tuple[LiveServer, LiveServer], receiver: Receiver, tmp_path: Path
) -> None:
    old, new = servers
    with Balancer([old.port, new.port]) as balancer:
        wait_until(lambda: balancer.ready == {old.port}, "the older release is ready")
        front = Front(balancer.port)
        clones = Clones(tmp_path)
        clones.key = seed(front, receiver)
        clones.add(old, "first")
        admin = AdminPages(front, PASSWORD)
        admin.sign_in()
        loads = [*all_loads(front), admin]
        for load in loads:
            load.start()
        try:
            replace(servers, balancer, loads, clones)
        finally:
            for load in loads:
                load.stopped.set()
            for load in loads:
                load.join(180)
        for load in loads:
            print(load.name, load.steps, load.conflicts, f"{load.longest:.1f} s")
        print(dict(balancer.opened))
        problems = [
            *(failure for load in loads for failure in load.failures),
            *faults(old),
            *faults(new),
        ]
        assert problems == [], "\n".join(problems)
        verify(new, loads, receiver)


def replace(
    servers: tuple[LiveServer, LiveServer],
    balancer: Balancer,
    loads: Sequence[Load],
    clones: Clones,
) -> None:
    old, new = servers
    advance(loads, "the older release alone")
    began = time.monotonic()
    new.bootstrap()
    print(f"migrations: {time.monotonic() - began:.1f} s")
    advance(loads, "the older release after the migrations")
    clones.add(old, "second")
    start_again(old)
    new.start(wait=False)
    new.wait_ready(START_SECONDS)
    wait_until(lambda: len(balancer.ready) == 2, "both releases are ready")
    clones.add(old, "third")
    clones.add(new, "fourth")
    clones.are_readable(old, new)
    advance(loads, "both web servers", 5 * STEPS)
    new.start_worker()
    advance(loads, "both workers", 5 * STEPS)
    old.stop_background()
    new.start_beat()
    advance(loads, "the new worker and beat")
    balancer.withdraw(old.port)
    wait_until(lambda: not balancer.open[old.port], "every client has left the older release")
    old.stop()
    advance(loads, "the new release alone")
    clones.are_readable(new)


def seed(front: Front, receiver: Receiver) -> str:
    """What the older release has before the upgrade. Returns the key of a reader of the clones."""
    front.post(f"/v1/namespace/{SPACE}/create")
    front.post("/v1/namespace/clones/create")
    schema = pa.schema({"attempt": pa.string(), "row": pa.int64()})
    front.post(
        f"/v1/table/{SPACE}$rows/create",
        stream(schema.empty_table()),
        **{"content-type": ARROW},
    )
    data = pa.table({"attempt": ["source"] * ROWS, "row": list(range(ROWS))})
    front.post(f"/v1/table/{SPACE}$source/create", stream(data), **{"content-type": ARROW})
    front.post(f"/v1/table/{SPACE}$plain/declare")
    catalog = pyice.connect(front.url, token=KEY)
    catalog.create_table((SPACE, "ice"), ICEBERG_SCHEMA)
    catalog._session.close()
    api = "/management/v1"
    hook = {"name": "hook", "url": receiver.url, "types": ["version.*", "table.*"]}
    front.post(f"{api}/webhooks", hook, expected=(201,))
    front.post(f"{api}/principals", {"name": "reader", "kind": "service"}, expected=(201,))
    key = front.post(f"{api}/keys", {"principal": "reader", "name": "reader"}, expected=(201,))
    front.send(
        "PUT",
        f"{api}/namespaces/clones/grants",
        {"principal": "reader", "privileges": ["read"]},
    )
    return str(key["key"])


def faults(server: LiveServer) -> list[str]:
    """The lines of a log that report a problem, each with the lines after it."""
    lines = server.log.splitlines()
    places = [at for at, line in enumerate(lines) if _FAULT.search(line)]
    return ["\n".join(lines[at : at + 12]) for at in places[:10]]


_WITH_VERSION = {"version.create", "table.create", "table.register", "table.commit"}
"""The actions by which the clients added versions."""


def unmatched(book: Ledger, connection: psycopg.Connection) -> dict[str, tuple[int, int]]:
    """The transactions with other numbers of versions and of audit events than each other's.

    Of the tables that clients shared; each version of another table has at least some audit event.
    """
    audited = {row.transaction for row in book.audit}
    assert [row for row in book.versions if row.transaction not in audited] == []
    shared = {
        table
        for (table,) in connection.execute(
            "SELECT t.uuid::text FROM catalog_table t JOIN catalog_namespace n ON n.id = t.namespace_id"
            " WHERE (n.path[1], t.name) IN (VALUES ('up', 'rows'), ('up', 'plain'), ('up', 'ice'),"
            " ('clones', 'first'))"
        )
    }
    assert len(shared) == 4
    entered = Counter(row.transaction for row in book.versions if row.table in shared)
    recorded = Counter(
        row.transaction for row in book.audit if row.table in shared and row.action in _WITH_VERSION
    )
    return {
        transaction: (entered[transaction], recorded[transaction])
        for transaction in entered.keys() | recorded.keys()
        if entered[transaction] != recorded[transaction]
    }


def verify(server: LiveServer, loads: Sequence[Load], receiver: Receiver) -> None:
    def of(kind: type[Load]) -> list:
        return [load for load in loads if type(load) is kind]

    client = server.client()
    for kind in (LanceAppends, CloneAppends):
        dataset = lance.dataset(namespace_client=client, table_id=kind.table)
        table = dataset.to_table()
        rows = Counter(zip(table["attempt"].to_pylist(), table["row"].to_pylist(), strict=True))
        names = {name for load in of(kind) for name in load.acknowledged}
        names |= {"source"} if kind is CloneAppends else set()
        assert rows == Counter((name, row) for name in names for row in range(ROWS))
        _, answer = server.post(f"/v1/table/{'$'.join(kind.table)}/version/list")
        versions = [entry["version"] for entry in answer["versions"]]
        appends = sum(len(load.acknowledged) for load in of(kind))
        assert versions == list(range(1, appends + 2))
        for version in versions:
            lance.dataset(namespace_client=client, table_id=kind.table, version=version)
    accepted = [version for load in of(LanceVersions) for version in load.accepted]
    assert sorted(accepted) == list(range(1, len(accepted) + 1))

    catalog = pyice.connect(server.url, token=KEY)
    ice = catalog.load_table((SPACE, "ice"))
    names = [name for load in of(IcebergAppends) for name in load.acknowledged]
    assert Counter(ice.scan().to_arrow()["name"].to_pylist()) == Counter(names)
    assert len(ice.metadata.snapshots) == len(names)
    catalog._session.close()

    with server.database() as connection:
        book = ledger.load(connection)
        assert unmatched(book, connection) == {}
        assert judges.order(book) == []
        jobs = connection.execute(
            "SELECT id, status, attempts FROM catalog_job WHERE kind = 'compact' ORDER BY id"
        ).fetchall()
        succeeded = sorted(job for load in of(Jobs) for job in load.succeeded)
        assert [row for row in jobs if row[0] in succeeded] == [
            (job, "succeeded", 1) for job in succeeded
        ]
        assert len(succeeded) == len(set(succeeded))
    (events,) = of(Events)
    rows = [row.id for row in book.audit]
    for _ in range(1 + len(rows) // 200):
        events.step()
    assert events.ids == rows
    begin = next(at for at, row in enumerate(book.audit) if row.action == "webhook.create")
    expected = {
        row.id for row in book.audit[begin:] if row.action.startswith(("version.", "table."))
    }
    wait_until(
        lambda: {event["id"] for event in receiver.events} >= expected,
        "every event is delivered to the webhook",
    )
    delivered = Counter(event["id"] for event in receiver.events)
    assert {event: count for event, count in delivered.items() if count > 1} == {}
