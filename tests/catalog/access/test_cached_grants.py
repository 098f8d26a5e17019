"""Grants that a process has cached: how many statements they save, and when they stop to count.

``tests/catalog/services/access/test_authorization.py`` compares them with a model on random catalogs.
"""

import threading
import time
import uuid
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import access
from catalog.access import On, cached_grants
from catalog.errors import NamespaceNotFound, NotFound, PermissionDenied, TableNotFound
from catalog.identifiers import digest
from catalog.models import Grant, GrantVersion, Namespace, Table
from catalog.models import Principal as Row
from catalog.privileges import READ_ONLY, Privilege
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.tables import tables
from tests.factories import make_iceberg_table, make_namespace, make_root, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
TABLE = ("sales", "orders")


@pytest.fixture
def table():
    make_root()
    return make_table(*TABLE)


@pytest.fixture
def row():
    return Row.objects.create(name="etl", kind="service")


def grant(row, **target):
    return Grant.objects.create(principal=row, mask=READ_ONLY.value, **target)


def describe(actor):
    return tables.describe_table(actor=actor, table=TABLE)


def may_read(actor):
    try:
        describe(actor)
    except (NamespaceNotFound, PermissionDenied, TableNotFound):
        return False
    return True


def warm(row):
    """The principal of a row whose grants are cached."""
    actor = access.of_row(row)
    describe(actor)
    assert cached_grants.cache._entries[actor.ids].version == GrantVersion.objects.get().version
    return actor


def test_cached_grants_are_those_of_one_version_until_the_first_expires():
    version = uuid.uuid4()
    grants = cached_grants.Grants(version, until=5.0)
    assert [grants.are_of(version, now) for now in (4.5, 5.0, 5.5)] == [True, False, False]
    assert not grants.are_of(uuid.uuid4(), 4.5)
    assert not cached_grants.Grants().are_of(None, 4.5)


def test_a_read_takes_one_statement_from_the_second_request_on(
    table, row, django_assert_num_queries
):
    groups = [Row.objects.create(name=f"group:{n}", kind="group") for n in range(50)]
    row.groups.set(groups)
    for number, group in enumerate(groups):
        grant(group, namespace=make_namespace(f"n{number}"))
    grant(groups[7], table=table)
    actor = access.of_row(row)
    for statements in (2, 1, 1):
        with django_assert_num_queries(statements):
            assert describe(actor).held == READ_ONLY


def test_reads_of_iceberg_tables_take_one_statement(row, django_assert_num_queries):
    loaded = make_iceberg_table(*TABLE)
    grant(row, namespace=Namespace.objects.named(("sales",)).get())
    actor = access.of_row(row)
    iceberg_tables.load_table(actor=actor, table=TABLE)
    with django_assert_num_queries(1):
        assert iceberg_tables.load_table(actor=actor, table=TABLE).etag == loaded.etag
    with django_assert_num_queries(1):
        assert iceberg_tables.find_etag(actor=actor, table=TABLE) == loaded.etag
    with django_assert_num_queries(1):
        iceberg_tables.table_exists(actor=actor, table=TABLE)


def test_hidden_and_missing_objects_take_the_same_statements(row):
    """Also right after a change of grants, which every owner can make."""
    make_root()
    make_table("sales", "shown")
    grant(row, table=make_table("sales", "visible"))
    make_table("hidden", "orders")
    actor = access.of_row(row)

    def statements(call):
        Grant.objects.update(mask=F("mask"))  # the version changes
        with CaptureQueriesContext(connection) as queries, pytest.raises(NotFound):
            call()
        return len(queries)

    for hidden, missing in (
        (("sales", "shown"), ("sales", "none")),
        (
            ("hidden", "orders"),
            ("nowhere", "orders"),
        ),
    ):
        for call in (
            lambda name: tables.describe_table(actor=actor, table=name),
            lambda name: iceberg_tables.load_table(actor=actor, table=name),
            lambda name: access.held_on(actor, On.table(name)),
        ):
            assert statements(partial(call, hidden)) == statements(partial(call, missing))
    namespaces = [On.namespace((name,)) for name in ("hidden", "nowhere")]
    assert len({statements(partial(access.held_on, actor, on)) for on in namespaces}) == 1


def test_a_check_of_access_alone_takes_one_statement(table, row, django_assert_num_queries):
    grant(row, table=table)
    actor = warm(row)
    for target in (On.table(TABLE), table):
        with django_assert_num_queries(1):
            assert access.held_on(actor, target) == READ_ONLY


def test_a_revoked_grant_stops_with_the_next_request(table, row):
    for revoke in (
        Grant.delete,
        lambda row: Grant.objects.filter(pk=row.pk).delete(),
        lambda row: Grant.objects.filter(pk=row.pk).update(
            expires_at=timezone.now() - timedelta(hours=1)
        ),
        lambda row: Grant.objects.filter(pk=row.pk).update(mask=Privilege.BROWSE.value),
        lambda row: execute(
            f"INSERT INTO catalog_grant (principal_id, table_id, mask, granted_by) VALUES ({row.principal_id},"
            f" {row.table_id}, 1, '') ON CONFLICT (principal_id, table_id) WHERE namespace_id IS NULL"
            " DO UPDATE SET mask = excluded.mask"
        ),
        lambda row: execute(
            f"MERGE INTO catalog_grant g USING (VALUES ({row.pk})) v (id) ON g.id = v.id"
            " WHEN MATCHED THEN DELETE"
        ),
        lambda row: execute(
            f"WITH moved AS (UPDATE catalog_grant SET principal_id = {make_other().pk} RETURNING id)"
            " SELECT count(*) FROM moved"
        ),
        lambda row: execute("TRUNCATE catalog_grant"),
    ):
        Grant.objects.all().delete()
        granted = grant(row, table=table)
        actor = warm(row)
        revoke(granted)
        assert not may_read(actor)


