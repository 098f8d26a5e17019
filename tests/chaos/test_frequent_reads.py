"""Hundreds of reads at a time in one event loop: everybody gets its own answer, and no answer is older than a change.

Clients leave before their answer or send several requests at once, and database sessions end meanwhile.
"""

import asyncio
import json
import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

import pytest

from tests.live import LiveServer

ROUNDS = int(os.environ.get("CHAOS_ROUNDS") or 1)
CONNECTIONS, CONVERSATIONS = 160, 20 * ROUNDS
TENANTS, TABLES = 8, 4
pytestmark = pytest.mark.xdist_group("frequent reads")  # the tests use one server
READS = ("describe", "exists", "versions", "list", "namespace", "namespace exists")
_CREATE = """
import json
from pathlib import Path
from catalog.access import SYSTEM
from catalog.models import Grant, Namespace, Principal, PrincipalLevel, Table, TableVersion
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import registration_operations
from catalog.services.tables import namespace_operations

def create(tenant):
    mark = f"mark{tenant}"
    key = api_keys.create_api_key(actor=SYSTEM, name=mark, level=PrincipalLevel.GRANTED)[1]
    space = namespace_operations.CreateNamespace(namespace=(f"n{tenant}",), properties={"m": mark})
    commit([space], actor=SYSTEM)
    for number in range(%(tables)s):
        name = f"t{tenant}-{number}"
        declare = registration_operations.DeclareTable(table=(f"n{tenant}", name), properties={"m": mark})
        commit([declare], actor=SYSTEM)
        row = Table.objects.get(name=name)
        TableVersion.objects.bulk_create(
            TableVersion(table=row, version=version, manifest_path=f"elsewhere/{mark}-{number}-{version}")
            for version in range(1, 2 + number)
        )
    Grant.objects.create(
        principal=Principal.objects.get(name=mark), mask=3, namespace=Namespace.objects.get(name=f"n{tenant}")
    )
    return key

Path(%(file)r).write_text(json.dumps([create(tenant) for tenant in range(%(tenants)s)]))
"""


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    """A server with one event loop, which has to serve everybody."""
    unlimited = dict.fromkeys(
        ("MONODON_REQUESTS_PER_ADDRESS", "MONODON_REQUESTS_PER_PRINCIPAL"), "0"
    )
    with LiveServer(workers=1, threads=4, **unlimited) as server:
        yield server


@pytest.fixture(scope="module")
def keys(server: LiveServer) -> list[str]:
    """The keys of tenants, each of which may read its own namespace."""
    file = server.home / "keys.json"
    server.manage(_CREATE % {"file": str(file), "tenants": TENANTS, "tables": TABLES})
    names: list[str] = json.loads(file.read_text())
    return names


class Connection:
    """A connection on which requests are sent and answers are read one after the other."""

    def __init__(self, server: LiveServer) -> None:
        self._port = server.port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()

    def send(self, key: str, method: str, path: str, request_id: str, body: bytes = b"") -> None:
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\nx-api-key: {key}\r\n"
        head += f"x-request-id: {request_id}\r\n"
        if method == "POST":
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(f"{head}\r\n".encode() + body)

    async def read(self) -> tuple[int, dict[str, str], bytes]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return int(lines[0].split()[1]), headers, body

    async def ask(self, key: str, method: str, path: str) -> tuple[int, bytes]:
        request_id = uuid.uuid4().hex
        self.send(key, method, path, request_id)
        status, headers, body = await self.read()
        assert headers["x-request-id"] == request_id
        return status, body


def request_for(read: str, tenant: int, number: int) -> tuple[str, str]:
    namespace, table = f"/v1/namespace/n{tenant}", f"/v1/table/n{tenant}$t{tenant}-{number}"
    return {
        "describe": ("POST", f"{table}/describe"),
        "exists": ("POST", f"{table}/exists"),
        "versions": ("POST", f"{table}/version/list"),
        "list": ("GET", f"{namespace}/table/list"),
        "namespace": ("POST", f"{namespace}/describe"),
        "namespace exists": ("POST", f"{namespace}/exists"),
    }[read]


