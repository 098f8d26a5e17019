import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.catalog.storage.answering_server import AnsweringServer


@pytest.fixture
def table(tmp_path: Path) -> Path:
    directory = tmp_path / "table"
    (directory / "_versions").mkdir(parents=True)
    (directory / "_versions/staged").write_bytes(b"one")
    return directory


@pytest.fixture
def deep_table(table: Path) -> Iterator[Path]:
    """A table that may be deeper than pytest can remove."""
    yield table
    subprocess.run(["rm", "-rf", str(table)], check=True)


@pytest.fixture
def answering() -> Iterator[AnsweringServer]:
    with AnsweringServer() as server:
        yield server
