from pathlib import Path

import pytest


@pytest.fixture
def table(tmp_path: Path) -> Path:
    directory = tmp_path / "table"
    (directory / "_versions").mkdir(parents=True)
    (directory / "_versions/staged").write_bytes(b"one")
    return directory
