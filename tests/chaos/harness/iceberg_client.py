"""Writes of a client to Iceberg tables: compare-and-swap of snapshots, properties, transactions."""

import random
import time
import uuid
from dataclasses import replace
from typing import Any

from tests.chaos.harness.history import OK, UNKNOWN, Operation
from tests.chaos.harness.manifests import stage_iceberg
from tests.chaos.harness.session import Session
from tests.chaos.harness.spaces import ICEBERG_NAMES, SCHEMA, Belief, Space
from tests.chaos.harness.transport import NotSent

Step = dict[str, Any]


class IcebergClient(Session):
    def _create_iceberg(self, space: Space) -> None:
        name = space.absent(ICEBERG_NAMES, self._dice)
        operation = self._operation(space, "write", format="iceberg")
        location = space.location(operation.id)
        operation.steps = [{"do": "create", "name": name, "format": "iceberg", "id": location}]
        body = {"name": name, "schema": SCHEMA, "location": location}
        if self._write(operation, "POST", f"/v1/namespaces/{space.name}/tables", body):
            space.tables[name] = Belief(location)
        elif operation.output.get("error") == "exists" and name not in space.tables:
            self.read_iceberg(space, name)

    def _commit(self, space: Space) -> None:
        name = space.present(ICEBERG_NAMES, self._dice)
        if name not in space.tables or self._dice.random() < 0.3:
            self.read_iceberg(space, name)
        operation = self._operation(space, "write", format="iceberg")
        operation.steps, body = self._snapshot(space, operation, name, 0)
        path = f"/v1/namespaces/{space.name}/tables/{name}"
        if self._dice.random() < 0.3:
            acknowledged = self._write_once(operation, path, body)
        else:
            acknowledged = self._write(operation, "POST", path, body)
        self._committed(space, operation, acknowledged)

    def _write_once(self, operation: Operation, path: str, body: dict[str, Any]) -> bool:
        """Send a request with one Idempotency-Key until an answer reports its outcome."""
        key = {"idempotency-key": str(_uuid7(self._dice))}
        self._history.begin(operation)
        deadline = time.monotonic() + 20
        was_sent = False
        while time.monotonic() < deadline:
            operation.outcome, operation.output = UNKNOWN, {}
            try:
                self._connection.send(operation, "POST", path, body, **key)
                was_sent = was_sent or operation.output.get("error") != "unavailable"
            except NotSent:
                operation.output = {"error": "unavailable"}
            if operation.outcome != UNKNOWN and operation.output.get("error") != "unavailable":
                break
            time.sleep(0.2)
        if operation.output.get("error") == "unavailable" and was_sent:
            # The last attempt changed nothing; the outcome of earlier ones is unknown.
            operation.outcome, operation.output = UNKNOWN, {}
        self._history.end(operation)
        return operation.outcome == OK

    def _commit_together(self, space: Space) -> None:
        """One transaction on two tables."""
        operation = self._operation(space, "write", format="iceberg")
        changes = []
        for index, name in enumerate(self._dice.sample(ICEBERG_NAMES[:2], 2)):
            steps, body = self._snapshot(space, operation, name, index)
            operation.steps += steps
            changes.append(body | {"identifier": {"namespace": [space.name], "name": name}})
        body = {"table-changes": changes}
        acknowledged = self._write(operation, "POST", "/v1/transactions/commit", body)
        self._committed(space, operation, acknowledged)

    def _committed(self, space: Space, operation: Operation, acknowledged: bool) -> None:
        for step in operation.steps:
            if not acknowledged:
                self.read_iceberg(space, step["name"])
            elif belief := space.tables.get(step["name"]):
                # Replaced, not changed, because other clients read it concurrently.
                space.tables[step["name"]] = replace(
                    belief, snapshot=int(step["snapshot"]), sequence=step["sequence"]
                )

    def _set_property(self, space: Space) -> None:
        """A commit without requirements: the server must order it with the others."""
        name = space.present(ICEBERG_NAMES, self._dice)
        operation = self._operation(space, "write", format="iceberg")
        operation.steps = [{"do": "commit", "name": name, "property": operation.id}]
        updates = [{"action": "set-properties", "updates": {"harness.value": operation.id}}]
        body = {"requirements": [], "updates": updates}
        self._write(operation, "POST", f"/v1/namespaces/{space.name}/tables/{name}", body)

    def _snapshot(
        self, space: Space, operation: Operation, name: str, index: int
    ) -> tuple[list[Step], dict[str, Any]]:
        """A compare-and-swap of main: its step and its request."""
        belief = space.tables.get(name) or Belief(space.location("nowhere"))
        snapshot = self._dice.randrange(10**17, 9 * 10**18)
        sequence = belief.sequence + 1
        parent = belief.snapshot or None
        added: dict[str, Any] = {
            "snapshot-id": snapshot,
            "sequence-number": sequence,
            "timestamp-ms": max(int(time.time() * 1000), belief.timestamp + 1),
            "manifest-list": stage_iceberg(belief.location, snapshot, parent, sequence),
            "summary": {"operation": "append", "harness.value": f"{operation.id}-{index}"},
            "schema-id": 0,
        }
        if parent:
            added["parent-snapshot-id"] = parent
        body = {
            "requirements": [
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}
            ],
            "updates": [
                {"action": "add-snapshot", "snapshot": added},
                {
                    "action": "set-snapshot-ref",
                    "ref-name": "main",
                    "type": "branch",
                    "snapshot-id": snapshot,
                },
            ],
        }
        step = {
            "do": "commit",
            "name": name,
            "expected": str(parent or ""),
            "snapshot": str(snapshot),
            "sequence": sequence,
            "id": belief.location,
        }
        return [step], body


def _uuid7(dice: random.Random) -> uuid.UUID:
    milliseconds = int(time.time() * 1000) << 80
    number = milliseconds | 7 << 76 | dice.getrandbits(12) << 64 | 2 << 62 | dice.getrandbits(62)
    return uuid.UUID(int=number)
