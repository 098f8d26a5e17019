"""The tables and namespaces that a principal may read, and the conditions of lists."""

from dataclasses import replace

import pytest
from django.utils import timezone

from catalog import access
from catalog.access import Principal
from catalog.models import Grant, Job, Namespace, Table, TableState
from catalog.models import Principal as Row
from catalog.privileges import NOTHING, READ_ONLY, Privilege
from tests.factories import make_namespace, make_root, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def tables():
    """Three tables in two namespaces, by name."""
    make_root()
    make_namespace("empty")
    return {path[-1]: make_table(*path) for path in (("a", "t1"), ("a", "t2"), ("b", "t3"))}


@pytest.fixture
def actor(tables):
    """A principal that may read t1 and browse t2."""
    row = Row.objects.create(name="etl", kind="service")
    Grant.objects.create(principal=row, table=tables["t1"], mask=READ_ONLY.value)
    Grant.objects.create(principal=row, table=tables["t2"], mask=Privilege.BROWSE.value)
    return access.of_row(row)


def names(tables, keys):
    return {name for name, row in tables.items() if row.pk in keys}


def readable(tables, actor):
    return names(tables, access.readable_tables(actor, [row.pk for row in tables.values()]))


def namespaces():
    return {row.name: row for row in Namespace.objects.exclude(name="")}


def readable_namespaces(actor):
    pks = [row.pk for row in namespaces().values()]
    return names(namespaces(), access.readable_namespaces(actor, pks))


def test_tables_are_readable_by_grant_ownership_level_and_job(tables, actor):
    assert readable(tables, actor) == {"t1"}
    assert readable(tables, replace(actor, tables=(tables["t3"].pk, 10**6))) == {"t1", "t3"}
    assert readable(tables, replace(actor, everywhere=READ_ONLY)) == {"t1", "t2", "t3"}
    Table.objects.filter(name="t2").update(owner="etl")
    assert readable(tables, actor) == {"t1", "t2"}
    assert access.readable_tables(actor, []) == set()


def test_a_key_limits_the_readable_tables(tables, actor):
    scoped = replace(actor, ceiling=Privilege.BROWSE)
    assert readable(tables, scoped) == set()
    assert readable(tables, replace(scoped, tables=(tables["t3"].pk,))) == {"t3"}
    a, b = (namespaces()[name].pk for name in "ab")
    assert readable(tables, replace(actor, within=a)) == {"t1"}
    assert readable(tables, replace(actor, within=b)) == set()
    assert readable(tables, replace(actor, within=b, everywhere=READ_ONLY)) == {"t3"}


def test_namespaces_are_readable_by_grant_and_level(tables, actor):
    assert readable_namespaces(actor) == set()
    assert readable_namespaces(replace(actor, everywhere=READ_ONLY)) == {"a", "b", "empty"}
    a, b = (namespaces()[name] for name in "ab")
    Grant.objects.create(principal_id=actor.ids[0], namespace=a, mask=READ_ONLY.value)
    Grant.objects.create(principal_id=actor.ids[0], namespace=b, mask=Privilege.BROWSE.value)
    assert readable_namespaces(actor) == {"a"}
    assert readable_namespaces(replace(actor, ceiling=Privilege.BROWSE)) == set()
    assert readable_namespaces(replace(actor, within=b.pk)) == set()
    assert readable_namespaces(replace(actor, within=b.pk, everywhere=READ_ONLY)) == {"b"}
    assert access.readable_namespaces(actor, []) == set()


def listed(actor):
    """The names of the tables, jobs and namespaces in the lists of a principal."""
    return (
        set(Table.objects.filter(access.visible_tables(actor)).values_list("name", flat=True)),
        set(
            Job.objects.filter(access.visible_tables(actor, "table__")).values_list(
                "table__name", flat=True
            )
        ),
        set(
            Namespace.objects.filter(access.visible_namespaces(actor))
            .exclude(name="")
            .values_list("name", flat=True)
        ),
    )


