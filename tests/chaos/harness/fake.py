"""An in-memory catalog with switchable bugs, which proves that the judges detect them.

It serves simulated clients whose operations overlap. Without a bug each operation takes effect at one
moment between its call and its return, so its history is correct by construction.
"""

import copy
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.harness.history import FAIL, OK, Operation
from tests.chaos.harness.ledger import AuditRow, Ledger, VersionRow

BUGS = (
    "lost acknowledgement",
    "double winner",
    "stale read",
    "half batch",
    "torn batch",
    "resurrected drop",
    "false failure",
    "event of an uncommitted change",
    "missing event",
    "events out of order",
    "reordered commit",
    "non-monotonic read",
    "tombstone reuse",
    "lost update",
    "done twice",
    "version without a trail",
    "phantom of an unknown outcome",
    "internal error",
)
_ACTIONS = {"add": "version.create", "create": "table.create", "commit": "table.commit"}
Reply = dict[str, Any]


class _Refused(Exception):
    pass


@dataclass
class _Table:
    location: str
    format: str
    uuid: str
    versions: dict[int, str] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    snapshot: str = ""
    sequence: int = 0
    metadata: int = 0

    @property
    def live(self) -> list[tuple[int, str]]:
        return sorted((n, v) for n, v in self.versions.items() if n not in self.deleted)


@dataclass
class _World:
    tables: dict[str, _Table] = field(default_factory=dict)
    trash: list[tuple[int, str, _Table]] = field(default_factory=list)