def check(read: str, tenant: int, number: int, answer: bytes) -> None:
    """Require that an answer is that of a read of a table of this tenant."""
    mark = f"mark{tenant}"
    match read:
        case "describe":
            body = json.loads(answer)
            assert body["properties"] == {"m": mark}
            assert f"t{tenant}-{number}" in body["location"]
        case "versions":
            paths = [version["manifest_path"] for version in json.loads(answer)["versions"]]
            assert paths == [f"elsewhere/{mark}-{number}-{n}" for n in range(1, 2 + number)]
        case "list":
            assert json.loads(answer)["tables"] == [f"t{tenant}-{n}" for n in range(TABLES)]
        case "namespace":
            assert json.loads(answer) == {"properties": {"m": mark}}
        case _:
            assert answer == b""


class Left(Exception):
    """A client has left before its answer."""


class Crowd:
    """Clients that read what is theirs, and try to read what is not, and often leave early."""

    def __init__(self, server: LiveServer, keys: list[str], seed: int) -> None:
        self._server, self._keys, self._seed = server, keys, seed
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*(self._work(client) for client in range(CONNECTIONS)))

    async def _work(self, client: int) -> None:
        dice = random.Random(f"{self._seed} {client}")
        conversations = iter(range(CONVERSATIONS))
        while next(conversations, None) is not None:
            try:
                async with Connection(self._server) as connection:
                    await self._converse(connection, dice)
                    for _ in conversations:
                        await self._converse(connection, dice)
            except Left:
                self.outcomes["left"] += 1

    async def _converse(self, connection: Connection, dice: random.Random) -> None:
        """Send a few requests at once, and check the answers, or leave before."""
        sent = []
        for _ in range(dice.choice([1, 1, 1, 4])):
            reader, tenant = dice.randrange(TENANTS), dice.randrange(TENANTS)
            tenant = dice.choice([reader, reader, reader, tenant])
            read, number = dice.choice(READS), dice.randrange(TABLES)
            request_id = uuid.uuid4().hex
            connection.send(self._keys[reader], *request_for(read, tenant, number), request_id)
            sent.append((reader, tenant, read, number, request_id))
        if dice.random() < 0.1:
            await asyncio.sleep(dice.choice([0, 0.001, 0.003, 0.01]))
            raise Left
        for reader, tenant, read, number, request_id in sent:
            status, headers, answer = await connection.read()
            assert headers["x-request-id"] == request_id
            self.outcomes[str(status)] += 1
            if status == 503:  # the database did not answer
                continue
            assert status == (200 if reader == tenant else 404), answer
            if reader == tenant:
                check(read, tenant, number, answer)
            else:
                assert f"mark{tenant}".encode() not in answer


async def end_sessions(server: LiveServer, seed: int) -> None:
    """End a database session of the server, or all, now and then, or keep a table locked for longer than a
    statement of the event loop may take."""
    dice = random.Random(seed)
    with server.database() as database:
        while True:
            await asyncio.sleep(dice.choice([0.1, 0.5, 1.5]))
            if dice.random() < 0.3:
                database.execute("BEGIN; LOCK TABLE catalog_table IN ACCESS EXCLUSIVE MODE")
                await asyncio.sleep(dice.choice([0.1, 0.4]))
                database.execute("COMMIT")
                continue
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() ORDER BY random() LIMIT %s",
                [dice.choice([1, 1, 100])],
            )


def test_everybody_gets_its_own_answers(server, keys, seed):
    async def run() -> Counter[str]:
        crowd = Crowd(server, keys, seed)
        ends = asyncio.create_task(end_sessions(server, seed))
        await crowd.run()
        ends.cancel()
        return crowd.outcomes

    outcomes = asyncio.run(run())
    print(outcomes)
    conversations = CONNECTIONS * CONVERSATIONS
    assert outcomes["200"] > conversations / 2
    assert outcomes["404"] > conversations / 20
    assert outcomes["left"] > conversations / 20
    assert "takes the ordinary way" not in server.log


# -- changes


