"""DuckDB as a client of the live server, with extensions from wheels; nothing is downloaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

import duckdb

from tests.live import LiveServer

_EXTENSIONS = ("avro", "httpfs", "iceberg")


def connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    for name in _EXTENSIONS:
        files = resources.files(f"duckdb_extension_{name}") / "extensions"
        file = files / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        connection.execute(f"LOAD '{file}'")
    return connection


@contextmanager
def attached(
    live: LiveServer, *, warehouse: str = "", secret: str = "", options: str = ""
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Attach the live server as `lake`; the secret is by default the key as a token."""
    secret = secret or f"TOKEN '{live.key}'"
    with connect() as connection:
        connection.execute(f"CREATE SECRET monodon (TYPE iceberg, {secret})")
        connection.execute(
            f"ATTACH '{warehouse}' AS lake"
            f" (TYPE iceberg, ENDPOINT '{live.url}', SECRET monodon{options})"
        )
        yield connection
