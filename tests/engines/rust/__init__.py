"""Iceberg's Rust library, in a program that is built here."""

import shutil
from pathlib import Path

from tests.engines import cargo, toolkit

DIRECTORY = Path(__file__).parent / "program"
PROGRAM = DIRECTORY / "src" / "main.rs"


def prepare() -> None:
    """Fetch the crates. Raises Missing."""
    cargo.fetch(DIRECTORY)


def build(program: str, directory: Path) -> Path:
    """Build the executable. The compiled crates are stored beside the jars."""
    shutil.copytree(DIRECTORY, directory, dirs_exist_ok=True)
    (directory / "src" / "main.rs").write_text(program, encoding="utf-8")
    return cargo.build(directory, toolkit.cache("rust"))
