"""The lineage of tables and views, as principals with different privileges see it."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import access
from catalog.access import SYSTEM, On, Principal, of_user
from catalog.errors import InvalidInput, NamespaceNotFound, TableNotFound
from catalog.models import FileReference, Table, ViewQuery, ViewSource
from catalog.privileges import Privilege, parse
from catalog.services.access import grants
from catalog.services.engine.commit import commit
from catalog.services.iceberg import view_sources, views
from catalog.services.tables import dependents, lineage
from catalog.services.tables.lineage import Direction, EdgeKind, Lineage
from catalog.services.tables.table_operations import DropTable, RenameTable
from tests.factories import make_namespace, make_table
from tests.lineage import definition, make_view, materialize

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]


def names(graph: Lineage) -> list[tuple[str, int]]:
    return [(str(node.table), node.distance) for node in graph.nodes]


def edges(graph: Lineage) -> set[tuple[str, str, str]]:
    rows = {node.table.pk: str(node.table) for node in graph.nodes}
    return {(rows[edge.source], rows[edge.dependent], edge.kind) for edge in graph.edges}


@pytest.fixture
def reader(db, django_user_model) -> Principal:
    """bob, who may browse ``ws`` and nothing else."""
    make_namespace("ws")
    user = django_user_model.objects.create_user("bob", is_staff=True)
    allow(("ws",), "browse")
    return of_user(user)


def allow(path: tuple[str, ...], *words: str) -> None:
    grants.set_grant(
        actor=SYSTEM, on=On.namespace(path), principal="user:bob", privileges=parse(words)
    )


def of(*name: str, actor: Principal = SYSTEM, **options) -> Lineage:
    return lineage.lineage_of(actor=actor, table=name, **options)


@pytest.fixture
def chain() -> dict[str, Table]:
    """raw → clean (materialized) → daily (view) → weekly (view in ``other``); copy refers to raw."""
    rows = {name: make_table("ws", name) for name in ("raw", "clean", "copy")}
    materialize(rows["clean"], rows["raw"])
    FileReference.objects.create(table=rows["copy"], source=rows["raw"], principal="x")
    rows["daily"] = make_view(("ws", "daily"), "SELECT * FROM clean")
    rows["weekly"] = make_view(("other", "weekly"), "SELECT * FROM ws.daily JOIN ws.missing")
    assert view_sources.read_due() == 2
    return rows


def test_a_graph_over_several_hops(chain):
    graph = of("ws", "clean")
    assert names(graph) == [("ws.raw", -1), ("ws.clean", 0), ("ws.daily", 1), ("other.weekly", 2)]
    assert edges(graph) == {
        ("ws.raw", "ws.clean", EdgeKind.MATERIALIZED_VIEW),
        ("ws.clean", "ws.daily", EdgeKind.VIEW),
        ("ws.daily", "other.weekly", EdgeKind.VIEW),
    }
    assert graph.is_complete
    assert names(of("ws", "raw", hops=1)) == [("ws.raw", 0), ("ws.clean", 1), ("ws.copy", 1)]
    up = of("other", "weekly", direction=Direction.UPSTREAM)
    assert names(up)[0] == ("ws.raw", -3)
    assert up.unresolved == ("ws.missing",)
    assert names(of("ws", "copy", direction=Direction.DOWNSTREAM)) == [("ws.copy", 0)]
    assert {node.kind for node in of("ws", "raw").nodes} == {"table", "view", "materialized_view"}


def test_the_number_of_statements_depends_on_the_hops_only(chain):
    for number in range(5):
        make_view(("ws", f"more{number}"), "SELECT * FROM clean")
    view_sources.read_due()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert len(of("ws", "clean", hops=2).nodes) == 9
    assert len(queries) == 8, [query["sql"] for query in queries]


def test_a_path_ends_at_an_object_that_may_not_be_browsed(chain, reader):
    """weekly is hidden, and so is a view in ``ws`` that can be reached through it only."""
    make_view(("ws", "monthly"), "SELECT * FROM other.weekly")
    view_sources.read_due()
    assert names(of("ws", "raw", hops=10))[-1] == ("ws.monthly", 4)
    seen = of("ws", "raw", hops=10, actor=reader)
    assert names(seen)[-1] == ("ws.daily", 2)
    assert seen.is_complete
    assert names(of("ws", "monthly", actor=reader)) == [("ws.monthly", 0)]
    with pytest.raises(NamespaceNotFound):
        of("other", "weekly", actor=reader)
    allow(("other",), "browse")
    assert names(of("ws", "raw", hops=10, actor=reader))[-1] == ("ws.monthly", 4)


@pytest.mark.parametrize("look_up", [lineage.lineage_of, dependents.dependents_of_table])
def test_a_table_that_takes_the_name_after_the_check_is_not_shown(reader, monkeypatch, look_up):
    make_table("secret", "a")
    make_table("secret", "b")
    table = On.table(("secret", "a"))
    grants.set_grant(actor=SYSTEM, on=table, principal="user:bob", privileges=parse(["read"]))
    assert look_up(actor=reader, table=("secret", "a"))
    check = access.require

    def exchange(actor: Principal, privilege: Privilege, target: access.Target) -> Privilege:
        held = check(actor, privilege, target)
        if actor == reader and isinstance(target, On):
            for name, new in (("a", "c"), ("b", "a")):
                rename = RenameTable(table=("secret", name), new=("secret", new))
                commit([rename], actor=SYSTEM)
        return held

    monkeypatch.setattr(access, "require", exchange)
    with pytest.raises(TableNotFound):
        look_up(actor=reader, table=("secret", "a"))


def test_hidden_and_missing_names_cannot_be_told_apart(reader):
    make_table("secret", "t")
    make_view(("ws", "v"), "SELECT * FROM secret.t JOIN secret.missing")
    view_sources.read_due()
    assert of("ws", "v", actor=reader).unresolved == ()  # bob may not read the SQL
    allow(("ws",), "read")
    seen = of("ws", "v", actor=reader)
    assert (names(seen), seen.unresolved) == ([("ws.v", 0)], ("secret.missing", "secret.t"))
    assert of("ws", "v").unresolved == ("secret.missing",)


def test_hidden_objects_do_not_use_up_the_limit(chain, reader, monkeypatch):
    for number in range(4):
        make_view(("other", f"v{number}"), "SELECT * FROM ws.clean")
    view_sources.read_due()
    monkeypatch.setattr(lineage, "MAX_NODES", 3)
    monkeypatch.setattr(lineage, "_MAX_EDGES", 3)
    seen = of("ws", "clean", actor=reader)
    assert (len(seen.nodes), seen.is_complete) == (3, True)
    everything = of("ws", "clean")
    assert (len(everything.nodes), everything.is_complete) == (4, False)


def test_a_view_reads_whatever_has_the_name_now(chain):
    commit([RenameTable(table=("ws", "clean"), new=("ws", "old"))], actor=SYSTEM)
    assert names(of("ws", "old", direction=Direction.DOWNSTREAM)) == [("ws.old", 0)]
    assert of("ws", "daily").unresolved == ("clean",)
    make_table("ws", "clean")
    assert names(of("ws", "daily", direction=Direction.UPSTREAM)) == [
        ("ws.clean", -1),
        ("ws.daily", 0),
    ]
    commit([DropTable(table=("ws", "clean"))], actor=SYSTEM)
    assert of("ws", "daily").unresolved == ("clean",)


def test_a_dropped_view_depends_on_nothing(chain):
    views.drop_view(actor=SYSTEM, view=("ws", "daily"))
    assert names(of("ws", "clean", direction=Direction.DOWNSTREAM)) == [("ws.clean", 0)]


def test_views_that_read_each_other(chain):
    make_view(("ws", "a"), "SELECT * FROM b")
    make_view(("ws", "b"), "SELECT * FROM a JOIN b")
    view_sources.read_due()
    graph = of("ws", "a")
    assert edges(graph) == {("ws.a", "ws.b", EdgeKind.VIEW), ("ws.b", "ws.a", EdgeKind.VIEW)}


def test_impact_leaves_out_copies_of_files(chain):
    impact = lineage.impact_of(actor=SYSTEM, rows=[chain["raw"]])
    assert impact.dependents == (("ws", "clean"), ("ws", "daily"), ("other", "weekly"))
    both = lineage.impact_of(actor=SYSTEM, rows=[chain["raw"], chain["daily"]])
    assert both.dependents == (("other", "weekly"), ("ws", "clean"))


def test_refusals():
    make_namespace("ws")
    for hops in (0, 11):
        with pytest.raises(InvalidInput):
            of("ws", "t", hops=hops)
    with pytest.raises(TableNotFound):
        of("ws", "t")


def test_the_names_of_a_view_do_not_displace_its_readers(monkeypatch):
    monkeypatch.setattr(lineage, "_MAX_EDGES", 3)
    make_table("ws", "t")
    make_view(("ws", "v"), "SELECT * FROM t, a, b, c")
    make_view(("ws", "reader"), "SELECT * FROM v")
    view_sources.read_due()
    graph = of("ws", "v")
    assert names(graph) == [("ws.t", -1), ("ws.v", 0), ("ws.reader", 1)]
    assert not graph.is_complete


# --- parsing -----------------------------------------------------------------------------------


def stored(row: Table) -> list[str]:
    return sorted(ViewSource.objects.filter(view=row).values_list("name", flat=True))


def replace(view: Table, sql: str) -> None:
    updates = [
        {"action": "add-view-version", "view-version": definition(sql, 2)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    views.replace_view(actor=SYSTEM, view=view.identifier, requirements=[], updates=updates)


def test_a_replaced_or_moved_view_is_parsed_again():
    view = make_view(("ws", "v"), "SELECT * FROM a")
    assert (view_sources.read_due(), view_sources.read_due()) == (1, 0)
    assert stored(view) == ["a"]
    replace(view, "SELECT * FROM b")
    assert (view_sources.read_due(), stored(view)) == (1, ["b"])
    make_namespace("x", "ws")
    views.rename_view(actor=SYSTEM, view=("ws", "v"), new=("x", "ws", "v"))
    digests = set(ViewSource.objects.values_list("digest", flat=True))
    assert (view_sources.read_due(), stored(view)) == (1, ["b"])
    assert set(ViewSource.objects.values_list("digest", flat=True)) != digests


def test_sql_that_cannot_be_parsed_says_so(reader):
    make_view(("ws", "v"), "SELECT FROM FROM")
    make_view(("ws", "w"), "SELECT * FROM v")
    assert of("ws", "v").nodes[0].problem == lineage._INCOMPLETE
    view_sources.read_due()
    problem = of("ws", "v").nodes[0].problem
    assert problem.startswith("The SQL of dialect 'spark' cannot be parsed: line 1")
    # The reason is part of the view's metadata.
    assert of("ws", "v", actor=reader).nodes[0].problem == lineage._INCOMPLETE
    assert [node.problem for node in of("ws", "w").nodes] == [lineage._INCOMPLETE, ""]


def test_a_view_whose_parser_was_killed_is_parsed_again_later(monkeypatch):
    views_ = [make_view(("ws", name), "SELECT * FROM t") for name in "ab"]
    parse_ = view_sources.sources.read
    calls: list[object] = []

    def killed(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return parse_(*arguments)

    monkeypatch.setattr(view_sources.sources, "read", killed)
    with pytest.raises(KeyboardInterrupt):
        view_sources.read_due()
    assert view_sources.read_due() == 1
    assert [stored(view) for view in views_] == [[], ["t"]]
    assert "did not end" in ViewQuery.objects.get(view=views_[0]).problem
    replace(views_[0], "SELECT * FROM u")
    assert view_sources.read_due() == 0
    ViewQuery.objects.update(taken_at=timezone.now() - 2 * view_sources._RETRY_AFTER)
    assert view_sources.read_due() == 1
    assert stored(views_[0]) == ["u"]


def test_slow_sql_is_parsed_once_and_after_the_other_views(monkeypatch):
    monkeypatch.setattr(view_sources.sources, "MAX_SECONDS", 0.2)
    brackets = "INT(" * 24 + "1" + ")" * 24
    slow = make_view(("ws", "slow"), f"SELECT {brackets}")
    assert (view_sources.read_due(), view_sources.read_due()) == (1, 0)
    query = ViewQuery.objects.get(view=slow)
    assert query.parsed_at is not None
    assert query.problem.startswith("The SQL takes more than 0.2 seconds to parse")
    replace(slow, f"SELECT 1, {brackets}")
    new = make_view(("ws", "new"), "SELECT * FROM t")
    assert view_sources._due() == [new.pk, slow.pk]


def test_a_stored_problem_is_short(monkeypatch):
    monkeypatch.setattr(view_sources, "_MAX_PROBLEM_CHARACTERS", 20)
    make_view(("ws", "v"), "SELECT FROM FROM")
    view_sources.read_due()
    assert ViewQuery.objects.get().problem == "The SQL of dialect '"


def test_stored_metadata_that_cannot_be_read():
    view = make_view(("ws", "v"), "SELECT 1")
    view.iceberg_metadata.answer = b"x"
    view.iceberg_metadata.save()
    view_sources.read_due()
    assert ViewQuery.objects.get().problem == "The stored metadata of the view cannot be read."
