"""A storm: many threads send mixed, conflicting commits, and store the answers.

Every batch writes its id to the metadata of its versions, the properties of its tables and, as the request
id, to the transaction and the audit rows. So the database can be compared with the answers.
"""

import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Self

from tests import factories
from tests.live import LiveServer, Lost

THREADS = 32
ROOT = "storm"
SPACES = (("n0",), ("n1",), ("n2",), ("n2", "below"))
TABLES = tuple((ROOT, *space, f"t{n}") for space in SPACES for n in range(5))
KEPT = TABLES[0:3:2]
"""Tables that are never dropped, renamed or replaced, so that every storm ends with versions to read."""

Table = tuple[str, ...]


class Outcome(Enum):
    COMMITTED = "committed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass
class Step:
    """One operation of a batch."""

    kind: str
    table: Table
    version: int = 0
    branch: str = ""
    path: str = ""
    """The manifest's, as sent."""
    location: str = ""
    """Location of a table that this batch declares; empty if the server chooses it."""


@dataclass
class Request:
    """A request and its outcome."""

    id: str
    route: str
    body: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN
    status: int = 0
    answer: dict[str, Any] = field(default_factory=dict)

    def indexes(self, kind: str) -> set[int]:
        return {index for index, step in enumerate(self.steps) if step.kind == kind}


