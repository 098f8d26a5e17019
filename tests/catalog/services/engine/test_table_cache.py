"""The cached rows of namespaces and tables: small, whatever clients store in their properties."""

import pickle

import pytest

from catalog.identifiers import digest
from catalog.models import Table, TableState
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


def test_rows_are_discarded_one_by_one_and_at_the_limit() -> None:
    names = [("ns", name) for name in ("a", "b", "c")]
    rows = {digest(name): make_table(*name) for name in names}
    Table.objects.update(state=TableState.LIVE)
    first, second, third = rows
    tables = table_cache.TableCache(limit=2)
    assert tables.get({first, digest(("ns", "gone"))}) == {first: rows[first]}
    assert tables.get({first, second}) == {first: rows[first], second: rows[second]}
    tables.discard({first, digest(("ns", "gone"))})
    assert tables.cached(set(rows)) == {second: rows[second]}
    tables.get({first})
    assert tables.get({third}) == {third: rows[third]}
    assert tables.cached(set(rows)) == {third: rows[third]}
    tables.clear()
    assert tables.cached(set(rows)) == {}


def test_tables_without_a_version_are_not_cached() -> None:
    row = make_table("ns", "t")
    cache = table_cache.TableCache()
    assert cache.get({row.digest}) == {}
    assert cache.cached({row.digest}) == {}


def test_namespaces_are_discarded_one_by_one_and_at_the_limit() -> None:
    a, b, c = (make_namespace(name) for name in "abc")
    cache = table_cache.NamespaceCache(limit=2)
    assert [cache.get(row.digest) for row in (a, b)] == [a, b]
    assert cache.get(digest(("gone",))) is None
    cache.discard(a.digest)
    cache.discard(a.digest)
    assert [cache.cached(row.digest) for row in (a, b)] == [None, b]
    cache.put(a)
    cache.put(c)
    assert [cache.cached(row.digest) for row in (a, b, c)] == [None, None, c]
    cache.clear()
    assert cache.cached(c.digest) is None
