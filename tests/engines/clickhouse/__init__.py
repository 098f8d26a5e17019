"""ClickHouse on this machine, as the library chDB."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines import sessions, toolkit

DIRECTORY = Path(__file__).parent
VERSION = "4.4.0"
CLICKHOUSE = "26.9"
_PACKAGES = (f"chdb=={VERSION}", "chdb-core==26.9.0")
_PROGRAM = """
import json
from chdb.session import Session

session = Session()

def execute(statement):
    answer = str(session.query(statement, "JSONCompact"))
    return json.loads(answer)["data"] if answer else []
"""


def prepare() -> None:
    """Fetch chDB. Raises Missing."""
    toolkit.python_packages(*_PACKAGES)


@contextmanager
def session(directory: Path) -> Iterator[sessions.Session]:
    packages = toolkit.python_packages(*_PACKAGES)
    variables = sessions.environment(packages, directory)
    with sessions.session(_PROGRAM, directory, variables) as session:
        yield session
