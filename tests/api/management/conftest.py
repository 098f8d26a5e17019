from pathlib import Path

import pytest

from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
from tests.api.management.client import Management
from tests.recall import recalled_warehouse

__all__ = ["recalled_warehouse"]


@pytest.fixture(autouse=True)
def warehouse(recalled_warehouse: Path) -> Path:
    return recalled_warehouse


@pytest.fixture
def management(db) -> Management:
    """A client with all privileges."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="tester")
    return Management(key)


@pytest.fixture
def reader(db) -> Management:
    """A client with the privilege to read, and no other."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="reader", level=PrincipalLevel.READ)
    return Management(key)
