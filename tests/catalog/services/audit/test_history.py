"""History of the catalog: random changes, with a snapshot of the state after each."""

import random
import uuid
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import access
from catalog import history as h
from catalog.access import SYSTEM
from catalog.errors import CatalogError, InvalidInput, NamespaceNotFound, TransactionNotFound
from catalog.identifiers import Identifier, digest
from catalog.models import (
    AuditEvent,
    Grant,
    Namespace,
    Principal,
    Table,
    TableFormat,
    TableState,
    TableVersion,
    TrashItem,
)
from catalog.privileges import Privilege
from catalog.services.audit import history, history_queries, history_statements
from catalog.services.engine import audit_records
from catalog.services.engine.commit import commit
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import views as iceberg_views
from catalog.services.iceberg.changes import TableChange
from catalog.services.lance.ledger import registration_operations, version_operations
from catalog.services.lance.refs import ref_operations
from catalog.services.recovery import undrop_operations
from catalog.services.tables import namespace_operations, table_operations
from tests.api.iceberg.test_views import make_view
from tests.factories import (
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    make_version,
    unchanged,
)

pytestmark = pytest.mark.django_db(transaction=True)

Picture = tuple[dict[int, Identifier], dict[int, tuple[Identifier, dict[str, tuple[int, str]]]]]


@pytest.fixture(autouse=True)
def _catalog(transactional_db, settings):
    settings.MONODON_TRASH_SECONDS = 3600
    make_root()


