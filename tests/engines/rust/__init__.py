"""Iceberg's Rust library, in a program that is built here."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.engines import toolkit

DIRECTORY = Path(__file__).parent / "program"
PROGRAM = DIRECTORY / "src" / "main.rs"
# The first build compiles some 300 crates, one at a time.
_BUILD_SECONDS = 3600
_SECONDS = 180


def prepare() -> None:
    """Fetch the crates. Raises Missing."""
    _cargo("fetch", "--locked", directory=DIRECTORY)


def _cargo(*arguments: str, directory: Path) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise toolkit.Missing("iceberg-rust needs cargo")
    command = toolkit.polite([cargo, *arguments])
    toolkit.run("iceberg-rust", command, seconds=_BUILD_SECONDS, cwd=directory)


def build(program: str, directory: Path) -> Path:
    """Build the executable. The compiled crates are stored beside the jars."""
    shutil.copytree(DIRECTORY, directory, dirs_exist_ok=True)
    (directory / "src" / "main.rs").write_text(program, encoding="utf-8")
    target = toolkit.cache("rust")
    _cargo("build", "--locked", "--jobs", "1", "--target-dir", str(target), directory=directory)
    return target / "debug" / "orders"


def run(executable: Path) -> str:
    """Output of an executable. Fails with its error output."""
    completed = subprocess.run(
        [str(executable)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr[-5000:]
    return completed.stdout
