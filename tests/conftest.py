"""Fixtures for every test. The database and the broker are started by tests/embedded.py."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    """What a process keeps of keys and tables belongs to the database of one test."""
    from catalog.services import access, seen

    access.forget_keys()
    seen.tables.clear()
    seen.documents.clear()
    yield
    access.forget_keys()
    seen.tables.clear()
    seen.documents.clear()
