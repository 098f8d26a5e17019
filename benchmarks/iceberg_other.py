"""Another catalog with the Iceberg protocol, measured with the same requests as Monodon.

Its tables are created through the protocol. Snapshots refer to manifest lists that do not exist.
"""

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import iceberg_load, wrk
from benchmarks.iceberg_load import (
    ALL,
    COMMIT,
    CREATE,
    LARGE,
    MANY,
    ONE,
    SMALL,
    THOUSAND,
    Client,
    Tables,
)
from benchmarks.sides import NUMBERS_PER_RUN, Side
from benchmarks.wrk import Run

_SNAPSHOTS_PER_COMMIT = 100


@dataclass(frozen=True)
class Address:
    url: str
    """Without ``/v1``."""
    token: str
    pids: list[int]
    """Its processes on this machine; their CPU time counts with that of their descendants."""

    @property
    def credentials(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class Other(Side):
    name, label = "other", "other catalog"

    def __init__(self, address: Address, directory: Path) -> None:
        self._address, self._directory = address, directory
        self._runs = itertools.count(1)

    def serves(self, operation: str) -> bool:
        return (self._directory / operation).exists()

    def _run(self, operation: str, connections: int, seconds: int) -> Run:
        number = next(self._runs)
        parts = urlsplit(self._address.url)
        return wrk.run(
            "requests",
            address=f"{parts.scheme}://{parts.netloc}",
            credentials="".join(f"{n}: {v}" for n, v in self._address.credentials.items()),
            connections=connections,
            seconds=seconds,
            namespaces=1,
            tables=1,
            seed=number,
            base=number * NUMBERS_PER_RUN,
            requests=self._directory / operation,
        )

    def roots(self) -> list[int]:
        return self._address.pids


def prepared(address: Address, directory: Path) -> Other:
    """Fill namespaces with new names, and write down the requests. Raises BadAnswers.

    The namespaces stay.
    """
    directory.mkdir()
    client = Client(address.url, address.credentials)
    configuration = json.loads(client.call("GET", "/v1/config")[1])
    settings = configuration.get("defaults", {}) | configuration.get("overrides", {})
    prefix = settings.get("prefix", "")
    base = f"/v1/{prefix}/namespaces" if prefix else "/v1/namespaces"
    mark = f"bench_{uuid.uuid4().hex[:8]}"
    for tables in (*ALL, Tables("new", 0, 0)):
        _fill(client, base, replace(tables, namespace=f"{mark}_{tables.namespace}"))
    for operation, lines in _requests(base, mark).items():
        path = urlsplit(address.url).path  # wrk sends requests to the host
        text = "".join(f"{line.replace('/v1', f'{path}/v1', 1)}\n" for line in lines)
        (directory / operation).write_text(text)
    return Other(address, directory)


def _requests(base: str, mark: str) -> dict[str, list[str]]:
    """The lines of ``lua/requests.lua`` for each operation."""

    def lines(form: str, tables: Tables) -> list[str]:
        return [form.format(f"{base}/{mark}_{tables.namespace}/tables/{n}") for n in tables.names()]

    commit = f"POST\t{{}}\tgzip\t\t{COMMIT.replace('{', '{{').replace('}', '}}')}"
    return {
        "config": ["GET\t/v1/config\tgzip\t\t"],
        "load": lines("GET\t{}\tgzip\t\t", SMALL),
        "load-1m": lines("GET\t{}\tgzip\t\t", LARGE),
        "load-1m-plain": lines("GET\t{}\tidentity\t\t", LARGE),
        "exists": lines("HEAD\t{}\tgzip\t\t", SMALL),
        "namespace": [f"HEAD\t{base}/{mark}_{SMALL.namespace}\tgzip\t\t"],
        "list": [f"GET\t{base}/{mark}_{SMALL.namespace}/tables\tgzip\t\t"],
        "create": [f"POST\t{base}/{mark}_new/tables\tgzip\t\t{CREATE}"],
        "commit": lines(commit, MANY),
        "commit-one": lines(commit, ONE),
        "commit-1000": lines(commit, THOUSAND),
    }


def _fill(client: Client, base: str, tables: Tables) -> None:
    client.call("POST", base, {"namespace": [tables.namespace]})
    for name in tables.names():
        path = f"{base}/{tables.namespace}/tables"
        example = iceberg_load.metadata("file:///unknown", 1)
        body = {"name": name, "schema": example["schemas"][0], "properties": example["properties"]}
        created = json.loads(client.call("POST", path, body)[1])["metadata"]
        snapshots = iceberg_load.metadata(created["location"], tables.snapshots)["snapshots"]
        for number, snapshot in enumerate(snapshots):  # later than the table
            snapshot["timestamp-ms"] = created["last-updated-ms"] + number
        for start in range(0, len(snapshots), _SNAPSHOTS_PER_COMMIT):
            updates = _updates(snapshots[start : start + _SNAPSHOTS_PER_COMMIT])
            client.call("POST", f"{path}/{name}", {"requirements": [], "updates": updates})


def _updates(snapshots: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    last = {"ref-name": "main", "type": "branch", "snapshot-id": snapshots[-1]["snapshot-id"]}
    added = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in snapshots]
    return [*added, {"action": "set-snapshot-ref", **last}]
