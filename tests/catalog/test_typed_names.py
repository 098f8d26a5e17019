"""Commands of manage.py read names with dots, ``$`` and quotes, as the admin and the command line do."""

from io import StringIO

import pytest
from django.core.management import call_command

from catalog.models import ApiKey, Grant, Principal, PrincipalKind
from tests.factories import make_root, make_table

NAMES = ("prod.orders", "prod$orders", '"prod".orders')


@pytest.fixture(autouse=True)
def _catalog(db, warehouse) -> None:
    make_root()
    make_table("prod", "orders")
    make_table("a.b", "t")


@pytest.mark.parametrize("name", NAMES)
def test_a_grant_on_a_table(name):
    Principal.objects.create(name="etl", kind=PrincipalKind.SERVICE)
    call_command("grant", "set", "etl", "read", "--table", name, stdout=StringIO())
    assert str(Grant.objects.get().table) == "prod.orders"


@pytest.mark.parametrize("name", ['"a.b"', "a.b$"])
def test_a_key_for_a_namespace_with_a_dot(name):
    call_command("create_key", "etl", "--namespace", name, stdout=StringIO(), stderr=StringIO())
    assert ApiKey.objects.get(name="etl").namespace.path == ["a.b"]