class Changes:
    """Changes of a table that another connection commits, and reads that begin afterwards."""

    def __init__(self, server: LiveServer, keys: list[str], tenant: int, seed: int) -> None:
        self._server, self._key, self._tenant = server, keys[tenant], tenant
        self._dice = random.Random(f"{seed} {tenant}")
        self._version = 100
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        changes = [self._add, self._revoke, self._expire, self._drop] * (2 * ROUNDS)
        self._dice.shuffle(changes)
        with self._server.database() as database:
            async with Connection(self._server) as connection:
                self._database, self._connection = database, connection
                for change in changes:
                    await change()

    async def _read(self, read: str) -> tuple[int, Any]:
        for _ in range(50):
            status, body = await self._connection.ask(
                self._key, *request_for(read, self._tenant, 0)
            )
            if status != 503:
                self.outcomes[str(status)] += 1
                return status, json.loads(body or b"{}")
            await asyncio.sleep(0.1)
        raise AssertionError("no answer")

    async def _warm(self) -> None:
        """Let the process cache the key and the grants."""
        for _ in range(self._dice.randrange(3)):
            for read in READS:
                assert (await self._read(read))[0] == 200

    async def _add(self) -> None:
        await self._warm()
        for _ in range(5):
            self._version += 1
            self._database.execute(
                "INSERT INTO catalog_tableversion (table_id, branch, version, manifest_path)"
                " SELECT id, '', %s, 'x' FROM catalog_table WHERE name = %s",
                [self._version, f"t{self._tenant}-0"],
            )
            _, body = await self._read("versions")
            assert body["versions"][-1]["version"] == self._version
        self._database.execute(
            "UPDATE catalog_tableversion v SET deleted_at = now() FROM catalog_table t"
            " WHERE t.id = v.table_id AND t.name = %s AND v.version < %s",
            [f"t{self._tenant}-0", self._version],
        )
        _, body = await self._read("versions")
        assert [each["version"] for each in body["versions"]] == [self._version]
        # Numbers are never used again; here they are, so that lists stay short.
        self._database.execute(
            "DELETE FROM catalog_tableversion v USING catalog_table t WHERE t.id = v.table_id AND t.name = %s",
            [f"t{self._tenant}-0"],
        )
        assert (await self._read("versions"))[1] == {"versions": []}

    _OF_TENANT = "principal_id = (SELECT id FROM catalog_principal WHERE name = %s)"

    def _change_grants(self, change: str) -> None:
        mark = f"mark{self._tenant}"
        self._database.execute(f"UPDATE catalog_grant SET {change} WHERE {self._OF_TENANT}", [mark])

    async def _revoke(self) -> None:
        await self._warm()
        self._change_grants("expires_at = now()")
        for read in READS:
            assert (await self._read(read))[0] == 404
        self._change_grants("mask = 1, expires_at = NULL")
        assert (await self._read("exists"))[0] == 200
        assert (await self._read("describe"))[0] == 403
        self._change_grants("mask = 3")
        assert (await self._read("describe"))[0] == 200

    async def _expire(self) -> None:
        """The clock of the database alone ends a grant: nothing is written then."""
        self._change_grants("expires_at = clock_timestamp() + interval '300 ms'")
        while True:
            row = self._database.execute(
                f"SELECT expires_at < clock_timestamp() FROM catalog_grant WHERE {self._OF_TENANT}",
                [f"mark{self._tenant}"],
            ).fetchone()
            status, _ = await self._read(self._dice.choice(READS))
            if row == (True,):
                assert status == 404
                break
        self._change_grants("expires_at = NULL")
        assert (await self._read("exists"))[0] == 200

    async def _drop(self) -> None:
        await self._warm()
        table = f"UPDATE catalog_table SET state = %s WHERE name = 't{self._tenant}-0'"
        self._database.execute(table, ["dropped"])
        for read in ("describe", "exists", "versions"):
            assert (await self._read(read))[0] == 404
        assert f"t{self._tenant}-0" not in (await self._read("list"))[1]["tables"]
        self._database.execute(table, ["live"])
        assert f"t{self._tenant}-0" in (await self._read("list"))[1]["tables"]


def test_no_answer_is_older_than_a_change(server, keys, seed):
    async def run() -> Counter[str]:
        changes = [Changes(server, keys, tenant, seed) for tenant in range(TENANTS)]
        await asyncio.gather(*(change.run() for change in changes))
        return sum((change.outcomes for change in changes), Counter())

    print(asyncio.run(run()))
