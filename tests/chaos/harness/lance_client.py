"""Writes of a client to Lance tables: versions, batches, deletions, tables that are replaced."""

from typing import Any

from tests.chaos.harness.history import OK, Operation
from tests.chaos.harness.manifests import stage_lance
from tests.chaos.harness.session import Session
from tests.chaos.harness.spaces import LANCE_NAMES, Belief, Space

Step = dict[str, Any]


class LanceClient(Session):
    def _add(self, space: Space) -> None:
        name = space.present(LANCE_NAMES, self._dice)
        operation = self._operation(space, "write", format="lance")
        operation.steps, (body,) = self._versions(space, operation, [name])
        self._added(
            space, operation, f"/v1/table/{space.name}${name}/version/create", body | {"id": None}
        )

    def _add_together(self, space: Space) -> None:
        names = [space.present(LANCE_NAMES, self._dice) for _ in range(self._dice.randint(2, 3))]
        operation = self._operation(space, "write", format="lance")
        operation.steps, bodies = self._versions(space, operation, names)
        self._added(space, operation, "/v1/table/version/batch-create", {"entries": bodies})

    def _batch(self, space: Space) -> None:
        """Versions of several tables, deletions, and sometimes a table that is replaced."""
        names = [space.present(LANCE_NAMES, self._dice) for _ in range(self._dice.randint(1, 3))]
        operation = self._operation(space, "write", format="lance")
        operation.steps, bodies = self._versions(space, operation, names)
        entries: list[Step] = [{"create_table_version": body} for body in bodies]
        old = next((name for name in LANCE_NAMES if name not in names), None)
        belief = space.tables.get(old or "")
        if belief and old and belief.version > 6:
            ranges = [{"start_version": 2, "end_version": belief.version - 4}]
            body = {"id": [space.name, old], "ranges": ranges}
            entries.append({"delete_table_versions": body})
            operation.steps.append(
                {"do": "delete", "name": old, "version": 2, "end": belief.version - 4}
            )
        self._added(space, operation, "/v1/table/batch-commit", {"operations": entries})

    def _replace(self, space: Space) -> None:
        """One batch deregisters a table, declares another with its name, and adds its first version."""
        name = space.present(LANCE_NAMES, self._dice)
        operation = self._operation(space, "write", format="lance")
        location = space.location(operation.id)
        value = f"{operation.id}-0"
        path, size = stage_lance(location, 1, value)
        identity = [space.name, name]
        entries = [
            {"deregister_table": {"id": identity}},
            {"declare_table": {"id": identity, "location": location}},
            {"create_table_version": _version_body(identity, 1, path, size, value)},
        ]
        operation.steps = [
            {"do": "drop", "name": name, "format": "lance"},
            {"do": "create", "name": name, "format": "lance", "id": location},
            {"do": "add", "name": name, "version": 1, "value": value, "id": location},
        ]
        if self._write(operation, "POST", "/v1/table/batch-commit", {"operations": entries}):
            space.tables[name] = Belief(location, 1)

    def _delete(self, space: Space) -> None:
        name = space.present(LANCE_NAMES, self._dice)
        belief = space.tables.get(name)
        if belief is None or belief.version < 6:
            return self._add(space)
        start = self._dice.randint(2, belief.version - 4)
        end = min(start + self._dice.randint(1, 3), belief.version - 3)
        operation = self._operation(space, "write", format="lance")
        operation.steps = [{"do": "delete", "name": name, "version": start, "end": end}]
        path = f"/v1/table/{space.name}${name}/version/delete"
        body = {"ranges": [{"start_version": start, "end_version": end}]}
        answer = self._send(operation, "POST", path, body)
        if operation.outcome == OK:
            operation.output = {"count": answer.get("deleted_count", 0)}
        self._history.end(operation)
        return None

    def _versions(
        self, space: Space, operation: Operation, names: list[str]
    ) -> tuple[list[Step], list[Step]]:
        """Steps and request bodies that add a version to each of the tables."""
        steps, bodies, next_version = [], [], {}
        for index, name in enumerate(names):
            belief = space.tables.get(name)
            believed = belief.version if belief else 0
            version = next_version.get(name, believed) + 1
            next_version[name] = version
            value = f"{operation.id}-{index}"
            location = belief.location if belief else space.location("nowhere")
            path, size = stage_lance(location, version, value)
            steps.append(
                {"do": "add", "name": name, "version": version, "value": value, "id": location}
            )
            bodies.append(_version_body([space.name, name], version, path, size, value))
        return steps, bodies

    def _added(self, space: Space, operation: Operation, path: str, body: dict[str, Any]) -> None:
        if self._write(operation, "POST", path, body):
            for step in operation.steps:
                if step["do"] == "add" and step["name"] in space.tables:
                    belief = space.tables[step["name"]]
                    belief.version = max(belief.version, step["version"])
        elif operation.output.get("error") == "missing":
            self._names(space)
        elif operation.output.get("error") == "elsewhere":
            for step in operation.steps:
                if step["do"] == "add":
                    self._believe(space, step["name"])
        elif operation.output.get("error") == "conflict":
            for step in operation.steps:
                if step["do"] == "add":
                    self.read_latest(space, step["name"])

    def _declare(self, space: Space) -> None:
        name = space.absent(LANCE_NAMES, self._dice)
        operation = self._operation(space, "write", format="lance")
        location = space.location(operation.id)
        operation.steps = [{"do": "create", "name": name, "format": "lance", "id": location}]
        body = {"location": location, "properties": {"harness.value": operation.id}}
        if self._write(operation, "POST", f"/v1/table/{space.name}${name}/declare", body):
            space.tables[name] = Belief(location)
        elif operation.output.get("error") == "exists" and name not in space.tables:
            self._believe(space, name)


def _version_body(
    identity: list[str], version: int, path: str, size: int, value: str
) -> dict[str, Any]:
    return {
        "id": identity,
        "version": version,
        "manifest_path": path,
        "manifest_size": size,
        "naming_scheme": "V2",
        "metadata": {"harness.value": value},
    }
