"""Sail on this machine: its server, and PySpark's client of Spark Connect."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines import sessions, toolkit
from tests.ports import free_port

DIRECTORY = Path(__file__).parent
VERSION = "0.7.2"
_PACKAGES = (f"pysail=={VERSION}", "pyspark-client==4.1.3")
_DOCUMENTED_PORT = "50051"
_EXECUTE = """
def execute(statement):
    return [list(row) for row in spark.sql(statement).collect()]
"""
_STOP_SECONDS = 30


def prepare() -> None:
    """Fetch Sail and the client. Raises Missing."""
    toolkit.python_packages(*_PACKAGES)


def _packages() -> Path:
    return toolkit.python_packages(*_PACKAGES)


@contextmanager
def server(script: str, directory: Path, **variables: str) -> Iterator[int]:
    """Sail as the script of the docs starts it, on another port. Yields the port."""
    port = free_port()
    log = directory / "sail.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            toolkit.polite(["sh", "-c", script.replace(_DOCUMENTED_PORT, str(port))]),
            stdout=output,
            stderr=output,
            cwd=directory,
            env=sessions.environment(_packages(), directory, **variables),
        ) as process,
    ):
        try:
            toolkit.wait_until(lambda: _accepts(port), process, log)
            yield port
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def session(port: int, directory: Path) -> Iterator[sessions.Session]:
    """A session as the docs open it."""
    program = (DIRECTORY / "session.py").read_text(encoding="utf-8")
    program = program.replace(_DOCUMENTED_PORT, str(port)) + _EXECUTE
    with sessions.session(
        program, directory, sessions.environment(_packages(), directory)
    ) as session:
        yield session
