"""Trino on this machine, with its Iceberg connector and no other."""

import contextlib
import json
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trino.dbapi
import trino.exceptions

from tests.clients.jars import Jar
from tests.engines import statements, toolkit
from tests.ports import free_port

VERSION = "476"
DIRECTORY = Path(__file__).parent
_SERVER = Jar(
    "io.trino",
    "trino-server-core",
    VERSION,
    "0f388f9967c177ae70a47c099082fc95387f0c3cb96d8000d1d41fc3a5223158",
    extension="tar.gz",
)
_ICEBERG = Jar(
    "io.trino",
    "trino-iceberg",
    VERSION,
    "99edba5b491ed94d599aeb61e0794272d3569d8b563f3bb8569e8a49daa87b6c",
    extension="zip",
)
_OLDEST_JAVA = 24
_STOP_SECONDS = 30


def prepare() -> None:
    """Download and unpack Trino and its Java. Raises Missing, NotFetched."""
    toolkit.java(_OLDEST_JAVA)
    toolkit.unpack(_SERVER)
    toolkit.unpack(_ICEBERG)


@contextmanager
def server(catalogs: dict[str, str]) -> Iterator[int]:
    """Trino with these catalogs, the text of their properties by name. Yields its port."""
    with tempfile.TemporaryDirectory(prefix="monodon-trino-") as temporary:
        directory = Path(temporary)
        port = free_port()
        (directory / "catalogs").mkdir()
        for name, properties in catalogs.items():
            file = directory / "catalogs" / f"{name}.properties"
            file.touch(mode=0o600)
            file.write_text(properties)
        settings = {
            "coordinator": "true",
            "node-scheduler.include-coordinator": "true",
            "http-server.http.port": str(port),
            "discovery.uri": f"http://127.0.0.1:{port}",
            "plugin.dir": str(toolkit.unpack(_ICEBERG).parent),
            "catalog.config-dir": str(directory / "catalogs"),
            "query.max-memory": "512MB",
            "query.max-memory-per-node": "512MB",
            "memory.heap-headroom-per-node": "256MB",
        }
        configuration = directory / "config.properties"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [
            toolkit.java(_OLDEST_JAVA),
            # Queries are short: most of the time is start-up and compilation.
            *("-Xmx1500M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Djdk.attach.allowAttachSelf=true", "--sun-misc-unsafe-memory-access=allow"),
            f"-Dconfig={configuration}",
            *("-Dnode.environment=tests", "-Dnode.id=tests", f"-Dnode.data-dir={directory}"),
            *("-cp", f"{toolkit.unpack(_SERVER)}/lib/*", "io.trino.server.TrinoServer"),
        ]
        log = directory / "server.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                toolkit.polite(command), stdout=output, stderr=output, cwd=directory
            ) as process,
        ):
            try:
                toolkit.wait_until(lambda: _is_ready(port), process, log)
                yield port
            finally:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS)
                process.kill()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/info", timeout=5) as answer:
            return json.load(answer)["starting"] is False
    except OSError:
        return False


class Session:
    """A user's session, in which USE and SET SESSION are persistent."""

    def __init__(self, port: int) -> None:
        self._connection = trino.dbapi.connect(
            host="127.0.0.1", port=port, user="tests", timezone="UTC"
        )

    def __call__(self, statement: str) -> statements.Rows:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement)
            return cursor.fetchall()
        except trino.exceptions.TrinoQueryError as error:
            failure = error.failure_info or {}
            while failure := failure.get("cause"):
                error.add_note(f"{failure['type']}: {failure.get('message')}")
            raise
