"""The cached rows of namespaces and tables: small, whatever clients store in their properties."""

import pickle

import pytest

from catalog.identifiers import digest
from catalog.services.engine import table_cache
from tests.factories import make_iceberg_table, make_namespace, make_table, make_version

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
LARGE = {"comment": "x" * 1_000_000}


def test_cached_namespaces_do_not_hold_their_properties() -> None:
    row = make_namespace("ns", properties=LARGE)
    make_table("ns", "t")
    make_iceberg_table("ns", "i")
    for cache in (table_cache.namespaces, table_cache.unplaced_namespaces):
        cached = cache.cached(digest(("ns",)))
        assert cached is not None
        assert len(pickle.dumps(cached)) < 10_000
        assert (cached, cached.identifier) == (row, ("ns",))


def test_cached_tables_do_not_hold_their_properties() -> None:
    row = make_table("ns", "t", properties=LARGE)
    make_version(("ns", "t"), 1)
    make_version(("ns", "t"), 2)
    (cached,) = table_cache.tables.cached({row.digest}).values()
    assert len(pickle.dumps(cached)) < 10_000
    assert (cached, cached.location) == (row, row.location)
