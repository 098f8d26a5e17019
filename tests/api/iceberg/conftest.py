import pytest

from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
from tests.api.iceberg.client import Iceberg


@pytest.fixture
def iceberg(db) -> Iceberg:
    """A client that may do everything."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="tester")
    return Iceberg(key)


@pytest.fixture
def reader(db) -> Iceberg:
    """A client that may only read."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="reader", level=PrincipalLevel.READ)
    return Iceberg(key)
