import pytest

from catalog.access import SYSTEM
from catalog.models import PrincipalLevel
from catalog.services.access import api_keys
from tests.api.iceberg.client import Iceberg


@pytest.fixture
def iceberg(db) -> Iceberg:
    """A client with all privileges."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="tester")
    return Iceberg(key)


@pytest.fixture
def reader(db) -> Iceberg:
    """A client with the privilege to read, and no other."""
    _, key = api_keys.create_api_key(actor=SYSTEM, name="reader", level=PrincipalLevel.READ)
    return Iceberg(key)