class FakeCatalog:
    """``bug`` is one of BUGS, or empty. It affects some of the operations to which it applies."""

    def __init__(self, seed: int, bug: str = "", *, clients: int = 5, length: int = 400) -> None:
        self.dice = random.Random(seed)
        self.bug = bug
        self.ledger = Ledger()
        self.events: list[AuditRow] = []
        self.history: list[Operation] = []
        self._world = _World()
        self._past: list[_World] = []
        self._transactions = itertools.count(1)
        self._rows = itertools.count(1)
        self._numbers = itertools.count(1)
        self._items = itertools.count(1)
        self._struck = 0
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._simulate(clients, length)
        self._finish()

    # -- the clients

    def _simulate(self, clients: int, length: int) -> None:
        busy = dict.fromkeys(range(clients), 0)
        for _ in range(length):
            client = min(busy, key=busy.__getitem__)
            now = busy[client]
            self._run_until(now)
            operation = self._invent(client)
            operation.call = now + 1
            moment = now + self.dice.randint(2, 30)
            operation.returned = moment + self.dice.randint(1, 30)
            busy[client] = operation.returned + self.dice.randint(1, 5)
            self._at(moment, lambda op=operation: self._serve(op))
        self._run_until(max(busy.values()) + 1000)
        end = max(busy.values()) + 2000
        for step, kind in enumerate(("list", "names", "load") * 4):
            operation = self._operation(clients, kind)
            operation.name = "abxy"[step % 2 + (2 if kind == "load" else 0)]
            operation.format = "iceberg" if kind == "load" else "lance"
            operation.call, operation.returned = end + 10 * step, end + 10 * step + 5
            self._serve(operation)

    def _at(self, moment: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (moment, next(self._numbers), action))

    def _run_until(self, moment: int) -> None:
        while self._later and self._later[0][0] <= moment:
            heapq.heappop(self._later)[2]()

    def _operation(self, client: int, kind: str) -> Operation:
        return Operation(f"c{client}-{next(self._numbers)}", client, "s", kind)

    def _invent(self, client: int) -> Operation:
        dice = self.dice
        kind = dice.choices(
            ("describe", "latest", "list", "names", "load", "write"), (8, 12, 6, 8, 14, 52)
        )[0]
        operation = self._operation(client, kind)
        operation.format = "iceberg" if kind == "load" else "lance"
        operation.name = dice.choice("xy" if kind == "load" else "ab")
        if kind == "describe":
            operation.version = dice.randint(1, 12)
        if kind == "write":
            operation.steps = self._steps(operation.id)
        return operation

    def _steps(self, identity: str) -> list[dict[str, Any]]:
        dice = self.dice
        do = dice.choices(
            ("create", "add", "batch", "delete", "commit", "drop", "undrop", "rename"),
            (10, 30, 14, 8, 36, 4, 6, 2),
        )[0]
        name = dice.choice("ab")
        match do:
            case "create":
                kind = dice.choice(("lance", "iceberg"))
                name = dice.choice("ab" if kind == "lance" else "xy")
                return [{"do": do, "name": name, "format": kind, "id": f"/w/{identity}"}]
            case "add" | "batch":
                names = [name] if do == "add" else ["a", "b"]
                return [
                    {"do": "add", "name": n, "version": self._next(n), "value": f"{identity}-{i}"}
                    for i, n in enumerate(names)
                ]
            case "delete":
                start = max(1, self._next(name) - dice.randint(1, 6))
                return [{"do": do, "name": name, "version": start, "end": start + 2}]
            case "commit":
                name = dice.choice("xy")
                table = self._world.tables.get(name)
                expected = table.snapshot if table and dice.random() < 0.9 else "7"
                return [{"do": do, "name": name, "expected": expected, "snapshot": identity}]
            case "rename":
                new = "b" if name == "a" else "a"
                return [{"do": do, "name": name, "new": new, "format": "lance"}]
            case "drop":
                return [{"do": do, "name": dice.choice("abxy"), "format": ""}]
            case _:
                if not self._world.trash:
                    return [{"do": "undrop", "name": name, "id": "/w/none", "item": 0}]
                item, name, table = dice.choice(self._world.trash)
                return [{"do": do, "name": name, "id": table.location, "item": item}]

    def _next(self, name: str) -> int:
        table = self._world.tables.get(name)
        return max(table.versions, default=0) + 1 if table else 1

    # -- the server

    def _serve(self, operation: Operation) -> None:
        self._past.append(copy.deepcopy(self._world))
        operation.outcome, operation.status = OK, 200
        try:
            if operation.steps:
                operation.output = self._write(operation)
            else:
                operation.output = self._read(operation)
        except _Refused as refusal:
            operation.outcome, operation.status = FAIL, 409
            operation.output = {"error": str(refusal)}
        self.history.append(operation)

    def _strikes(self, bug: str, *, of: float = 0.3) -> bool:
        """True if the bug appears now; some operations succeed and some show it."""
        if self.bug != bug or len(self.history) < 60 or self.dice.random() > of:
            return False
        self._struck += 1
        return True

    def _read(self, operation: Operation) -> Reply:
        world = self._world
        if operation.format == "lance" and self._strikes("stale read"):
            world = self._past[-40]
        if operation.kind == "load" and self._strikes("non-monotonic read", of=0.5):
            world = self._past[-50]
        if self._strikes("internal error", of=0.02):
            operation.outcome, operation.status = "unknown", 500
            return {}
        if operation.kind == "names":
            names = {n for n, t in world.tables.items() if t.format == operation.format}
            if self._strikes("resurrected drop", of=1.0):
                names |= {n for _, n, t in world.trash if t.format == operation.format}
            return {"names": sorted(names)}
        table = world.tables.get(operation.name)
        if table is None or table.format != operation.format:
            raise _Refused("missing")
        live = table.live
        match operation.kind:
            case "describe":
                value = dict(live).get(operation.version)
                if value is None:
                    raise _Refused("no version")
                return {"version": operation.version, "value": value}
            case "latest":
                version, value = live[-1] if live else (0, "")
                return {"version": version, "value": value}
            case "list":
                return {"versions": [{"version": n, "value": v} for n, v in live]}
            case _:
                return {
                    "location": table.location,
                    "snapshot": table.snapshot,
                    "property": "",
                    "sequence": table.sequence,
                }

    def _write(self, operation: Operation) -> Reply:
        before = copy.deepcopy(self._world)
        steps = operation.steps
        is_batch = len(steps) > 1
        try:
            reply = self._apply(steps)
        except _Refused:
            self._world = before
            raise
        if self._strikes("lost acknowledgement"):
            self._world = before
            return reply
        if is_batch and self._strikes("half batch"):
            self._world = before
            steps = steps[:1]
            self._apply(steps)
        if is_batch and self._strikes("torn batch", of=1.0):
            # The second table of the batch is committed only after a client has read.
            self._tear(before, steps)
        self._record(operation, steps)
        if self._strikes("false failure", of=0.1):
            raise _Refused("unavailable")
        if self._strikes("done twice", of=0.1):
            self._record(operation, [])
        if self._strikes("phantom of an unknown outcome", of=0.1):
            # The client does not learn the outcome; readers see the commit before it disappears.
            operation.outcome, operation.returned, operation.status = "unknown", 0, 0
            self.ledger.transactions.pop()
        return reply

    def _tear(self, before: _World, steps: list[dict[str, Any]]) -> None:
        late = steps[1]
        table, old = self._world.tables[late["name"]], before.tables[late["name"]]
        if old.location != table.location:
            return
        moved = table.versions.pop(late["version"])

        def follow() -> None:
            table.versions[late["version"]] = moved

        now = self.history[-1].returned
        for name in (steps[0]["name"], late["name"]):
            probe = self._operation(99, "latest")
            probe.format, probe.name = "lance", name
            probe.call, probe.returned = now + 200, now + 201
            now += 10
            probe.outcome, probe.status = OK, 200
            try:
                probe.output = self._read(probe)
            except _Refused:
                return
            self.history.append(probe)
        follow()

    def _apply(self, steps: list[dict[str, Any]]) -> Reply:
        reply: Reply = {}
        for step in steps:
            reply |= getattr(self, f"_{step['do']}")(step, self._world.tables.get(step["name"]))
        return reply

    def _create(self, step: dict[str, Any], table: _Table | None) -> Reply:
        if table is not None:
            raise _Refused("exists")
        uuid = f"uuid-{next(self._numbers)}"
        self._world.tables[step["name"]] = _Table(step["id"], step["format"], uuid)
        return {}

    def _lance(self, table: _Table | None) -> _Table:
        if table is None or table.format != "lance":
            raise _Refused("missing")
        return table

    def _add(self, step: dict[str, Any], table: _Table | None) -> Reply:
        table = self._lance(table)
        number = step["version"]
        reused = number in table.deleted and self.bug == "tombstone reuse"
        if number in table.versions and not reused and not self._strikes("double winner", of=1.0):
            raise _Refused("conflict")
        table.versions[number] = step["value"]
        table.deleted.discard(number)
        return {}

    def _delete(self, step: dict[str, Any], table: _Table | None) -> Reply:
        table = self._lance(table)
        chosen = [n for n, _ in table.live if step["version"] <= n < step["end"]]
        table.deleted |= set(chosen)
        if self.bug == "tombstone reuse":
            for number in chosen:  # the row is deleted, so the number is no longer in use
                table.deleted.discard(number)
                del table.versions[number]
        return {"count": len(chosen)}

    def _commit(self, step: dict[str, Any], table: _Table | None) -> Reply:
        if table is None or table.format != "iceberg":
            raise _Refused("missing")
        if table.snapshot != step["expected"] and not self._strikes("lost update", of=0.5):
            raise _Refused("conflict")
        table.snapshot, table.sequence = step["snapshot"], table.sequence + 1
        table.metadata += 1
        return {}

    def _drop(self, step: dict[str, Any], table: _Table | None) -> Reply:
        if table is None:
            raise _Refused("missing")
        self._world.trash.append((next(self._items), step["name"], table))
        del self._world.tables[step["name"]]
        return {}

    def _undrop(self, step: dict[str, Any], table: _Table | None) -> Reply:
        items = [item for item in self._world.trash if item[0] == step["item"]]
        if not items:
            raise _Refused("missing")
        if table is not None:
            raise _Refused("exists")
        self._world.trash.remove(items[0])
        self._world.tables[step["name"]] = items[0][2]
        return {}

    def _rename(self, step: dict[str, Any], table: _Table | None) -> Reply:
        table = self._lance(table)
        if step["new"] in self._world.tables:
            raise _Refused("exists")
        self._world.tables[step["new"]] = self._world.tables.pop(step["name"])
        return {}

    # -- rows and events

    def _record(self, operation: Operation, steps: list[dict[str, Any]]) -> None:
        number = next(self._transactions)
        transaction = f"transaction-{number}"
        self.ledger.transactions.append((transaction, operation.id))
        for step in steps:
            table = self._world.tables.get(step.get("new") or step["name"])
            uuid = table.uuid if table else ""
            action = _ACTIONS.get(step["do"], f"table.{step['do']}")
            if step["do"] == "create" and step["format"] == "lance":
                action = "table.declare"
            elif step["do"] in _ACTIONS and table:
                version = table.metadata if table.format == "iceberg" else step["version"]
                value = step.get("value", "")
                row = VersionRow(uuid, version, transaction, value, table.format)
                self.ledger.versions.append(row)
            if step["do"] == "add" and self._strikes("version without a trail", of=0.1):
                continue
            identity = f"{number}-{next(self._rows)}"
            self.ledger.audit.append(AuditRow(identity, action, transaction, operation.id, uuid))

    def _finish(self) -> None:
        """The events that a follower received, with the bugs of the outbox."""
        self.events = list(self.ledger.audit)
        at = self.dice.randrange(20, len(self.events) - 20)
        match self.bug:
            case "event of an uncommitted change":
                ghost = AuditRow("99999-99999", "version.create", "gone", "c1-9", "uuid-1")
                self.events.append(ghost)
            case "missing event":
                del self.events[at]
            case "events out of order":
                self.events[at], self.events[at + 1] = self.events[at + 1], self.events[at]
            case "reordered commit":
                self._reorder()
            case _:
                return
        self._struck += 1

    def _reorder(self) -> None:
        """Swap the events of two commits of an Iceberg table."""
        audit = self.ledger.audit
        places = [i for i, row in enumerate(audit) if row.action == "table.commit"]
        first, second = next(
            (i, j) for i, j in itertools.combinations(places, 2) if audit[i].table == audit[j].table
        )
        first_row, two = audit[first], audit[second]
        audit[first] = AuditRow(first_row.id, two.action, two.transaction, two.request, two.table)
        audit[second] = AuditRow(
            two.id, first_row.action, first_row.transaction, first_row.request, first_row.table
        )
        self.events = list(audit)

    @property
    def struck(self) -> int:
        """Number of times the bug appeared."""
        return self._struck
