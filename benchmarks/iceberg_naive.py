"""What a server does that keeps metadata as JSON text: parse it, make an object of it, render that.

Served as the catalog is (granian, the same numbers of processes and threads), with a connection for each thread.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from pyiceberg.catalog.rest import TableResponse
from pyiceberg.table.metadata import TableMetadataUtil

PREPARE = """
    DROP TABLE IF EXISTS benchmark_metadata;
    CREATE TABLE benchmark_metadata (path text PRIMARY KEY, location text, metadata text)
"""
ENTER = "INSERT INTO benchmark_metadata (path, location, metadata) VALUES (%s, %s, %s)"

_local = threading.local()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    if not hasattr(_local, "connection"):
        _local.connection = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    row = _local.connection.execute(
        "SELECT location, metadata FROM benchmark_metadata WHERE path = %s", [environ["PATH_INFO"]]
    ).fetchone()
    if row is None:
        start_response("404 Not Found", [])
        return [b""]
    response = TableResponse(
        **{"metadata-location": row[0]}, metadata=TableMetadataUtil.parse_raw(row[1]), config={}
    )
    content = response.model_dump_json(by_alias=True).encode()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [content]