def now() -> datetime:
    """The current time of the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def present() -> Picture:
    """The current state, read row by row without the service."""
    namespaces = {
        row.pk: tuple(row.path)
        for row in Namespace.objects.filter(dropped_at=None).exclude(parent=None)
    }
    tables = {}
    for row in Table.objects.exclude(state=TableState.DROPPED).select_related("namespace"):
        newest: dict[str, tuple[int, str]] = {}
        for version in row.versions.filter(deleted_at=None).order_by("version"):
            newest[version.branch] = (version.version, version.manifest_path)
        tables[row.pk] = ((*row.namespace.path, row.name), newest)
    return namespaces, tables


def pages(at: history.Moment, namespace: Identifier = (), *, limit: int = 3) -> list[Any]:
    items, token = [], None
    while True:
        page = history.catalog_at(
            actor=SYSTEM, moment=at, namespace=namespace, limit=limit, page_token=token
        )
        assert len(page.namespaces) + len(page.tables) <= limit
        items.append(page)
        token = page.next_page
        if token is None:
            return items


def state(at: history.Moment, namespace: Identifier = (), *, limit: int = 3) -> Picture:
    """The state from the service, in small pages, which must not overlap."""
    result = pages(at, namespace, limit=limit)
    namespaces = [row for page in result for row in page.namespaces]
    tables = [row for page in result for row in page.tables]
    by_id = {
        row.id: (
            row.identifier,
            {b.branch: (b.version, b.metadata_location) for b in row.branches},
        )
        for row in tables
    }
    assert len(by_id) == len(tables)
    assert len({row.id for row in namespaces}) == len(namespaces)
    return {row.id: row.identifier for row in namespaces}, by_id


def changes(
    since: history.Moment, until: history.Moment, namespace: Identifier = (), *, limit: int = 3
) -> tuple[dict[int, h.NamespaceChange], dict[int, h.TableChange]]:
    namespaces, tables, token = [], [], None
    while True:
        page = history.changes_between(
            actor=SYSTEM,
            since=since,
            until=until,
            namespace=namespace,
            limit=limit,
            page_token=token,
        )
        assert len(page.namespaces) + len(page.tables) <= limit
        namespaces += page.namespaces
        tables += page.tables
        token = page.next_page
        if token is None:
            break
    assert len({row.id for row in namespaces}) == len(namespaces)
    assert len({row.id for row in tables}) == len(tables)
    return {row.id: row for row in namespaces}, {row.id: row for row in tables}


def inside(picture: Picture, namespace: Identifier) -> Picture:
    namespaces, tables = picture
    size = len(namespace)
    return (
        {pk: path for pk, path in namespaces.items() if path[:size] == namespace},
        {
            pk: row
            for pk, row in tables.items()
            if len(row[0]) > size and row[0][:size] == namespace
        },
    )


def undrop(table: Table, *, records_before: bool = False, new: Identifier | None = None) -> None:
    """Restore a table. With ``records_before`` the event contains the state before, which avoids a
    query."""
    item = TrashItem.objects.get(table=table)
    if not records_before:
        commit([undrop_operations.UndropTable(item=item.pk, new=new)], actor=SYSTEM)
        return
    dropped = Table.objects.select_related("namespace").get(pk=table.pk)
    before = {"dropped_at": dropped.dropped_at.isoformat(), "name": str(dropped)}
    if new is not None:
        dropped.namespace = Namespace.objects.named(new[:-1]).get()
        dropped.name, dropped.digest = new[-1], digest(new)
    dropped.state = TableState.LIVE if dropped.versions.exists() else TableState.DECLARED
    dropped.dropped_at = None
    dropped.save()
    item.delete()
    audit_records.record(SYSTEM, "table.undrop", str(dropped), table=dropped, before=before)


# --- random changes ---------------------------------------------------------------------------------


class World:
    """Random changes through the engine. Each step records its time, the state and its kind."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.moments: list[datetime] = [now()]
        self.pictures: list[Picture] = [present()]
        self.properties: list[dict[int, dict[str, str]]] = [self._properties()]
        self.commits: list[tuple[int, int, str]] = []
        """The step, the table and the branch of each version."""
        self.counts: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        kinds = {
            "create_namespace": 4,
            "overwrite_namespace": 1,
            "drop_namespace": 2,
            "set_properties": 2,
            "declare": 6,
            "drop": 2,
            "replace": 2,
            "rename": 5,
            "version": 12,
            "branch": 3,
            "several": 3,
            "delete_versions": 3,
            "delete_branch": 2,
            "undrop": 2,
            "undrop_with_parents": 2,
            "undrop_namespace": 3,
        }
        while len(self.moments) <= steps:
            kind = self.random.choices(list(kinds), list(kinds.values()))[0]
            try:
                if getattr(self, f"_{kind}")() is False:
                    continue
            except CatalogError:
                continue
            self.counts[kind] += 1
            self.moments.append(now())
            self.pictures.append(present())
            self.properties.append(self._properties())

    @staticmethod
    def _properties() -> dict[int, dict[str, str]]:
        return dict(Namespace.objects.filter(dropped_at=None).values_list("pk", "properties"))

    def _namespace(self) -> Identifier:
        return self.random.choice([(), *self.pictures[-1][0].values()])

    def _table(self) -> tuple[int, Identifier] | None:
        tables = self.pictures[-1][1]
        if not tables:
            return None
        pk = self.random.choice(list(tables))
        return pk, tables[pk][0]

    def _create_namespace(self) -> None:
        # Some names have dots, which the trail cannot distinguish from paths.
        name = self.random.choice(["a", "b", "c", "d.e"])
        path = (*self._namespace(), name)
        if len(path) <= 3:
            commit(
                [namespace_operations.CreateNamespace(namespace=path, properties={"k": "0"})],
                actor=SYSTEM,
            )

    def _overwrite_namespace(self) -> bool | None:
        path = self._namespace()
        if len(path) < 2:
            return False
        create = namespace_operations.CreateNamespace(
            namespace=path, mode=namespace_operations.CreateMode.OVERWRITE
        )
        commit([create], actor=SYSTEM)
        return None

    def _drop_namespace(self) -> None:
        commit(
            [namespace_operations.DropNamespace(namespace=self._namespace(), cascade=True)],
            actor=SYSTEM,
        )

    def _set_properties(self) -> None:
        updates = {"k": str(self.random.randrange(3))}
        operation = namespace_operations.UpdateNamespaceProperties(
            namespace=self._namespace(), updates=updates
        )
        commit([operation], actor=SYSTEM)

    def _declare(self) -> None:
        name = self.random.choice(["t", "u", "v", "w"])
        commit(
            [registration_operations.DeclareTable(table=(*self._namespace(), name))], actor=SYSTEM
        )

    def _drop(self) -> bool | None:
        table = self._table()
        if table is None:
            return False
        kind = self.random.choice([table_operations.DeregisterTable, table_operations.DropTable])
        commit([kind(table=table[1])], actor=SYSTEM)
        return None

    def _replace(self) -> bool | None:
        table = self._table()
        if table is None:
            return False
        register = registration_operations.RegisterTable(
            table=table[1], location=f"replaced/{uuid.uuid4()}", overwrite=True
        )
        commit([register], actor=SYSTEM)
        return None

    def _rename(self) -> bool | None:
        table = self._table()
        if table is None:
            return False
        new = (*self._namespace(), self.random.choice(["t", "u", "x", "y"]))
        commit([table_operations.RenameTable(table=table[1], new=new)], actor=SYSTEM)
        return None

    def _enter(
        self, pk: int, identifier: Identifier, branch: str
    ) -> version_operations.CreateVersion:
        used = set(
            TableVersion.objects.filter(table=pk, branch=branch).values_list("version", flat=True)
        )
        number = self.random.choice([n for n in range(1, len(used) + 4) if n not in used])
        self.commits.append((len(self.moments), pk, branch))
        return version_operations.CreateVersion(
            table=identifier,
            version=number,
            branch=branch,
            manifest_path=f"elsewhere/{uuid.uuid4()}.manifest",
        )

    def _version(self) -> bool | None:
        table = self._table()
        if table is None:
            return False
        commit([self._enter(*table, "")], actor=SYSTEM)
        return None

    def _branch(self) -> bool | None:
        table = self._table()
        if table is None:
            return False
        commits = list(self.commits)
        try:
            commit([self._enter(*table, self.random.choice(["dev", "x/y"]))], actor=SYSTEM)
        except CatalogError:
            self.commits = commits
            raise
        return None

    def _several(self) -> bool | None:
        tables = self.pictures[-1][1]
        if len(tables) < 2:
            return False
        chosen = self.random.sample(list(tables), 2)
        commit([self._enter(pk, tables[pk][0], "") for pk in chosen], actor=SYSTEM)
        return None

    def _delete_versions(self) -> bool | None:
        table = self._table()
        if table is None:
            return False
        low = self.random.randrange(4)
        ranges = ((low, self.random.choice([low + 1, low + 2, -1])),)
        commit([version_operations.DeleteVersions(table=table[1], ranges=ranges)], actor=SYSTEM)
        return None

    def _delete_branch(self) -> bool | None:
        table = self._table()
        if table is None:
            return False
        commit([ref_operations.DeleteTableBranch(table=table[1], branch="dev")], actor=SYSTEM)
        return None

    def _undrop(self) -> bool | None:
        items = list(TrashItem.objects.filter(table__isnull=False).select_related("table"))
        if not items:
            return False
        table = self.random.choice(items).table
        records_before = self.random.random() < 0.5 and table.namespace.dropped_at is None
        new = (*self._namespace(), "back") if self.random.random() < 0.5 else None
        names = {row[0] for row in self.pictures[-1][1].values()}
        if (new or table.identifier) in names:
            return False
        undrop(table, records_before=records_before, new=new)
        return None

    def _undrop_with_parents(self) -> bool | None:
        items = list(TrashItem.objects.filter(table__isnull=False))
        if not items:
            return False
        back = undrop_operations.UndropTable(item=self.random.choice(items).pk, with_parents=True)
        commit([back], actor=SYSTEM)
        return None

    def _undrop_namespace(self) -> bool | None:
        items = list(TrashItem.objects.filter(namespace__isnull=False))
        if not items:
            return False
        back = undrop_operations.UndropNamespace(
            item=self.random.choice(items).pk, with_parents=True
        )
        commit([back], actor=SYSTEM)
        return None

    # -- expected comparisons

    def compare(self, first: int, last: int) -> None:
        old_namespaces, old_tables = self.pictures[first]
        new_namespaces, new_tables = self.pictures[last]
        namespaces, tables = changes(self.moments[first], self.moments[last])
        self._compare_namespaces(first, last, namespaces)
        ids = old_tables.keys() | new_tables.keys()
        assert tables.keys() <= ids
        added, dropped, renamed = set(), set(), set()
        for pk in ids:
            old_name, old = old_tables.get(pk, (None, {}))
            new_name, new = new_tables.get(pk, (None, {}))
            expected = []
            if old_name is None:
                expected.append(h.Change.ADDED)
                added.add(pk)
            elif new_name is None:
                expected.append(h.Change.DROPPED)
                dropped.add(pk)
            elif old_name != new_name:
                expected.append(h.Change.RENAMED)
                renamed.add(pk)
            if old_name and new_name and old != new:
                expected.append(h.Change.ADVANCED)
            if not expected:
                assert pk not in tables
                continue
            change = tables[pk]
            assert (change.before, change.after) == (old_name, new_name)
            assert list(change.changes) == expected
            branches = {b.branch: (b.before, b.after) for b in change.branches}
            assert branches.keys() == {
                name for name in old.keys() | new.keys() if old.get(name) != new.get(name)
            }
            for name, (before, after) in branches.items():
                assert (before and (before.version, before.metadata_location)) == old.get(name)
                assert (after and (after.version, after.metadata_location)) == new.get(name)
            for branch_change in change.branches:
                assert branch_change.commits == sum(
                    first < number <= last and (table, branch) == (pk, branch_change.branch)
                    for number, table, branch in self.commits
                )
        counts = history.count_changes(
            actor=SYSTEM, since=self.moments[first], until=self.moments[last]
        )
        assert (counts.tables_added, counts.tables_dropped, counts.tables_renamed) == (
            len(added),
            len(dropped),
            len(renamed),
        )
        assert (counts.namespaces_added, counts.namespaces_dropped) == (
            len(new_namespaces.keys() - old_namespaces.keys()),
            len(old_namespaces.keys() - new_namespaces.keys()),
        )
        assert counts.commits == sum(
            first < number <= last and table in ids for number, table, _ in self.commits
        )

    def _compare_namespaces(
        self, first: int, last: int, changes: dict[int, h.NamespaceChange]
    ) -> None:
        old, new = self.pictures[first][0], self.pictures[last][0]
        for pk in old.keys() | new.keys():
            expected = []
            if pk not in old:
                expected = [h.Change.ADDED]
            elif pk not in new:
                expected = [h.Change.DROPPED]
            elif self.properties[first][pk] != self.properties[last][pk]:
                expected = [h.Change.PROPERTIES]
                assert changes[pk].properties == h.PropertyChange(
                    self.properties[first][pk], self.properties[last][pk]
                )
            assert list(changes[pk].changes if pk in changes else ()) == expected
        assert changes.keys() <= old.keys() | new.keys()


