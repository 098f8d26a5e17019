"""Clients that send one operation of either protocol at a time, over plain HTTP."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.harness.history import OK, History
from tests.chaos.harness.iceberg_client import IcebergClient
from tests.chaos.harness.lance_client import LanceClient
from tests.chaos.harness.spaces import ICEBERG_NAMES, LANCE_NAMES, Belief, Space, Spaces
from tests.chaos.harness.transport import Connection, NotSent

Step = dict[str, Any]
_FEW = 4
"""Number of tables of a namespace. A history with many reads of missing tables proves little."""


class Client(LanceClient, IcebergClient):
    """Sends random, weighted operations of both protocols on names that other clients use too."""

    def __init__(
        self, number: int, connection: Connection, spaces: Spaces, history: History, seed: int
    ) -> None:
        super().__init__(number, connection, history, seed)
        self._spaces = spaces
        self._kinds: list[tuple[Callable[[Space], None], float]] = [
            (self._describe, 16),
            (self._latest, 16),
            (self._list, 10),
            (self._load, 20),
            (self._names, 10),
            (self._add, 7),
            (self._add_together, 2.5),
            (self._batch, 3),
            (self._delete, 0.8),
            (self._declare, 1.5),
            (self._replace, 0.8),
            (self._rename, 1),
            (self._drop, 0.8),
            (self._undrop, 1.2),
            (self._drop_namespace, 0.1),
            (self._create_iceberg, 1.2),
            (self._commit, 6),
            (self._set_property, 1.5),
            (self._commit_together, 1.5),
        ]

    def run(self, stop: threading.Event, pace: float = 0.0) -> None:
        """Send operations until stopped, ``pace`` seconds apart."""
        while not stop.is_set():
            space, is_new = self._spaces.choose(self._dice)
            try:
                if is_new:
                    self._create_namespace(space)
                if not space.is_ready:
                    time.sleep(0.01)
                    continue
                self._choose(space)(space)
            except NotSent:
                time.sleep(0.1)
            finally:
                self._spaces.release(space)
            if pace:
                time.sleep(pace)
        self._connection.close()

    def _choose(self, space: Space) -> Callable[[Space], None]:
        if len(space.tables) < _FEW and self._dice.random() < 0.3:
            return self._dice.choice((self._declare, self._create_iceberg))
        functions, weights = zip(*self._kinds, strict=True)
        return self._dice.choices(functions, weights)[0]

    def _create_namespace(self, space: Space) -> None:
        """Create the namespace, with retries: without it there is no history to judge."""
        path = f"/v1/namespace/{space.name}/create"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            operation = self._operation(space, "create namespace")
            with contextlib.suppress(NotSent):
                self._connection.send(operation, "POST", path, {"mode": "ExistOk"})
            if operation.outcome == OK:
                space.is_ready = True
                return
            time.sleep(0.2)
        self._spaces.replace(space)

    # -- names and the trash

    def _rename(self, space: Space) -> None:
        kind = self._dice.choice(("lance", "iceberg"))
        names = LANCE_NAMES if kind == "lance" else ICEBERG_NAMES
        old, new = space.present(names, self._dice), space.absent(names, self._dice)
        if old == new:
            return
        operation = self._operation(space, "write", format=kind)
        operation.steps = [{"do": "rename", "name": old, "new": new, "format": kind}]
        if kind == "lance":
            path = f"/v1/table/{space.name}${old}/rename"
            body: dict[str, Any] = {"new_table_name": new, "new_namespace_id": [space.name]}
        else:
            path = "/v1/tables/rename"
            body = {
                "source": {"namespace": [space.name], "name": old},
                "destination": {"namespace": [space.name], "name": new},
            }
        if self._write(operation, "POST", path, body) and (moved := space.tables.pop(old, None)):
            space.tables[new] = moved

    def _drop(self, space: Space) -> None:
        kind = self._dice.choice(("lance", "iceberg"))
        operation = self._operation(space, "write", format=kind)
        if kind == "lance":
            name = space.present(LANCE_NAMES, self._dice)
            arguments = ("POST", f"/v1/table/{space.name}${name}/drop")
        else:
            name = space.present(ICEBERG_NAMES, self._dice)
            arguments = ("DELETE", f"/v1/namespaces/{space.name}/tables/{name}")
        operation.steps = [{"do": "drop", "name": name, "format": kind}]
        if self._write(operation, *arguments):
            space.tables.pop(name, None)

    def _undrop(self, space: Space) -> None:
        listing = self._operation(space, "trash")
        path = f"/management/v1/trash?namespace={space.name}&limit=20"
        items = self._connection.send(listing, "GET", path).get("items", [])
        if not items:
            return
        item = self._dice.choice(items)
        operation = self._operation(space, "write")
        if item["kind"] == "namespace":
            operation.kind = "undrop namespace"
            operation.steps = [{"do": "undrop namespace", "item": item["id"]}]
        else:
            operation.steps = [
                {
                    "do": "undrop",
                    "name": item["name"][-1],
                    "id": (item["location"] or "").removeprefix("file://"),
                    "item": item["id"],
                }
            ]
        if self._write(operation, "POST", f"/management/v1/trash/{item['id']}/undrop", {}):
            for step in operation.steps:
                if step["do"] == "undrop":
                    space.tables[step["name"]] = Belief(step["id"])

    def _drop_namespace(self, space: Space) -> None:
        """Drop the namespace with all its tables of both formats at once, and restore it."""
        operation = self._operation(space, "write")
        operation.steps = [{"do": "drop namespace"}]
        path = f"/v1/namespace/{space.name}/drop"
        self._write(operation, "POST", path, {"behavior": "Cascade"})
        self._undrop_namespace(space)

    def _undrop_namespace(self, space: Space) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            listing = self._operation(space, "trash")
            path = f"/management/v1/trash?namespace={space.name}&limit=50"
            try:
                items = self._connection.send(listing, "GET", path).get("items", [])
                dropped = [item for item in items if item["kind"] == "namespace"]
                if listing.outcome == OK and not dropped:
                    return
                if dropped:
                    operation = self._operation(space, "undrop namespace")
                    operation.steps = [{"do": "undrop namespace", "item": dropped[0]["id"]}]
                    number = dropped[0]["id"]
                    if self._write(operation, "POST", f"/management/v1/trash/{number}/undrop", {}):
                        return
            except NotSent:
                pass
            time.sleep(0.1)
