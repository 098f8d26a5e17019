"""Columns of a table that are read together with what decides about access to it."""

import pytest

from catalog import access
from catalog.access import SYSTEM, On
from catalog.access.cached_grants import cache
from catalog.access.reading import TableRead
from catalog.errors import NamespaceNotFound
from catalog.identifiers import digest
from catalog.models import Grant, Principal, Table, TableState
from catalog.postgresql.cursors import hot_cursor
from catalog.privileges import NOTHING, READ_ONLY, Privilege
from tests.factories import make_root, make_table

NAME = ("sales", "orders")
VALUES = {"digest": digest(NAME)}


def row_of(read: TableRead, actor: access.Principal) -> tuple | None:
    """The row that the pipeline of the event loop would read for the actor."""
    text = read._text if actor.holds_everywhere(Privilege.READ) else read._text_with_facts
    cursor = hot_cursor()
    cursor.execute(text, VALUES)
    return cursor.fetchone()


def test_a_table_is_read_by_those_who_may(db):
    make_root()
    table = make_table(*NAME)
    row = Principal.objects.create(name="etl", kind="service")
    actor = access.of_row(row)
    read = TableRead(
        "t.name, n2.path[1]", join="JOIN catalog_namespace n2 ON n2.id = t.namespace_id"
    )
    on = On.table(NAME)

    def fetch(actor: access.Principal, read: TableRead = read):
        return read.fetch(actor, Privilege.READ, on, VALUES)

    expected = ("orders", "sales")
    assert fetch(SYSTEM) == (Privilege.ALL, expected)
    assert TableRead.permitted(SYSTEM, Privilege.READ, expected) == expected
    with pytest.raises(NamespaceNotFound):
        fetch(actor)
    assert TableRead.permitted(actor, Privilege.READ, row_of(read, actor)) is None
    Grant.objects.create(principal=row, table=table, mask=READ_ONLY.value)
    assert [fetch(actor) for _ in range(2)] == [(READ_ONLY, expected)] * 2
    present = row_of(read, actor)
    assert TableRead.permitted(actor, Privilege.READ, present) == expected
    for privilege in (Privilege.WRITE, Privilege.WRITE | Privilege.READ):
        assert TableRead.permitted(actor, privilege, present) is None
    assert TableRead.permitted(actor, Privilege.READ, None) is None
    cache.clear()  # only a thread reads grants
    assert TableRead.permitted(actor, Privilege.READ, present) is None
    assert TableRead.permitted(access.Principal("x", NOTHING), Privilege.READ, None) is None


def test_only_the_table_with_the_name_and_the_condition_is_read(db):
    make_root()
    table = make_table(*NAME)
    make_table("sales", "others")
    for is_binary in (False, True):
        for condition, expected in (("t.name = 'orders'", ("orders",)), ("t.name = 'x'", None)):
            read = TableRead("t.name", condition=condition, is_binary=is_binary)
            result = read.fetch(SYSTEM, Privilege.READ, On.table(NAME), VALUES)
            assert result == (Privilege.ALL, expected)
    Table.objects.filter(pk=table.pk).update(state=TableState.DROPPED, dropped_at=table.created_at)
    assert TableRead("t.name").fetch(SYSTEM, Privilege.READ, On.table(NAME), VALUES)[1] is None