def make_other():
    return Row.objects.get_or_create(name="other", kind="service")[0]


def execute(text):
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(text)


def test_a_session_without_ordinary_triggers_also_changes_the_version(table, row):
    """As a restore of data alone, or logical replication."""
    grant(row, table=table)
    actor = warm(row)
    execute("SET LOCAL session_replication_role = replica")
    try:
        Grant.objects.all().delete()
    finally:
        execute("SET LOCAL session_replication_role = origin")
    assert not may_read(actor)


def test_a_revocation_that_is_rolled_back_does_not_count(table, row):
    granted = grant(row, table=table)
    actor = warm(row)
    before = GrantVersion.objects.get().version
    with transaction.atomic():
        granted.delete()
        assert not may_read(actor)
        assert not may_read(actor)
        transaction.set_rollback(True)
    assert may_read(actor)
    assert GrantVersion.objects.get().version == before
    Grant.objects.all().delete()
    assert not may_read(actor)


def test_statements_that_change_no_grant_keep_the_version(table, row):
    grant(row, table=table)
    before = GrantVersion.objects.get().version
    Grant.objects.filter(mask=Privilege.ALL.value).delete()
    Grant.objects.filter(mask=Privilege.ALL.value).update(mask=F("mask"))
    make_table("sales", "more")
    assert GrantVersion.objects.get().version == before


def test_owners_are_read_with_each_request(table, row):
    grant(row, namespace=make_namespace("other"))
    Table.objects.update(owner="etl")
    actor = warm(row)
    Table.objects.update(owner="")
    assert not may_read(actor)
    Namespace.objects.filter(name="sales").update(owner="etl")
    assert describe(actor).held == Privilege.ALL
    Namespace.objects.filter(name="sales").update(owner="another")
    assert not may_read(actor)


def test_a_group_that_is_left_does_not_count(table, row):
    group = Row.objects.create(name="group:readers", kind="group")
    row.groups.add(group)
    grant(group, table=table)
    warm(row)
    row.groups.remove(group)
    assert not may_read(access.of_row(row))


def test_a_table_of_the_same_name_has_no_grants_of_its_predecessor(table, row):
    grant(row, table=table)
    actor = warm(row)
    Table.objects.filter(pk=table.pk).update(state="dropped", dropped_at=timezone.now())
    make_table(*TABLE)
    assert not may_read(actor)


def test_more_grants_than_the_cache_takes(table, row, monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(cached_grants, "_MOST_GRANTS", 2)
    for name in ("a", "b"):
        grant(row, namespace=make_namespace(name))
    granted = grant(row, table=table)
    actor = access.of_row(row)
    for statements in (4, 2, 2):  # the first request also counts the grants
        with django_assert_num_queries(statements):
            assert may_read(actor)
    granted.delete()
    assert not may_read(actor)


def test_the_cache_is_bounded(table, row):
    cache = cached_grants.GrantCache(limit=10)
    grant(row, table=table)
    version, now = GrantVersion.objects.get().version, time.time()
    for number in range(100):
        ids = (row.pk, -number - 1)
        assert cache.at(ids, version, now).tables == {table.pk: READ_ONLY.value}
        assert cache._size == sum(
            len(ids) + len(grants.tables) for ids, grants in cache._entries.items()
        )
        assert cache._size <= 10
    Grant.objects.update(mask=F("mask"))  # the version changes
    before = cache._size
    cache.at(ids, GrantVersion.objects.get().version, now)
    assert cache._size == before
    cache.clear()
    assert (cache._size, cache._entries) == (0, {})


def test_a_catalog_without_a_version_caches_nothing(table, row):
    grant(row, table=table)
    GrantVersion.objects.all().delete()
    actor = access.of_row(row)
    assert all(may_read(actor) for _ in range(4))
    Grant.objects.all().delete()  # also writes the version again
    assert not may_read(actor)
    assert GrantVersion.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_grant_stops_when_it_expires(table, row):
    """PostgreSQL's clock decides, although nothing changes the grant."""
    ends_at = timezone.now() + timedelta(seconds=3)
    Grant.objects.create(principal=row, table=table, mask=READ_ONLY.value, expires_at=ends_at)
    actor = warm(row)
    version = GrantVersion.objects.get().version
    while may_read(actor):
        assert timezone.now() < ends_at + timedelta(seconds=1)
        time.sleep(0.02)
    assert timezone.now() > ends_at - timedelta(seconds=1)
    assert GrantVersion.objects.get().version == version


@pytest.mark.django_db(transaction=True)
def test_a_revocation_counts_when_it_is_committed(table, row):
    granted = grant(row, table=table)
    other = grant(Row.objects.create(name="other", kind="service"), table=table)
    actor = warm(row)
    is_revoked, may_commit = threading.Event(), threading.Event()

    def revoke():
        try:
            with transaction.atomic():
                granted.delete()
                is_revoked.set()
                assert may_commit.wait(20)
        finally:
            connection.close()

    thread = threading.Thread(target=revoke)
    thread.start()
    try:
        assert is_revoked.wait(20)
        cached_grants.cache.clear()
        actor = warm(row)  # caches the grants while another transaction revokes one
    finally:
        may_commit.set()
        thread.join(20)
    assert not may_read(actor)
    assert not may_read(actor)
    other.delete()
    assert Table.objects.named(TABLE).get().digest == digest(TABLE)
