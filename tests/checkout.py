"""The code that a live server runs: this one, or that of an older release.

``MONODON_UPGRADE_FROM`` names the older release: a checkout, or a revision of this repository. Without it, the
newest tag is used.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from server import commands
from server.options import PROJECT, Options

_COMMANDS = """
import json
from server import commands
from server.options import Options
options = Options.from_environment()
lines = [commands.web(options), commands.worker(options), [*commands.BEAT]]
print(json.dumps(lines))
"""


@dataclass(frozen=True)
class Commands:
    """The command lines of the processes of a server, without the interpreter."""

    web: list[str]
    worker: list[str]
    beat: list[str]


@dataclass(frozen=True)
class Checkout:
    """A directory with the code of a release, and the interpreter that runs it."""

    directory: Path
    python: str

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment in which modules are imported from this checkout."""
        return {**environment, "PYTHONPATH": str(self.directory)}

    def commands(self, environment: Mapping[str, str]) -> Commands:
        if self == PRESENT:
            options = Options.from_environment(environment)
            return Commands(commands.web(options), commands.worker(options), [*commands.BEAT])
        return Commands(*json.loads(self._run(environment, "-c", _COMMANDS)))

    def bootstrap(self, environment: Mapping[str, str]) -> None:
        """Run ``manage.py bootstrap``. Raises AssertionError with its output if it fails."""
        self._run(environment, "manage.py", "bootstrap")

    def last_migration(self) -> str:
        return max(path.stem for path in (self.directory / "catalog/migrations").glob("[0-9]*.py"))

    def _run(self, environment: Mapping[str, str], *arguments: str) -> str:
        result = subprocess.run(
            [self.python, *arguments],
            cwd=self.directory,
            env=self.environment(environment),
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
        return result.stdout


PRESENT = Checkout(PROJECT, sys.executable)


def older(directory: Path) -> Checkout:
    """The older release, which is unpacked into ``directory`` if it is a revision. Skips without one."""
    name = os.environ.get("MONODON_UPGRADE_FROM") or _newest_tag()
    if not name:
        pytest.skip("there is no older release: no tag, and MONODON_UPGRADE_FROM is not set")
    if not Path(name).is_dir():
        _unpack(name, directory)
        return Checkout(directory, sys.executable)
    path = Path(name).resolve()
    python = path / ".venv/bin/python"
    return Checkout(path, str(python) if python.exists() else sys.executable)


def _newest_tag() -> str:
    result = _git("describe", "--tags", "--abbrev=0")
    return result.stdout.decode().strip() if result.returncode == 0 else ""


def _unpack(revision: str, directory: Path) -> None:
    archive = directory.with_suffix(".tar")
    result = _git("archive", "--output", str(archive), revision)
    assert result.returncode == 0, f"MONODON_UPGRADE_FROM: {result.stderr.decode()}"
    with tarfile.open(archive) as file:
        file.extractall(directory, filter="data")
    archive.unlink()


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, check=False)
