"""Iceberg tables to measure: metadata files as an engine writes them, registered through the protocol."""

import gzip
import json
import random
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from benchmarks.errors import BadAnswers
from benchmarks.stack import API_KEY

START_MS = 1_750_000_000_000
_METADATA_LOG = 100
"""As many earlier files as a table keeps by default (write.metadata.previous-versions-max)."""


@dataclass(frozen=True)
class Tables:
    """A namespace of tables that are alike but for their names and places."""

    namespace: str
    count: int
    snapshots: int

    def names(self) -> list[str]:
        return [f"t{number:04d}" for number in range(self.count)]

    def paths(self) -> list[str]:
        return [f"/v1/namespaces/{self.namespace}/tables/{name}" for name in self.names()]


SMALL = Tables("small", count=100, snapshots=17)
LARGE = Tables("large", count=8, snapshots=1_045)
MANY = Tables("many", count=256, snapshots=17)
ONE = Tables("one", count=1, snapshots=17)
THOUSAND = Tables("thousand", count=64, snapshots=1_000)
ALL = (SMALL, LARGE, MANY, ONE, THOUSAND)


COMMIT = json.dumps(
    {"requirements": [], "updates": [{"action": "set-properties", "updates": {"turn": "@"}}]}
)
CREATE = json.dumps(
    {
        "name": "n@",
        "schema": {
            "type": "struct",
            "fields": [{"id": 1, "name": "id", "required": True, "type": "long"}],
        },
    }
)


class Client:
    """The few requests that are not measured."""

    def __init__(self, address: str, credentials: Mapping[str, str]) -> None:
        self._address, self._credentials = address, credentials

    def call(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[HTTPResponse | urllib.error.HTTPError, bytes]:
        """The answer, and its content unpacked; none in a 304. Raises BadAnswers for a refusal."""
        request = urllib.request.Request(
            f"{self._address}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **self._credentials, **headers},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.status == HTTPStatus.NOT_MODIFIED:
                    return error, b""
                raise BadAnswers(f"{method} {path}: {error.code} {error.read()!r}") from error
        if answer.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        return answer, content


def own_client(port: int) -> Client:
    """A client of a server that the benchmark has started."""
    return Client(f"http://127.0.0.1:{port}", {"x-api-key": API_KEY})


def seed(client: Client, warehouse: Path) -> dict[str, int]:
    """Fill an empty catalog; returns how many bytes of JSON the metadata of each kind is."""
    sizes = {}
    for tables in ALL:
        client.call("POST", "/v1/namespaces", {"namespace": [tables.namespace]})
        for name in tables.names():
            location = warehouse / "bench" / f"{tables.namespace}-{name}-{uuid.uuid4().hex}"
            file = location / "metadata" / f"{tables.snapshots:05d}-{uuid.uuid4()}.metadata.json"
            content = json.dumps(metadata(f"file://{location}", tables.snapshots)).encode()
            file.parent.mkdir(parents=True)
            file.write_bytes(content)
            client.call(
                "POST",
                f"/v1/namespaces/{tables.namespace}/register",
                {"name": name, "metadata-location": f"file://{file}"},
            )
            sizes[tables.namespace] = len(content)
    return sizes


def metadata(location: str, snapshots: int) -> dict[str, Any]:
    """Metadata of a table after this many appends by Spark."""
    dice = random.Random(location)
    columns = ["id", "at", "customer", "product", "quantity", "price", "currency", "country"]
    types = ["long", "timestamptz", "string", "string", "int", "decimal(12, 2)", "string", "string"]
    made = [_snapshot(location, number, dice) for number in range(1, snapshots + 1)]
    last = made[-1]
    return {
        "format-version": 2,
        "table-uuid": str(uuid.UUID(int=dice.getrandbits(128), version=4)),
        "location": location,
        "last-sequence-number": snapshots,
        "last-updated-ms": last["timestamp-ms"],
        "last-column-id": len(columns),
        "current-schema-id": 0,
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [
                    {"id": number, "name": name, "required": number == 1, "type": type_}
                    for number, (name, type_) in enumerate(zip(columns, types, strict=True), 1)
                ],
            }
        ],
        "default-spec-id": 0,
        "partition-specs": [
            {
                "spec-id": 0,
                "fields": [
                    {"name": "at_day", "transform": "day", "source-id": 2, "field-id": 1000}
                ],
            }
        ],
        "last-partition-id": 1000,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {
            "owner": "etl",
            "write.format.default": "parquet",
            "write.parquet.compression-codec": "zstd",
        },
        "current-snapshot-id": last["snapshot-id"],
        "refs": {"main": {"snapshot-id": last["snapshot-id"], "type": "branch"}},
        "snapshots": made,
        "snapshot-log": [
            {"timestamp-ms": s["timestamp-ms"], "snapshot-id": s["snapshot-id"]} for s in made
        ],
        "metadata-log": [
            {
                "timestamp-ms": s["timestamp-ms"],
                "metadata-file": f"{location}/metadata/{s['sequence-number']:05d}-"
                f"{uuid.UUID(int=dice.getrandbits(128), version=4)}.metadata.json",
            }
            for s in made[-_METADATA_LOG:-1]
        ],
        "statistics": [],
        "partition-statistics": [],
    }


def _snapshot(location: str, number: int, dice: random.Random) -> dict[str, Any]:
    snapshot_id = dice.getrandbits(62)
    added, size = dice.randrange(10_000, 90_000), dice.randrange(1_000_000, 9_000_000)
    return {
        "sequence-number": number,
        "snapshot-id": snapshot_id,
        **({"parent-snapshot-id": dice.getrandbits(62)} if number > 1 else {}),
        "timestamp-ms": START_MS + number * 60_000,
        "summary": {
            "operation": "append",
            "spark.app.id": "application_1750000000000_0042",
            "added-data-files": "4",
            "added-records": str(added),
            "added-files-size": str(size),
            "changed-partition-count": "1",
            "total-records": str(added * number),
            "total-files-size": str(size * number),
            "total-data-files": str(4 * number),
            "total-delete-files": "0",
            "total-position-deletes": "0",
            "total-equality-deletes": "0",
            "engine-version": "3.5.6",
            "app-id": "application_1750000000000_0042",
            "engine-name": "spark",
            "iceberg-version": "Apache Iceberg 1.9.2 (commit 071d5606bc6199a0be9b3f274ec7fbf111d88821)",
        },
        "manifest-list": f"{location}/metadata/snap-{snapshot_id}-1-"
        f"{uuid.UUID(int=dice.getrandbits(128), version=4)}.avro",
        "schema-id": 0,
    }
