"""The command ``manage.py undrop``."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from catalog.access import SYSTEM
from catalog.models import Namespace, Table, TrashItem
from catalog.services.engine.commit import commit
from catalog.services.tables import namespace_operations, table_operations
from tests.factories import make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, settings):
    settings.MONODON_TRASH_SECONDS = 3600
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


def undrop(*args: str) -> str:
    out = StringIO()
    call_command("undrop", *args, stdout=out)
    return out.getvalue()


def test_dropped_tables_are_listed_and_undropped():
    assert undrop() == "The trash is empty.\n"
    table = make_table("ws", "t")
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    item = TrashItem.objects.get()
    listed = undrop()
    assert listed.split()[:4] == [str(item.pk), "table", "ws.t", "waiting"]
    assert "by system, purged at" in listed
    assert undrop("ws$t") == "Restored 'ws.t'.\n"
    assert Table.objects.present().get() == table


def test_an_item_is_undropped_by_number_with_another_name():
    first, second = make_table("ws", "t"), None
    commit([table_operations.DropTable(table=("ws", "t"))], actor=SYSTEM)
    item = TrashItem.objects.get()
    second = make_table("ws", "t")
    commit([table_operations.DeregisterTable(table=("ws", "t"))], actor=SYSTEM)
    assert undrop("--item", str(item.pk), "--as", "ws$u") == "Restored 'ws.u'.\n"
    assert Table.objects.named(("ws", "u")).get() == first
    undrop("ws$t")
    assert Table.objects.named(("ws", "t")).get() == second


def test_a_namespace_is_undropped():
    make_table("a", "b", "t")
    commit([namespace_operations.DropNamespace(namespace=("a", "b"), cascade=True)], actor=SYSTEM)
    commit([namespace_operations.DropNamespace(namespace=("a",))], actor=SYSTEM)
    with pytest.raises(CommandError, match="with_parents"), unchanged():
        undrop("a$b", "--namespace")
    assert undrop("a$b", "--namespace", "--with-parents") == "Restored 'a.b'.\n"
    assert Namespace.objects.live().count() == 3


def test_missing_items_are_refused():
    with pytest.raises(CommandError, match=r"Trash item 'ws\.t' does not exist"), unchanged():
        undrop("ws$t")