@pytest.mark.parametrize("seed", range(3))
def test_history_matches_the_state_recorded_after_each_change(seed, monkeypatch):
    world = World(seed)
    world.run(70)
    assert sum(world.counts.values()) == 70
    for moment, picture in zip(world.moments, world.pictures, strict=True):
        assert state(moment) == picture
    for _ in range(40):
        index = world.random.randrange(71)
        scope = world.random.choice([("a",), ("b",), ("a", "b"), ("d.e",)])
        if Namespace.objects.filter(path=list(scope)).exists():
            expected = inside(world.pictures[index], scope)
            assert state(world.moments[index], scope) == expected
    pairs = [sorted(world.random.choices(range(71), k=2)) for _ in range(40)]
    for first, last in [(0, 70), *pairs]:
        world.compare(first, last)
    # With many changes, the service walks the tables instead, a few at a time.
    monkeypatch.setattr(history_queries, "_NARROW", 1)
    monkeypatch.setattr(history_queries, "_EXAMINED", 4)
    for first, last in [(0, 70), *pairs[:15]]:
        world.compare(first, last)


# --- single changes ---------------------------------------------------------------------------------


def state_of(at: history.Moment, *name: str) -> h.TableState:
    (matching,) = [row for page in pages(at) for row in page.tables if row.identifier == name]
    return matching


