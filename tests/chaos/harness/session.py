"""A client's session with the catalog, which sends one operation at a time."""

import itertools
import random
import time
from typing import Any

from tests.chaos.harness.history import OK, UNKNOWN, History, Operation
from tests.chaos.harness.spaces import ICEBERG_NAMES, LANCE_NAMES, Belief, Space
from tests.chaos.harness.transport import Connection


class Session:
    """One process of the history: it waits for each answer before it sends the next operation."""

    def __init__(self, number: int, connection: Connection, history: History, seed: int) -> None:
        self.number = number
        self._connection = connection
        self._history = history
        self._dice = random.Random(f"{seed} {number}")
        self._count = itertools.count(1)

    def close(self) -> None:
        self._connection.close()

    # -- sending

    def _operation(self, space: Space, kind: str, **fields: Any) -> Operation:
        identity = f"c{self.number}-{next(self._count)}"
        return Operation(identity, self.number, space.name, kind, **fields)

    def _send(
        self, operation: Operation, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self._history.begin(operation)
        answer = self._connection.send(operation, method, path, body)
        if operation.outcome == UNKNOWN or operation.output.get("error") == "unavailable":
            # The server may be unreachable and need time to recover.
            time.sleep(self._dice.uniform(0.1, 0.5))
        return answer

    def _lance(
        self, operation: Operation, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return self._send(operation, "POST", f"/v1/{path}", body)

    def _write(
        self, operation: Operation, method: str, path: str, body: dict[str, Any] | None = None
    ) -> bool:
        """Send a write; return True if it was acknowledged."""
        self._send(operation, method, path, body)
        self._history.end(operation)
        return operation.outcome == OK

    # -- reading

    def _describe(self, space: Space) -> None:
        name = space.present(LANCE_NAMES, self._dice)
        belief = space.tables.get(name)
        version = max(1, (belief.version if belief else 1) - self._dice.choice((0, 0, 1, 3, 8)))
        operation = self._operation(space, "describe", format="lance", name=name, version=version)
        answer = self._lance(
            operation, f"table/{space.name}${name}/version/describe", {"version": version}
        )
        if operation.outcome == OK:
            operation.output = {"version": version, "value": _value(answer["version"])}
        self._history.end(operation)

    def _latest(self, space: Space) -> None:
        self.read_latest(space, space.present(LANCE_NAMES, self._dice))

    def read_latest(self, space: Space, name: str) -> Operation:
        operation = self._operation(space, "latest", format="lance", name=name)
        answer = self._lance(
            operation, f"table/{space.name}${name}/version/list?descending=true&limit=1"
        )
        if operation.outcome == OK:
            versions = answer["versions"]
            operation.output = {
                "version": versions[0]["version"] if versions else 0,
                "value": _value(versions[0]) if versions else "",
            }
            if versions and name in space.tables:
                space.tables[name].version = versions[0]["version"]
        elif operation.output.get("error") == "missing":
            space.tables.pop(name, None)
        self._history.end(operation)
        return operation

    def _list(self, space: Space) -> None:
        self.read_versions(space, space.present(LANCE_NAMES, self._dice))

    def read_versions(self, space: Space, name: str) -> Operation:
        operation = self._operation(space, "list", format="lance", name=name)
        answer = self._lance(operation, f"table/{space.name}${name}/version/list")
        if operation.outcome == OK:
            operation.output = {
                "versions": [
                    {"version": v["version"], "value": _value(v)} for v in answer["versions"]
                ]
            }
        self._history.end(operation)
        return operation

    def _names(self, space: Space) -> None:
        self.read_names(space, self._dice.choice(("lance", "iceberg")))

    def read_names(self, space: Space, format: str) -> Operation:
        operation = self._operation(space, "names", format=format)
        if format == "lance":
            answer = self._send(operation, "GET", f"/v1/namespace/{space.name}/table/list")
            names = answer.get("tables", [])
        else:
            answer = self._send(operation, "GET", f"/v1/namespaces/{space.name}/tables")
            names = [entry["name"] for entry in answer.get("identifiers", [])]
        if operation.outcome == OK:
            operation.output = {"names": sorted(names)}
        self._history.end(operation)
        return operation

    def _load(self, space: Space) -> None:
        self.read_iceberg(space, space.present(ICEBERG_NAMES, self._dice))

    def read_iceberg(self, space: Space, name: str) -> Operation:
        operation = self._operation(space, "load", format="iceberg", name=name)
        answer = self._send(operation, "GET", f"/v1/namespaces/{space.name}/tables/{name}")
        if operation.outcome == OK:
            metadata = answer["metadata"]
            current = metadata.get("current-snapshot-id") or -1
            operation.output = {
                "location": metadata["location"].removeprefix("file://"),
                "snapshot": "" if current == -1 else str(current),
                "property": metadata.get("properties", {}).get("harness.value", ""),
                "sequence": metadata.get("last-sequence-number", 0),
            }
            space.tables[name] = Belief(
                operation.output["location"],
                snapshot=max(current, 0),
                sequence=metadata.get("last-sequence-number", 0),
                timestamp=metadata.get("last-updated-ms", 0),
            )
        elif operation.output.get("error") == "missing":
            space.tables.pop(name, None)
        self._history.end(operation)
        return operation

    def _believe(self, space: Space, name: str) -> None:
        """Look up the location of a table that another client created."""
        probe = self._operation(space, "probe")
        answer = self._connection.send(
            probe,
            "POST",
            f"/v1/table/{space.name}${name}/describe",
            {"load_detailed_metadata": False},
        )
        if probe.outcome == OK:
            space.tables[name] = Belief(answer["location"].removeprefix("file://"))
            self.read_latest(space, name)

    # -- at the end of a run

    def read_all(self, space: Space) -> list[Operation]:
        """Read everything in the namespace, once no operation is running any more."""
        return [
            *(self.read_names(space, kind) for kind in ("lance", "iceberg")),
            *(self.read_versions(space, name) for name in LANCE_NAMES),
            *(self.read_iceberg(space, name) for name in ICEBERG_NAMES),
        ]


def _value(version: dict[str, Any]) -> str:
    return str((version.get("metadata") or {}).get("harness.value", ""))
