"""A table that is restored from the trash shares no directory with tables and namespaces that came since."""

from typing import Any

import pytest

from catalog import access
from catalog.access import SYSTEM, Principal
from catalog.errors import LocationTaken
from catalog.models import Grant, Namespace, PrincipalLevel, Table, TableState, TrashItem
from catalog.privileges import Privilege, closure
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg import views as iceberg_views
from catalog.services.lance import queries as lance_queries
from catalog.services.lance.ledger import registration_operations
from catalog.services.recovery import undrop as recovery_undrop
from catalog.services.storage.file_owners import Belonging
from catalog.services.storage.table_files import TableFiles
from catalog.services.tables import namespace_operations, table_operations
from tests.api.iceberg.test_views import make_view
from tests.factories import make_iceberg_table, make_lance_table, unchanged
from tests.security.foreign import write_table

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]

DAY = 86_400
DROPS = ("kept", "stopped", "stopped, then requested")


@pytest.fixture(autouse=True)
def _retention(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.MONODON_TRASH_SECONDS = 7 * DAY
    monkeypatch.setattr("celery.current_app.send_task", lambda *args, **options: None)


def drop(*table: str, purge: bool) -> TrashItem:
    if purge:
        operation: Any = table_operations.DropTable(table=table, format=_format(table))
    else:
        operation = table_operations.DeregisterTable(table=table, format=_format(table))
    commit([operation], actor=SYSTEM)
    return TrashItem.objects.latest("pk")


def _format(table: tuple[str, ...]) -> Any:
    return Table.objects.named(table).get().format


def drop_as(how: str, *table: str) -> TrashItem:
    item = drop(*table, purge=how != "kept")
    if how != "kept":
        recovery_undrop.stop_purge(actor=SYSTEM, item=item.pk)
    return item


def before_undrop(how: str, item: TrashItem) -> None:
    if how == "stopped, then requested":
        recovery_undrop.purge_now(actor=SYSTEM, item=item.pk)


def require_refused(item: TrashItem, actor: Principal = SYSTEM) -> None:
    with unchanged(), pytest.raises(LocationTaken):
        recovery_undrop.undrop(actor=actor, item=item.pk)
    assert Table.objects.get(pk=item.table_id).state == TableState.DROPPED


def manager(name: str, *namespaces: str) -> Principal:
    key, _ = api_keys.create_api_key(actor=SYSTEM, name=name, level=PrincipalLevel.GRANTED)
    for namespace in namespaces:
        row = Namespace.objects.named((namespace,)).get()
        mask = int(closure(Privilege.MANAGE | Privilege.CREATE))
        Grant.objects.create(principal=key.principal, mask=mask, namespace=row)
    principal = access.named(name)
    assert principal is not None
    return principal


@pytest.mark.parametrize("how", DROPS)
@pytest.mark.parametrize("inside", ["", "/data"])
def test_a_path_in_the_location_prevents_it(warehouse, how, inside):
    """Otherwise the files of the restored table would belong to the table with the path."""
    location = f"{warehouse}/table"
    data = write_table("ws", "t", location=location).data
    item = drop_as(how, "ws", "t")
    other = make_iceberg_table("ws", "u", properties={"write.data.path": f"{location}{inside}"})
    before_undrop(how, item)
    require_refused(item)
    owner = TableFiles(other).classify([str(data)])[str(data)]
    assert owner.belonging == Belonging.OTHER


@pytest.mark.parametrize("how", DROPS)
def test_a_lance_table_at_the_location_prevents_it(how):
    table = make_lance_table(("ws", "t"))
    item = drop_as(how, "ws", "t")
    register = registration_operations.RegisterTable(table=("ws", "u"), location=table.location)
    commit([register], actor=SYSTEM)
    before_undrop(how, item)
    require_refused(item)
    assert lance_queries.count_rows(actor=SYSTEM, table=("ws", "u")) == 3


@pytest.mark.parametrize("how", DROPS)
def test_an_iceberg_table_at_the_location_prevents_it(how):
    table = make_iceberg_table("ws", "t")
    item = drop_as(how, "ws", "t")
    iceberg_commits.register_table(
        actor=SYSTEM, table=("ws", "u"), metadata_location=table.metadata_location
    )
    before_undrop(how, item)
    require_refused(item)
    iceberg_tables.load_table(actor=SYSTEM, table=("ws", "u"))


@pytest.mark.parametrize("how", DROPS)
@pytest.mark.parametrize("kind", ["lance", "iceberg"])
@pytest.mark.parametrize("inside", ["", "/n"])
def test_a_namespace_with_a_location_there_prevents_it(kind, how, inside):
    """Otherwise nobody could create tables in the namespace. A table that waits for its purge prevents such a location."""
    make = make_lance_table if kind == "lance" else lambda name: make_iceberg_table(*name)
    location = make(("ws", "t")).location
    item = drop_as(how, "ws", "t")
    create = namespace_operations.CreateNamespace(
        namespace=("n",), properties={"location": f"file://{location}{inside}"}
    )
    commit([create], actor=SYSTEM)
    before_undrop(how, item)
    require_refused(item)
    commit([namespace_operations.DropNamespace(namespace=("n",))], actor=SYSTEM)
    recovery_undrop.undrop(actor=SYSTEM, item=item.pk)


@pytest.mark.parametrize("purge", [True, False])
@pytest.mark.parametrize("inside", ["", "/sub"])
def test_a_path_of_both_requires_the_right_to_manage_both(warehouse, purge, inside):
    """Otherwise readers of the other table could no longer read it."""
    shared = f"{warehouse}/shared"
    make_iceberg_table("ws", "t", properties={"write.data.path": shared})
    item = drop("ws", "t", purge=purge)
    make_iceberg_table("other", "u", properties={"write.data.path": f"{shared}{inside}"})
    require_refused(item, manager("one", "ws"))
    recovery_undrop.undrop(actor=manager("both", "ws", "other"), item=item.pk)


def test_a_path_that_was_shared_before_the_drop_does_not_prevent_it(warehouse):
    shared = f"{warehouse}/shared"
    make_iceberg_table("ws", "t", properties={"write.data.path": shared})
    make_iceberg_table("other", "u", properties={"write.data.path": shared})
    make_iceberg_table("other", "v", properties={"write.data.path": f"{warehouse}/around/v"})
    make_iceberg_table("ws", "w", location=f"{warehouse}/around")
    one = manager("one", "ws")
    for name in ("t", "w"):
        item = drop("ws", name, purge=False)
        recovery_undrop.undrop(actor=one, item=item.pk)


def test_a_path_in_the_location_of_a_dropped_view_prevents_it():
    make_view("ws", "v")
    iceberg_views.drop_view(actor=SYSTEM, view=("ws", "v"))
    item = TrashItem.objects.latest("pk")
    location = Table.objects.get(pk=item.table_id).location
    make_iceberg_table("ws", "u", properties={"write.data.path": f"{location}/metadata"})
    require_refused(item)


@pytest.mark.parametrize("purge", [True, False])
@pytest.mark.parametrize("at", ["shared", "shared/sub", "around"])
def test_a_table_at_a_path_requires_the_right_to_manage_both(warehouse, purge, at):
    """Otherwise readers of the other table could no longer read files at its own location."""
    paths = {
        "write.data.path": f"{warehouse}/shared",
        "write.metadata.path": f"{warehouse}/around/sub",
    }
    make_iceberg_table("ws", "t", properties=paths)
    item = drop("ws", "t", purge=purge)
    make_iceberg_table("other", "u", location=f"{warehouse}/{at}")
    require_refused(item, manager("one", "ws"))
    if purge:
        recovery_undrop.undrop(actor=manager("both", "ws", "other"), item=item.pk)