class Storm:
    """`with_files`: every version comes with a manifest staged in its table, as Lance writers do."""

    def __init__(self, server: LiveServer, seed: int, *, with_files: bool) -> None:
        self.server = server
        self.requests: list[Request] = []
        self._with_files = with_files
        self._seed = seed
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        self._next_version: dict[tuple[Table, str], int] = {}
        self._locations: dict[Table, str] = {}
        self._present: dict[Table, bool] = dict.fromkeys(TABLES, False)
        """The presumed state; it may be stale, and one request in ten contradicts it."""
        self.committed = 0
        self._prepare()

    def _prepare(self) -> None:
        for space in ((), *SPACES):
            path = "$".join((ROOT, *space))
            status, answer = self.server.post(f"/v1/namespace/{path}/create")
            assert status == 200, answer
        for table in TABLES[::2]:
            status, answer = self.server.post(f"/v1/table/{'$'.join(table)}/declare")
            assert status == 200, answer
            self._locations[table] = answer["location"]
            self._present[table] = True

    # -- execution

    def run(self, requests_each: int) -> None:
        """Wait until every thread has sent this many requests."""
        with ThreadPoolExecutor(THREADS) as pool:
            threads = [pool.submit(self._work, n, requests_each) for n in range(THREADS)]
        for thread in threads:
            thread.result()

    def __enter__(self) -> Self:
        """Run in the background until the end of the block."""
        self._pool = ThreadPoolExecutor(THREADS)
        self._threads = [self._pool.submit(self._work, n, None) for n in range(THREADS)]
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        for thread in self._threads:
            thread.result()

    def _work(self, number: int, limit: int | None) -> None:
        dice = random.Random(f"{self._seed} {number}")
        turns: Iterator[int] = itertools.count() if limit is None else iter(range(limit))
        for _ in turns:
            if self._stop.is_set():
                return
            request = self._invent(dice)
            self.requests.append(request)
            try:
                request.status, request.answer = self.server.post(
                    request.route, request.body, request_id=request.id
                )
            except Lost:
                self._await_server()
                continue
            good = request.status == 200
            request.outcome = Outcome.COMMITTED if good else Outcome.REFUSED
            self._learn(request, dice)

    def _await_server(self) -> None:
        while not self._stop.is_set():
            try:
                socket.create_connection(("127.0.0.1", self.server.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return

    def _learn(self, request: Request, dice: random.Random) -> None:
        """Continue from the existing versions, and look up the locations of new tables."""
        for step in request.steps:
            if step.kind == "create":
                key = step.table, step.branch
                version = self._next_version.get(key, 1)
                self._next_version[key] = max(version, step.version + 1)
        if request.outcome is Outcome.REFUSED:
            return
        self.committed += 1
        for step in request.steps:
            if step.kind in {"declare", "deregister", "rename", "drop"}:
                self._present[step.table] = step.kind == "declare"
            if step.kind == "declare" and self._with_files:
                path = f"/v1/table/{'$'.join(step.table)}/describe"
                try:
                    status, answer = self.server.post(path)
                except Lost:
                    return
                if status == 200:
                    self._locations[step.table] = answer["location"]

    def _pick(self, dice: random.Random, *, present: bool, removes: bool = False) -> Table:
        """`removes`: whether the request ends the table's life under its name."""
        is_present = present if dice.random() < 0.9 else not present
        tables = [table for table in TABLES if not (removes and table in KEPT)]
        return dice.choice([t for t in tables if self._present[t] is is_present] or tables)

    # -- requests

    def _invent(self, dice: random.Random) -> Request:
        name = f"storm-{next(self._numbers)}"
        kind = dice.choices(
            ("batch", "versions", "version", "rename", "drop", "space", "cascade"),
            (60, 12, 12, 7, 3, 5, 1),
        )[0]
        match kind:
            case "batch":
                return self._batch(name, dice)
            case "versions":
                steps = self._creates(dice, dice.randint(2, 4))
                entries = [self._version_body(name, i, step) for i, step in enumerate(steps)]
                route, body = "/v1/table/version/batch-create", {"entries": entries}
                return Request(name, route, body, steps)
            case "version":
                steps = self._creates(dice, 1)
                route = f"/v1/table/{'$'.join(steps[0].table)}/version/create"
                return Request(name, route, self._version_body(name, 0, steps[0]), steps)
            case "rename":
                old = self._pick(dice, present=True, removes=True)
                new = self._pick(dice, present=False)
                body = {"new_table_name": new[-1], "new_namespace_id": list(new[:-1])}
                steps = [Step("rename", old)]
                return Request(name, f"/v1/table/{'$'.join(old)}/rename", body, steps)
            case "drop":
                table = self._pick(dice, present=True, removes=True)
                steps = [Step("drop", table)]
                return Request(name, f"/v1/table/{'$'.join(table)}/drop", {}, steps)
            case "space":
                space = (ROOT, *dice.choice(SPACES))
                body = {"mode": dice.choice(("Create", "ExistOk"))}
                return Request(name, f"/v1/namespace/{'$'.join(space)}/create", body)
            case _:
                space = (ROOT, *dice.choice(SPACES[1:]))
                body = {"behavior": dice.choice(("Restrict", "Cascade", "Cascade"))}
                return Request(name, f"/v1/namespace/{'$'.join(space)}/drop", body)

    def _batch(self, name: str, dice: random.Random) -> Request:
        """One to four changes of tables in any order, each with one or several operations."""
        steps: list[Step] = []
        for _ in range(dice.randint(1, 4)):
            kind = dice.choices(("create", "new", "replace", "delete"), (60, 15, 10, 15))[0]
            table = self._pick(dice, present=kind != "new", removes=kind == "replace")
            match kind:
                case "create":
                    steps += self._creates(dice, 1)
                case "new":
                    steps += self._new(table)
                case "replace":
                    steps += [Step("deregister", table), *self._new(table)]
                case _:
                    steps.append(Step("delete", table, version=dice.randint(1, 30)))
        _make_distinct(steps)
        for index, (step, following) in enumerate(itertools.pairwise(steps)):
            if step.kind == "declare" and dice.random() < 0.5:
                step.location = following.location = str(self.server.warehouse / f"{name}-{index}")
        operations = [self._operation(name, index, step) for index, step in enumerate(steps)]
        return Request(name, "/v1/table/batch-commit", {"operations": operations}, steps)

    def _new(self, table: Table) -> list[Step]:
        """A declaration, with its first version."""
        return [Step("declare", table), Step("create", table, version=1)]

    def _creates(self, dice: random.Random, count: int) -> list[Step]:
        steps = []
        for _ in range(count):
            table = self._pick(dice, present=True)
            branch = dice.choices(("", "dev"), (4, 1))[0]
            version = self._next_version.get((table, branch), 1)
            if dice.random() < 0.7:  # otherwise another thread uses the same number
                self._next_version[table, branch] = version + 1
            steps.append(Step("create", table, version, branch))
        _make_distinct(steps)
        return steps

    def _operation(self, name: str, index: int, step: Step) -> dict[str, Any]:
        table = list(step.table)
        match step.kind:
            case "declare":
                properties = {"batch": name, "index": str(index)}
                chosen = {"location": step.location} if step.location else {}
                return {"declare_table": {"id": table, "properties": properties} | chosen}
            case "create":
                return {"create_table_version": self._version_body(name, index, step)}
            case "delete":
                end = step.version + 3
                ranges = [{"start_version": step.version, "end_version": end}]
                return {"delete_table_versions": {"id": table, "ranges": ranges}}
            case _:
                return {"deregister_table": {"id": table}}

    def _version_body(self, name: str, index: int, step: Step) -> dict[str, Any]:
        content = manifest(name, index, step)
        step.path = f"elsewhere/{name}/{index}.manifest"
        if self._with_files:
            location = self._locations.get(step.table, str(self.server.warehouse / "nowhere"))
            step.path = self._stage(step.location or location, name, index, step)
        body = {
            "id": list(step.table),
            "version": step.version,
            "manifest_path": step.path,
            "manifest_size": len(content),
            "metadata": {"batch": name, "index": str(index)},
            "naming_scheme": "V2",
        }
        return body | ({"branch": step.branch} if step.branch else {})

    def _stage(self, location: str, name: str, index: int, step: Step) -> str:
        below = f"tree/{step.branch}/_versions" if step.branch else "_versions"
        file = f"{2**64 - 1 - step.version:020d}.manifest-{name}-{index}"
        path = Path(location) / below / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(manifest(name, index, step))
        return str(path).lstrip("/")


def mark(name: str, index: int) -> bytes:
    """Content of a storm's manifest file, which identifies its request."""
    return json.dumps({"batch": name, "index": index}).encode()


def manifest(name: str, index: int, step: Step) -> bytes:
    return factories.manifest(step.version, step.branch, mark(name, index))


def _make_distinct(steps: Sequence[Step]) -> None:
    """Give further versions of a table in one batch the next numbers, so that they do not conflict."""
    taken: set[tuple[Table, str, int]] = set()
    for step in steps:
        if step.kind == "deregister":
            taken = {key for key in taken if key[0] != step.table}
        if step.kind == "create":
            while (step.table, step.branch, step.version) in taken:
                step.version += 1
            taken.add((step.table, step.branch, step.version))