def forget_the_trail() -> None:
    """The state after the trail's retention has passed."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE catalog_auditevent")


def test_history_falls_back_to_columns_without_the_trail():
    make_table("ws", "t")
    make_version(("ws", "t"), 1)
    moments, pictures = [now()], [present()]
    make_version(("ws", "t"), 2)
    moments.append(now())
    pictures.append(present())
    # Former releases allowed this.
    TableVersion.objects.filter(version=2).update(deleted_at=Now())
    moments.append(now())
    pictures.append(present())
    commit([namespace_operations.DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    moments.append(now())
    pictures.append(present())
    forget_the_trail()
    assert [state(moment) for moment in moments] == pictures
    _, advanced = changes(moments[0], moments[1])
    (change,) = advanced.values()
    assert (change.changes, change.actor) == ((h.Change.ADVANCED,), "system")
    (branch,) = change.branches
    assert (branch.before.version, branch.after.version, branch.commits) == (1, 2, 1)
    _, back = changes(moments[1], moments[2])  # found by its tombstone
    (branch,) = back[change.id].branches
    assert (branch.before.version, branch.after.version, branch.commits) == (2, 1, 0)
    namespaces, tables = changes(moments[2], moments[3])
    assert [row.changes for row in (*namespaces.values(), *tables.values())] == [
        (h.Change.DROPPED,),
        (h.Change.DROPPED,),
    ]


def test_a_transaction_id_identifies_a_moment():
    table = make_table("ws", "t")
    transactions = [
        commit(
            [
                version_operations.CreateVersion(
                    table=("ws", "t"), version=n, manifest_path=f"x/{n}.manifest"
                )
            ],
            actor=SYSTEM,
        ).transaction_id
        for n in (1, 2, 3)
    ]
    for number, moment in enumerate(transactions, 1):
        (branch,) = state_of(moment, "ws", "t").branches
        assert (branch.version, branch.transaction_id) == (number, moment)
        assert (branch.metadata_location, branch.actor) == (f"x/{number}.manifest", "system")
    _, tables = changes(transactions[0], transactions[2])
    (branch,) = tables[table.pk].branches
    assert (branch.branch, branch.before.version, branch.after.version, branch.commits) == (
        "",
        1,
        3,
        2,
    )


def test_history_shows_a_transaction_completely_or_not_at_all():
    make_namespace("a")
    make_namespace("b")
    make_table("a", "t")
    rename = table_operations.RenameTable(table=("a", "t"), new=("b", "u"))
    declare = registration_operations.DeclareTable(table=("a", "t"))
    enter = version_operations.CreateVersion(
        table=("b", "u"), version=1, manifest_path="x/1.manifest"
    )
    before = now()
    # A version is entered under the name that the table had when the commit began.
    make_version(("a", "t"), 7)
    transaction_id = commit([rename, declare], actor=SYSTEM).transaction_id
    assert state(transaction_id) == present()
    _, tables = changes(before, transaction_id)
    assert sorted(row.changes for row in tables.values()) == [
        (h.Change.ADDED,),
        (h.Change.RENAMED, h.Change.ADVANCED),
    ]
    commit([enter], actor=SYSTEM)
    assert {b.version for b in state_of(transaction_id, "b", "u").branches} == {7}


@pytest.mark.parametrize("records_before", [True, False])
def test_a_restored_table_is_absent_while_it_was_dropped(records_before):
    table = make_table("ws", "t")
    make_version(("ws", "t"), 1)
    moments = [now()]
    for _ in range(2):
        commit([table_operations.DeregisterTable(table=("ws", "t"))], actor=SYSTEM)
        moments.append(now())
        undrop(table, records_before=records_before)
        moments.append(now())
    presences = [table.pk in state(moment)[1] for moment in moments]
    assert presences == [True, False, True, False, True]
    _, tables = changes(moments[0], moments[1])
    assert tables[table.pk].changes == (h.Change.DROPPED,)
    assert tables[table.pk].after is None
    _, tables = changes(moments[1], moments[2])
    assert tables[table.pk].changes == (h.Change.ADDED,)
    assert changes(moments[0], moments[4]) == ({}, {})
    counts = history.count_changes(actor=SYSTEM, since=moments[0], until=moments[3])
    assert (counts.tables_dropped, counts.tables_added) == (1, 0)
    counts = history.count_changes(actor=SYSTEM, since=moments[3], until=moments[4])
    assert (counts.tables_dropped, counts.tables_added) == (0, 1)


@pytest.mark.parametrize("records_before", [True, False])
def test_history_keeps_the_old_name_of_a_table_restored_as_another(records_before):
    table = make_table("a", "t")
    make_namespace("b")
    moments, names = [now()], [("a", "t")]
    commit([table_operations.DropTable(table=("a", "t"))], actor=SYSTEM)
    undrop(table, records_before=records_before, new=("b", "u"))
    moments.append(now())
    names.append(("b", "u"))
    commit([table_operations.RenameTable(table=("b", "u"), new=("b", "v"))], actor=SYSTEM)
    moments.append(now())
    names.append(("b", "v"))
    assert [state(moment)[1][table.pk][0] for moment in moments] == names
    change = changes(moments[0], moments[1])[1][table.pk]
    assert (change.before, change.after, change.changes) == (*names[:2], (h.Change.RENAMED,))


def test_history_shows_the_present_name_if_the_old_namespace_is_unknown():
    table = make_table("a", "t")
    moment = now()
    audit_records.record(SYSTEM, "table.rename", "a.t", table=table, before={"name": "nowhere.t"})
    assert state(moment) == present()


def test_an_overwritten_table_is_replaced_in_history():
    first = make_namespace("ws")
    table = make_table("ws", "t")
    moment = now()
    create = namespace_operations.CreateNamespace(
        namespace=("ws",), mode=namespace_operations.CreateMode.OVERWRITE
    )
    commit([create], actor=SYSTEM)
    between = now()
    undropped = Namespace.objects.get(path=["ws"], dropped_at=None)
    undrop(table, records_before=False, new=("ws", "t"))
    assert (state(moment), state(now())) == (
        ({first.pk: ("ws",)}, {table.pk: (("ws", "t"), {})}),
        present(),
    )
    assert state(between) == ({undropped.pk: ("ws",)}, {})


def test_history_covers_renames_and_drops_of_views(warehouse):
    made = make_view("ns", "v")
    moments, names = [now()], [("ns", "v")]
    rename = iceberg_views.RenameView(table=("ns", "v"), new=("ns", "w"))
    commit([rename], actor=SYSTEM)
    moments.append(now())
    names.append(("ns", "w"))
    assert [(row.identifier, row.kind) for page in pages(moments[0]) for row in page.tables] == [
        (("ns", "v"), "view")
    ]
    assert [name for moment in moments for name, _ in state(moment)[1].values()] == names
    assert state_of(moments[0], "ns", "v").branches[0].metadata_location == made.metadata_location
    iceberg_views.drop_view(actor=SYSTEM, view=("ns", "w"))
    after_drop = now()
    assert state(after_drop)[1] == {}
    row = Table.objects.get(kind="view")
    undrop(row, records_before=False)
    assert (state(after_drop)[1], state(now())) == ({}, present())


def test_a_restored_namespace_is_absent_while_it_was_dropped():
    table = make_table("ws", "below", "t")
    ids = {row.pk for row in Namespace.objects.exclude(parent=None)}
    moments = [now()]
    commit([namespace_operations.DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    moments.append(now())
    item = TrashItem.objects.get(namespace__path=["ws"])
    commit([undrop_operations.UndropNamespace(item=item.pk)], actor=SYSTEM)
    moments.append(now())
    assert [set(state(moment)[0]) for moment in moments] == [ids, set(), ids]
    assert [set(state(moment)[1]) for moment in moments] == [{table.pk}, set(), {table.pk}]
    for first, last, change in ((0, 1, h.Change.DROPPED), (1, 2, h.Change.ADDED)):
        namespaces, tables = changes(moments[first], moments[last])
        assert {pk: row.changes for pk, row in namespaces.items()} == dict.fromkeys(ids, (change,))
        assert {pk: row.changes for pk, row in tables.items()} == {table.pk: (change,)}
    assert changes(moments[0], moments[2]) == ({}, {})
    counts = history.count_changes(actor=SYSTEM, since=moments[1], until=moments[2])
    assert (counts.namespaces_added, counts.namespaces_dropped, counts.tables_added) == (2, 0, 1)


def test_a_recreated_namespace_is_another_object(transactional_db):
    make_table("ws", "old")
    first = now()
    commit([namespace_operations.DropNamespace(namespace=("ws",), cascade=True)], actor=SYSTEM)
    make_table("ws", "new")
    last = now()
    # Its name identifies its content, whatever the rows.
    assert [name for name, _ in state(first, ("ws",))[1].values()] == [("ws", "old")]
    assert [name for name, _ in state(last, ("ws",))[1].values()] == [("ws", "new")]
    namespaces, tables = changes(first, last, ("ws",))
    assert sorted(row.changes[0] for row in namespaces.values()) == ["added", "dropped"]
    assert {(row.before, row.after) for row in tables.values()} == {
        (("ws", "old"), None),
        (None, ("ws", "new")),
    }


def test_history_covers_moves_between_namespaces():
    out, into, within = make_table("a", "out"), make_table("b", "in"), make_table("a", "t")
    first = now()
    for old, new in (
        (("a", "out"), ("b", "out")),
        (("b", "in"), ("a", "in")),
        (("a", "t"), ("a", "u")),
        (("a", "u"), ("a", "v")),
    ):
        commit([table_operations.RenameTable(table=old, new=new)], actor=SYSTEM)
    last = now()
    assert {name for name, _ in state(first, ("a",))[1].values()} == {("a", "out"), ("a", "t")}
    assert {name for name, _ in state(last, ("a",))[1].values()} == {("a", "in"), ("a", "v")}
    _, tables = changes(first, last, ("a",))
    assert {pk: (row.before, row.after, row.changes) for pk, row in tables.items()} == {
        out.pk: (("a", "out"), None, (h.Change.DROPPED,)),
        into.pk: (None, ("a", "in"), (h.Change.ADDED,)),
        within.pk: (("a", "t"), ("a", "v"), (h.Change.RENAMED,)),
    }
    counts = history.count_changes(actor=SYSTEM, since=first, until=last, namespace=("a",))
    assert (counts.tables_added, counts.tables_dropped, counts.tables_renamed) == (1, 1, 1)
    whole = history.count_changes(actor=SYSTEM, since=first, until=last)
    assert (whole.tables_added, whole.tables_dropped, whole.tables_renamed) == (0, 0, 3)


def test_dotted_names_resolve_to_the_former_namespace():
    make_namespace("a")
    make_namespace("a.b")
    make_table("a.b", "c.d")
    make_table("e", "x.y")
    first = now()
    commit([table_operations.RenameTable(table=("a.b", "c.d"), new=("a", "t"))], actor=SYSTEM)
    commit([table_operations.RenameTable(table=("e", "x.y"), new=("u",))], actor=SYSTEM)
    make_namespace("a", "b")  # created later, so the name cannot refer to it
    assert {name for name, _ in state(first)[1].values()} == {("a.b", "c.d"), ("e", "x.y")}


def test_a_recreated_branch_is_another_branch():
    table = make_table("ws", "t")
    make_version(("ws", "t"), 1)
    make_version(("ws", "t"), 5, branch="dev")
    first = now()
    commit([ref_operations.DeleteTableBranch(table=("ws", "t"), branch="dev")], actor=SYSTEM)
    between = now()
    assert [b.branch for b in state_of(first, "ws", "t").branches] == ["", "dev"]
    assert [b.branch for b in state_of(between, "ws", "t").branches] == [""]
    _, tables = changes(first, between)
    (old_branch,) = tables[table.pk].branches
    assert (old_branch.branch, old_branch.before.version, old_branch.after, old_branch.commits) == (
        "dev",
        5,
        None,
        0,
    )
    # Registration finds its old number again, because the files were kept.
    row = table.branches.create(name="dev")
    table.versions.create(branch="dev", version=5, manifest_path="elsewhere/new.manifest")
    (again,) = changes(first, now())[1][table.pk].branches
    assert (row.name, again.before.version, again.after.version) == ("dev", 5, 5)
    assert again.before.metadata_location != again.after.metadata_location


def test_branches_beyond_the_page_limit_are_counted(monkeypatch):
    monkeypatch.setattr(history_queries, "MAX_BRANCHES", 2)
    make_table("ws", "t")
    for name in ("", "a", "b"):
        make_version(("ws", "t"), 1, branch=name)
    table = state_of(now(), "ws", "t")
    assert [branch.branch for branch in table.branches] == ["", "a"]
    assert table.has_more_branches


def test_history_covers_iceberg_metadata_and_properties(warehouse):
    made = make_iceberg_table("ws", "t")
    first = now()
    updates = [{"action": "set-properties", "updates": {"k": "v"}}]
    change = TableChange(table=("ws", "t"), requirements=[], updates=updates)
    iceberg_commits.commit_table(actor=SYSTEM, change=change)
    last = now()
    (branch,) = state_of(first, "ws", "t").branches
    assert (branch.version, branch.metadata_location) == (0, made.metadata_location)
    _, tables = changes(first, last)
    (change,) = tables.values()
    assert change.format == TableFormat.ICEBERG
    assert change.changes == (h.Change.ADVANCED, h.Change.PROPERTIES)
    assert change.properties == h.PropertyChange(None, None)
    (branch,) = change.branches
    assert branch.after.metadata_location == state_of(last, "ws", "t").branches[0].metadata_location
    assert (branch.before.version, branch.after.version, branch.commits) == (0, 1, 1)


def test_refused_commits_are_not_in_history():
    table = make_table("ws", "t")
    moment = now()
    audit_records.record(SYSTEM, "table.rename", "ws.u", table=table, before={"name": "ws.wrong"})
    first = state(moment)[1][table.pk][0]
    assert first == ("ws", "wrong")  # the state after a success
    forget_the_trail()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO catalog_auditevent (actor, action, target, table_uuid, before, request_id,"
            " outcome) VALUES ('x', 'table.rename', 'ws.u', %s, '{\"name\": \"ws.wrong\"}', '',"
            " 'refused')",
            [table.uuid],
        )
    assert state(moment)[1][table.pk][0] == ("ws", "t")
    assert changes(moment, now()) == ({}, {})


# --- refusals ---------------------------------------------------------------------------------------


def test_invalid_requests_are_refused():
    make_table("ws", "t")
    moment = now()
    nobody = uuid.uuid4()
    ask = history.catalog_at
    compare = history.changes_between
    with unchanged():
        with pytest.raises(TransactionNotFound, match=str(nobody)):
            ask(actor=SYSTEM, moment=nobody)
        with pytest.raises(InvalidInput, match="has not come yet"):
            ask(actor=SYSTEM, moment=timezone.now() + timedelta(hours=1))
        with pytest.raises(NamespaceNotFound, match=r"'no\.such'"):
            ask(actor=SYSTEM, moment=moment, namespace=("no", "such"))
        for token in ("x", "t", "n", "n.x", "t.1", "t.1.2", "t.-1.2.x", "n.1.2", "t.1.2.\x00"):
            with pytest.raises(InvalidInput, match="Page token"):
                ask(actor=SYSTEM, moment=moment, page_token=token)
        for token in ("t", "t.x", "n.", "t.1.2", "z.1", "n.99999999999999999999"):
            with pytest.raises(InvalidInput, match="Page token"):
                compare(actor=SYSTEM, since=moment, until=moment, page_token=token)
        with pytest.raises(InvalidInput, match="is after the second"):
            compare(actor=SYSTEM, since=now(), until=moment)
        with pytest.raises(InvalidInput, match="is after the second"):
            history.count_changes(actor=SYSTEM, since=now(), until=moment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31T12:00:00.5+02:00", "2026-01-31T10:00:00.500000+00:00"),
        ("2026-01-31T12:00:00 02:00", "2026-01-31T10:00:00+00:00"),
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
    ],
)
def test_moments_are_times(text, expected):
    assert h.parse_moment(text).isoformat() == expected


def test_moments_are_transactions():
    transaction = uuid.uuid4()
    assert h.parse_moment(f" {transaction} ") == transaction


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01", "12:00", "0001-01-01T00:00:00+14:00", "\x00"]
)
def test_invalid_moments_are_refused(text):
    with pytest.raises(InvalidInput, match="neither a time"):
        h.parse_moment(text)


def test_history_is_empty_before_the_first_change():
    make_table("ws", "t")
    assert state(datetime.fromisoformat("1970-01-01T00:00:00Z")) == ({}, {})


# --- access -----------------------------------------------------------------------------------------


def granted(on: Namespace | Table) -> access.Principal:
    """A principal that may browse one namespace or one table."""
    row = Principal.objects.create(name=f"svc{on.pk}{on._meta.model_name}", kind="service")
    where = {"namespace": on} if isinstance(on, Namespace) else {"table": on}
    Grant.objects.create(principal=row, mask=Privilege.BROWSE, **where)
    return access.of_row(row)


def test_history_contains_only_objects_that_may_be_browsed():
    make_table("open", "t")
    make_table("secret", "t")
    single = make_table("other", "one")
    make_table("other", "two")
    moved = make_table("secret", "moved")
    first = now()
    commit(
        [table_operations.RenameTable(table=("secret", "moved"), new=("open", "moved"))],
        actor=SYSTEM,
    )
    for name in (("open", "t"), ("secret", "t"), ("other", "one"), ("other", "two")):
        make_version(name, 1)
    last = now()

    reader = granted(Namespace.objects.get(name="open"))
    then = history.catalog_at(actor=reader, moment=first)
    assert [row.identifier for row in then.namespaces] == [("open",)]
    assert [row.identifier for row in then.tables] == [("open", "t")]
    changes = history.changes_between(actor=reader, since=first, until=last)
    # The former namespace is hidden from the reader.
    assert {(row.before, row.after) for row in changes.tables} == {
        (("open", "t"), ("open", "t")),
        (None, ("open", "moved")),
    }
    assert "secret" not in repr(changes)
    assert next(row.id for row in changes.tables if row.before is None) == moved.pk
    counts = history.count_changes(actor=reader, since=first, until=last)
    assert (counts.tables_added, counts.tables_renamed, counts.tables_advanced) == (1, 0, 1)
    assert counts.commits == 1
    with pytest.raises(NamespaceNotFound):
        history.catalog_at(actor=reader, moment=first, namespace=("secret",))

    holder = granted(single)
    then = history.catalog_at(actor=holder, moment=last)
    assert [row.identifier for row in then.namespaces] == [("other",)]
    assert [row.identifier for row in then.tables] == [("other", "one")]

    nobody = access.Principal("nobody")
    then = history.catalog_at(actor=nobody, moment=last)
    assert (then.namespaces, then.tables) == ([], [])
    counts = history.count_changes(actor=nobody, since=first, until=last)
    assert (counts.tables_advanced, counts.commits, counts.namespaces_added) == (0, 0, 0)


def test_the_time_of_a_hidden_transaction_is_not_told():
    make_table("open", "t")
    make_table("secret", "t")
    make_namespace("below")

    def add(*tables: Identifier, actor: access.Principal = SYSTEM) -> uuid.UUID:
        operations = [
            version_operations.CreateVersion(
                table=table, version=n, manifest_path=f"x/{n}.manifest"
            )
            for n, table in enumerate(tables, TableVersion.objects.count() + 1)
        ]
        transaction_id = commit(operations, actor=actor).transaction_id
        assert transaction_id is not None
        return transaction_id

    reader = granted(Namespace.objects.get(name="open"))
    hidden, mixed = add(("secret", "t")), add(("secret", "t"), ("open", "t"))
    own = commit(
        [namespace_operations.CreateNamespace(namespace=("open", "mine"))],
        actor=replace(SYSTEM, name=reader.name),
    ).transaction_id
    for moment in (mixed, own):
        assert history.catalog_at(actor=reader, moment=moment).at is not None
    everywhere = access.Principal("auditor", everywhere=Privilege.BROWSE)
    assert history.catalog_at(actor=everywhere, moment=hidden).tables
    renamed = commit(
        [table_operations.RenameTable(table=("open", "t"), new=("secret", "u"))], actor=SYSTEM
    ).transaction_id
    for moment in (hidden, mixed, renamed, uuid.uuid4()):
        calls = (
            lambda at=moment: history.catalog_at(actor=reader, moment=at),
            lambda at=moment: history.changes_between(actor=reader, since=at, until=now()),
            lambda at=moment: history.changes_between(actor=reader, since=own, until=at),
            lambda at=moment: history.count_changes(actor=reader, since=at, until=now()),
            lambda at=moment: history.count_changes(actor=reader, since=own, until=at),
        )
        for call in calls:
            with pytest.raises(TransactionNotFound) as refusal:
                call()
            assert refusal.value.message == TransactionNotFound(str(moment)).message


# --- cost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_wide", [False, True])
def test_the_cost_of_a_page_does_not_grow_with_the_catalog(is_wide, monkeypatch):
    monkeypatch.setattr(history_queries, "_NARROW", 1 if is_wide else 50_000)
    first = now()

    def cost(call, **arguments) -> int:
        with CaptureQueriesContext(connection) as queries:
            call(actor=SYSTEM, namespace=("ws",), **arguments)
        return len(queries)

    counted = []
    for start in (0, 10):
        for i in range(start, start + 10):
            make_table("ws", f"n{i}", f"t{i}")
            make_version(("ws", f"n{i}", f"t{i}"), 1)
            make_version(("ws", f"n{i}", f"t{i}"), 1, branch="dev")
        transaction = AuditEvent.objects.latest("id").transaction_id
        counted.append(
            (
                cost(history.catalog_at, moment=transaction),
                cost(history.changes_between, since=first, until=transaction),
                cost(history.count_changes, since=first, until=transaction),
            )
        )
    assert counted == [(5, 14, 3)] * 2


def test_pages_of_a_large_catalog_use_indexes():
    """A page is fast because each namespace is read from the start of the page."""
    make_table("ws", "t")
    statement = history_statements.STATE.replace("{namespaces}", "true").replace("{tables}", "true")
    values = {"in": 1, "name": "t", "id": 1, "limit": 101, "at": now()}
    # Of a small table, the planner would read and sort all rows.
    with transaction.atomic(), connection.cursor() as cursor:
        for method in ("seqscan", "bitmapscan", "sort", "incremental_sort"):
            cursor.execute(f"SET LOCAL enable_{method} = off")
        # Without dropped tables, these cost the same.
        cursor.execute("DROP INDEX table_by_drop, table_dropped_of_owner")
        cursor.execute("EXPLAIN (COSTS OFF) " + statement, values)
        plan = "\n".join(line for (line,) in cursor.fetchall())
        transaction.set_rollback(True)
    assert "table_listing" in plan
    assert "table_dropped_listing" in plan
