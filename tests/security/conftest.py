import pytest

from catalog.services import api_keys
from catalog.services.access import SYSTEM
from tests.api.conftest import _static_files, lance, warehouse
from tests.api.iceberg.client import Iceberg

__all__ = ["_static_files", "lance", "warehouse"]


@pytest.fixture
def iceberg(db) -> Iceberg:
    """A client that may do everything, beside the one of the other protocol."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="iceberg-tester")
    return Iceberg(key)
