"""The three sides of the comparison. Each can be asked to run an operation for some seconds."""

import itertools
import json
import os
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from benchmarks import pgbench, processes, wrk
from benchmarks.errors import BadAnswers
from benchmarks.load import Size
from benchmarks.stack import API_KEY, Stack
from benchmarks.wrk import Run
from catalog.formats.lance import wire as lance_wire

STAGED_PER_SECOND = 5000
"""Manifests staged for one second of creates. A server that needs more fails the run in plain words."""
MANIFEST_BYTES = 461
NUMBERS_PER_RUN = 10_000_000
FIRST_RECORDED = 100_000
"""The versions of ``record`` and ``batch`` begin here, above those of ``create``."""
SETTINGS = {"MONODON_MANIFEST_PATHS": "bench/"}
"""Of Monodon's web server: the operations ``record`` and ``batch`` name such paths."""

_seeds = itertools.count(1)


@dataclass(frozen=True)
class Sample:
    """One short run."""

    operations_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of the server's processes per request."""


@dataclass
class Staging:
    """A table to which staged manifests are committed."""

    path: str
    location: Path
    next_version: int


def manifest(version: int) -> bytes:
    """A manifest of this version as small tables have them; the rest of it is one unknown field."""
    number = lance_wire.encode_varint(version)
    filling = bytes(MANIFEST_BYTES - 4 - 16 - 4 - 1 - len(number))
    size = lance_wire.encode_varint(len(filling))
    message = b"\xfa\x01" + size + filling + b"\x18" + number
    return len(message).to_bytes(4, "little") + message + bytes(10) + b"\2\0LANC"


class Side(ABC):
    name: str
    label: str

    @abstractmethod
    def serves(self, operation: str) -> bool: ...

    @abstractmethod
    def _run(self, operation: str, connections: int, seconds: int) -> Run: ...

    @abstractmethod
    def roots(self) -> list[int]:
        """The processes whose time counts, each with its descendants."""

    def measure(self, operation: str, *, connections: int, seconds: int) -> Sample:
        roots = self.roots()
        before = processes.cpu_seconds(roots)
        try:
            run = self._run(operation, connections, seconds)
        except BadAnswers as error:
            raise BadAnswers(f"{self.label}: {error}") from error
        used = processes.cpu_seconds(roots) - before
        per_request = 10 if operation == "batch" else 1
        return Sample(
            run.requests * per_request / run.seconds,
            run.p50_ms,
            run.p99_ms,
            used / run.requests * 1e6,
        )


class _Server(Side):
    """A server that speaks the Lance protocol."""

    def __init__(self, port: int, size: Size, scratch: Path) -> None:
        self._port = port
        self._size = size
        self._scratch = scratch
        self._staging: list[Staging] = []
        self._numbers = itertools.count(1)
        self._first_number = FIRST_RECORDED * size.all_tables

    def _run(self, operation: str, connections: int, seconds: int) -> Run:
        facts: dict[str, Any] = {
            "port": self._port,
            "connections": connections,
            "seconds": seconds,
            "namespaces": self._size.namespaces,
            "tables": self._size.tables,
            "seed": next(_seeds),
            "base": self._first_number + next(self._numbers) * NUMBERS_PER_RUN,
        }
        if operation != "create":
            return wrk.run(operation, **facts)
        staged = self._stage(seconds * STAGED_PER_SECOND)
        try:
            return wrk.run(operation, **facts, requests=self._scratch)
        finally:
            time.sleep(0.3)  # for what wrk no longer waited for
            for path in staged:
                path.unlink(missing_ok=True)

    def _stage(self, count: int) -> list[Path]:
        """Write manifests as a Lance writer would and the requests that commit them."""
        staged = []
        rounds = -(-count // len(self._staging))
        with self._scratch.open("w") as requests:
            for number in range(rounds):
                for table in self._staging:
                    version = self._first_version(table) if number == 0 else table.next_version
                    table.next_version = version + 1
                    final = f"{2**64 - 1 - version:020d}.manifest"
                    path = table.location / "_versions" / f"{final}-{os.urandom(16).hex()}"
                    path.write_bytes(manifest(version))
                    staged.append(path)
                    body = {
                        "version": version,
                        "manifest_path": str(path).lstrip("/"),
                        "manifest_size": path.stat().st_size,
                        "naming_scheme": "V2",
                    }
                    requests.write(f"{table.path}\t{json.dumps(body)}\n")
        return staged

    def _first_version(self, table: Staging) -> int:
        return table.next_version

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Raises BadAnswers for anything but 200."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/{path}",
            data=json.dumps({} if body is None else body).encode() if method == "POST" else None,
            headers={"Content-Type": "application/json", "x-api-key": API_KEY},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise BadAnswers(f"{self.label}: {path}: {error.code} {error.read()!r}") from error
        return json.loads(content) if content else None

    def check(self) -> None:
        """Check that the answers are those to be measured. Raises BadAnswers."""
        table = self._size.tables - 1
        description = self.call("POST", f"table/ns0000%24t{table:04d}/describe")
        listed = self.call("GET", "namespace/ns0000/table/list?limit=100")["tables"]
        path = f"table/ns0000%24t{table:04d}/version/list?limit=1&descending=true"
        latest = self.call("POST", path)["versions"]
        self.call("POST", f"table/ns0000%24t{table:04d}/exists")
        if not description["location"] or len(listed) != 100 or len(latest) != 1:
            raise BadAnswers(f"{self.label} lacks content: {description} {listed} {latest}")
        if latest[0]["version"] != self._size.versions:
            raise BadAnswers(f"{self.label}: latest is {latest}")
        path = f"table/ns0000%24t{table:04d}/version/list?limit=100"
        if len(self.call("POST", path)["versions"]) != min(100, self._size.versions):
            raise BadAnswers(f"{self.label} lists other versions")


class Monodon(_Server):
    name, label = "monodon", "Monodon"

    def __init__(self, port: int, size: Size, scratch: Path, web: int, database: int) -> None:
        super().__init__(port, size, scratch)
        self._web, self._database = web, database

    def stage_in(self, url: str, namespace: str) -> None:
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                "SELECT t.name, t.location FROM catalog_table t JOIN catalog_namespace n "
                "ON n.id = t.namespace_id WHERE n.name = %s ORDER BY t.id",
                [namespace],
            ).fetchall()
        for name, location in rows:
            (Path(location) / "_versions").mkdir(parents=True)
            path = f"/v1/table/{namespace}%24{name}/version/create?delimiter=%24"
            self._staging.append(Staging(path, Path(location), self._size.versions + 1))

    def serves(self, operation: str) -> bool:
        return True

    def roots(self) -> list[int]:
        return [self._web, self._database]