def test_lists_contain_only_objects_that_may_be_browsed(tables, actor):
    for row in tables.values():
        Job.objects.create(kind="compact", table=row)
    assert listed(actor) == ({"t1", "t2"}, {"t1", "t2"}, {"a"})
    every = {"t1", "t2", "t3"}
    reader = replace(actor, everywhere=READ_ONLY)
    assert listed(reader) == (every, every, {"a", "b", "empty"})
    job = replace(actor, tables=(tables["t3"].pk,))
    assert listed(job) == (every, every, {"a", "b"})
    a, b = (namespaces()[name].pk for name in "ab")
    assert listed(replace(actor, within=a)) == ({"t1", "t2"}, {"t1", "t2"}, {"a"})
    assert listed(replace(actor, within=b)) == (set(), set(), {"b"})
    assert listed(replace(reader, within=b)) == ({"t3"}, {"t3"}, {"b"})
    powerless = replace(actor, ceiling=NOTHING)
    assert listed(powerless)[:2] == (set(), set())
    assert listed(replace(reader, ceiling=NOTHING))[:2] == (set(), set())


def test_the_content_of_a_namespace_is_visible_to_principals_that_may_browse_it(tables, actor):
    def contents(actor):
        rows = Table.objects.filter(access.visible_contents(actor))
        return set(rows.values_list("name", flat=True))

    assert contents(actor) == set()  # the principal may only traverse the namespace
    a, b = (namespaces()[name] for name in "ab")
    Grant.objects.create(principal_id=actor.ids[0], namespace=a, mask=Privilege.BROWSE.value)
    assert contents(actor) == {"t1", "t2"}
    assert contents(replace(actor, ceiling=NOTHING)) == set()
    assert contents(replace(actor, within=a.pk)) == {"t1", "t2"}
    assert contents(replace(actor, within=b.pk)) == set()
    everyone = Principal("reader", READ_ONLY)
    assert contents(everyone) == {"t1", "t2", "t3"}
    assert contents(replace(everyone, within=b.pk)) == {"t3"}
    in_namespaces = Namespace.objects.filter(access.visible_contents(actor, ""))
    assert set(in_namespaces.values_list("name", flat=True)) == {"a"}


def test_few_visible_tables_are_all_or_none(tables, actor):
    visible = sorted(tables[name].pk for name in ("t1", "t2"))
    assert access.few_visible_tables(actor, 3) == visible
    assert access.few_visible_tables(actor, 2) == visible
    assert access.few_visible_tables(actor, 1) is None
    assert access.few_visible_tables(replace(actor, everywhere=READ_ONLY), 9) is None
    t3 = tables["t3"]
    Table.objects.filter(pk=t3.pk).update(
        owner="etl", state=TableState.DROPPED, dropped_at=timezone.now()
    )
    assert access.few_visible_tables(actor, 9) == visible
    assert access.few_visible_tables(actor, 9, with_dropped=True) == sorted([*visible, t3.pk])


def test_the_sources_of_visibility(tables, actor):
    b = namespaces()["b"]
    Grant.objects.create(principal_id=actor.ids[0], namespace=b, mask=Privilege.BROWSE.value)
    sources = access.visible_sources(replace(actor, within=b.pk), 9)
    assert (sources.is_everything, list(sources.namespaces), sources.within) == (
        False,
        [b.pk],
        b.pk,
    )
    assert sources.owners == ["etl"]
    assert sorted(sources.tables) == sorted(tables[name].pk for name in ("t1", "t2"))
    assert len(access.visible_sources(actor, 1).tables) == 1
    everything = access.visible_sources(Principal("reader", READ_ONLY, within=b.pk), 9)
    assert (everything.is_everything, everything.within) == (True, b.pk)
    assert access.visible_sources(replace(actor, ceiling=NOTHING), 9) is None


def test_no_statement_finds_what_a_reader_of_everything_may_read(db, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert access.readable_namespaces(access.SYSTEM, [7, 8]) == {7, 8}
        assert access.readable_namespaces(Principal("ada", NOTHING), []) == set()
