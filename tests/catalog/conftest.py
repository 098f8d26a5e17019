from pathlib import Path

import pytest


@pytest.fixture
def warehouse(tmp_path: Path, settings) -> Path:
    """An empty warehouse for each test."""
    directory = tmp_path / "warehouse"
    directory.mkdir(exist_ok=True)  # the fixture `storage` makes it too
    settings.MONODON_WAREHOUSE = str(directory)
    settings.MONODON_ALLOWED_ROOTS = []
    settings.MONODON_MANIFEST_PATHS = ["elsewhere/", "x/"]
    return directory