class Reference(_Server):
    """Lance's own server over a directory: one namespace to read from, one to write to."""

    name, label = "reference", "RestAdapter"

    def __init__(self, port: int, size: Size, scratch: Path, pid: int) -> None:
        super().__init__(port, size, scratch)
        self._pid = pid

    def fill(self) -> None:
        for namespace in ("ns0000", "ns0001"):
            self.call("POST", f"namespace/{namespace}/create", {"id": [namespace]})
            for number in range(self._size.tables):
                name = f"t{number:04d}"
                path = f"table/{namespace}%24{name}"
                declared = self.call("POST", f"{path}/declare", {"id": [namespace, name]})
                location = Path(unquote(urlsplit(declared["location"]).path))
                versions = location / "_versions"
                versions.mkdir(parents=True)
                for version in range(1, self._size.versions + 1):
                    (versions / f"{2**64 - 1 - version:020d}.manifest").write_bytes(
                        manifest(version)
                    )
                if namespace == "ns0001":
                    create = f"/v1/{path}/version/create?delimiter=%24"
                    self._staging.append(Staging(create, location, self._size.versions + 1))

    def _first_version(self, table: Staging) -> int:
        """The server accepts only the next number, so continue after the last accepted one."""
        finals = (table.location / "_versions").glob("*.manifest")
        return 2**64 - min(int(path.stem) for path in finals)

    def serves(self, operation: str) -> bool:
        return operation in {"describe", "exists", "list", "latest", "versions", "create"}

    def roots(self) -> list[int]:
        return [self._pid]


class PostgreSQL(Side):
    """pgbench with the equivalent statements, parsed each time (its default) or prepared."""

    def __init__(self, stack: Stack, url: str, protocol: str) -> None:
        self.name = f"pgbench-{protocol}"
        self.label = f"pgbench, {protocol}"
        self._protocol = protocol
        self._stack = stack
        with psycopg.connect(url) as connection:
            connection.execute(pgbench.PREPARE)
            row = connection.execute("SELECT min(id), max(id) FROM catalog_table").fetchone()
        assert row is not None
        self._tables = (row[0], row[1])

    def serves(self, operation: str) -> bool:
        return operation in {"describe", "exists", "record"}

    def _run(self, operation: str, connections: int, seconds: int) -> Run:
        return pgbench.run(
            self._script(operation),
            postgres=self._stack.postgres,
            protocol=self._protocol,
            connections=connections,
            seconds=seconds,
            tables=self._tables,
        )

    def _script(self, operation: str) -> str:
        return "create" if operation == "record" else "select"

    def roots(self) -> list[int]:
        return [self._stack.postgres_pid]
