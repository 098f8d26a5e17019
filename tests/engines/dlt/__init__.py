"""dlt with the extensions of DuckDB, which it uses for reading."""

import platform
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import duckdb

from tests.engines import sessions, toolkit

DIRECTORY = Path(__file__).parent
PROGRAM = DIRECTORY / "orders.py"
SECRETS = DIRECTORY / "secrets.toml"
VERSION = "1.31.0"
SQLGLOT = "30.12.0"
"""Newer releases lack a parameter of `qualify` that this dlt passes."""
_PACKAGES = (f"dlt[pyiceberg,filesystem]=={VERSION}", f"sqlglot=={SQLGLOT}", "pyiceberg==0.12.0")
_EXTENSIONS = ("avro", "httpfs", "iceberg")
_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
_RUN_SECONDS = 300


def prepare() -> None:
    """Fetch dlt. Raises Missing."""
    toolkit.python_packages(*_PACKAGES)


def run(program: str, secrets: str, directory: Path) -> str:
    """Output of a program that runs in a project with these secrets. Fails with its error output."""
    (directory / ".dlt").mkdir()
    (directory / ".dlt" / "secrets.toml").write_text(secrets, encoding="utf-8")
    install_extensions(directory)
    variables = {"RUNTIME__DLTHUB_TELEMETRY": "false", "DLT_DATA_DIR": str(directory / "data")}
    completed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env=sessions.environment(toolkit.python_packages(*_PACKAGES), directory, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_SECONDS,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr[-5000:]
    return completed.stdout


def install_extensions(home: Path) -> None:
    """Copy DuckDB's extensions from their wheels to where DuckDB installs them."""
    processor = _PROCESSORS[platform.machine()]
    version = f"v{duckdb.__version__}"
    target = home / ".duckdb" / "extensions" / version / f"linux_{processor}"
    target.mkdir(parents=True)
    for name in _EXTENSIONS:
        files = resources.files(f"duckdb_extension_{name}") / "extensions"
        file = files / version / f"{name}.duckdb_extension"
        shutil.copy(str(file), target)
