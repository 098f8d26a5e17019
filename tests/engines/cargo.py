"""Programs in Rust, which are built here."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.engines import toolkit

# The first build compiles several hundred crates, one at a time.
_BUILD_SECONDS = 3600
_RUN_SECONDS = 180


def fetch(package: Path) -> None:
    """Fetch the crates that the package's Cargo.lock names. Raises Missing."""
    _cargo(package, "fetch", "--locked")


def build(package: Path, target: Path, environment: dict[str, str] | None = None) -> Path:
    """The executable of a package with one binary. Its crates are compiled into `target` and stay there.

    Raises Missing.
    """
    build = ("build", "--locked", "--jobs", "1", "--target-dir", str(target))
    _cargo(package, *build, environment=environment)
    (executable,) = (file for file in (target / "debug").iterdir() if _is_program(file))
    return executable


def _is_program(file: Path) -> bool:
    return file.is_file() and not file.suffix and os.access(file, os.X_OK)


def _cargo(package: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise toolkit.Missing("Rust programs need cargo")
    command = toolkit.polite([cargo, *arguments])
    toolkit.run("Rust", command, seconds=_BUILD_SECONDS, cwd=package, environment=environment)


def run(executable: Path, *arguments: str) -> str:
    """Output of an executable. Fails with its error output."""
    completed = subprocess.run(
        [str(executable), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_SECONDS,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr[-5000:]
    return completed.stdout
