"""Lists of the Iceberg tables and views of a namespace, as far as a principal may browse them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from catalog import access
from catalog.access import SYSTEM
from catalog.errors import NamespaceNotFound, PermissionDenied, TableNotFound
from catalog.formats.iceberg.job_properties import with_left_out_files
from catalog.models import AuditEvent, Grant, Namespace, Principal, PrincipalKind, Table, TableKind
from catalog.privileges import Privilege, closure
from catalog.services.iceberg import functions, metrics_reports, scans, tables
from catalog.services.iceberg.functions import Content
from tests.api.iceberg.test_functions import definition
from tests.api.iceberg.test_views import make_view
from tests.factories import (
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
    make_version,
    unchanged,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def ada() -> Principal:
    make_root()
    return Principal.objects.create(name="user:ada", kind=PrincipalKind.USER)


def actor_of(row: Principal) -> access.Principal:
    principal = access.named(row.name)
    assert principal is not None
    return principal


def give(row: Principal, privilege: Privilege, **on: object) -> None:
    Grant.objects.create(principal=row, mask=closure(privilege).value, **on)


@pytest.fixture(params=["everything", "some tables"])
def actor(request: pytest.FixtureRequest, ada: Principal) -> access.Principal:
    """Somebody who sees the tables and views ``NAMES``, and of "some tables" no other one."""
    make_table("ns", "lance")
    make_version(("ns", "lance"), 1)
    for name in NAMES:
        make_iceberg_table("ns", name)
        make_view("ns", f"view {name}")
        make_iceberg_table("other", name)
    make_iceberg_table("ns", "dropped")
    tables.unregister_table(actor=SYSTEM, table=("ns", "dropped"))
    if request.param == "everything":
        return SYSTEM
    make_iceberg_table("ns", "hidden")
    make_view("ns", "view hidden")
    for row in Table.objects.exclude(name__contains="hidden"):
        give(ada, Privilege.BROWSE, table=row)
    return actor_of(ada)


def test_tables_and_views_are_listed_by_name(actor):
    list_tables = tables.list_tables
    assert list_tables(actor=actor, namespace=("ns",)) == (NAMES, None)
    views = [f"view {name}" for name in NAMES]
    assert list_tables(actor=actor, namespace=("ns",), kind=TableKind.VIEW) == (views, None)
    assert list_tables(actor=actor, namespace=("ns",), limit=4) == (NAMES, None)
    assert list_tables(actor=actor, namespace=("ns",), limit=3) == (["a", "b", "c"], "c")
    last_page = list_tables(actor=actor, namespace=("ns",), limit=1, page_token="b")
    assert last_page == (["c"], "c")
    assert list_tables(actor=actor, namespace=("ns",), page_token="d") == ([], None)


def test_tables_of_a_former_namespace_are_not_listed(ada):
    old = make_iceberg_table("ns", "old")
    Namespace.objects.filter(name="ns").update(dropped_at="2026-01-01T00:00:00Z")
    give(ada, Privilege.BROWSE, table_id=old.pk)
    for actor in (actor_of(ada), SYSTEM):
        with pytest.raises(NamespaceNotFound):
            tables.list_tables(actor=actor, namespace=("ns",))
    give(ada, Privilege.BROWSE, table_id=make_iceberg_table("ns", "new").pk)
    for actor in (actor_of(ada), SYSTEM):
        assert tables.list_tables(actor=actor, namespace=("ns",)) == (["new"], None)


def test_functions_are_changed_with_the_privilege_on_their_namespace(ada):
    make_namespace("ws")
    give(ada, Privilege.CREATE, namespace=make_namespace("other"))
    give(ada, Privilege.READ, namespace=Namespace.objects.get(name="ws"))
    content = Content(definitions=[definition("x + 1")])
    functions.create_function(actor=SYSTEM, function=("ws", "f"), content=content)
    actor = actor_of(ada)
    changes: list[Callable[[], object]] = [
        lambda: functions.create_function(actor=actor, function=("ws", "g"), content=content),
        lambda: functions.update_function(actor=actor, function=("ws", "f"), content=content),
        lambda: functions.drop_function(actor=actor, function=("ws", "f")),
    ]
    for change in changes:
        with unchanged(), pytest.raises(PermissionDenied) as refused:
            change()
        assert refused.value.message == "'user:ada' may not create anything in 'ws'"
    Grant.objects.filter(namespace__name="ws").update(mask=closure(Privilege.CREATE).value)
    for change in changes:
        change()
    assert functions.list_functions(actor=actor, namespace=("ws",)) == (["g"], None)


CALLS: dict[str, Callable[[tuple[str, ...]], object]] = {
    "load": lambda name: tables.load_table(actor=SYSTEM, table=name),
    "exists": lambda name: tables.table_exists(actor=SYSTEM, table=name),
    "plan": lambda name: scans.plan_scan(actor=SYSTEM, table=name, request={}),
    "plans": lambda name: scans.fetch_plan(actor=SYSTEM, table=name, plan="x"),
    "report": lambda name: metrics_reports.report_metrics(actor=SYSTEM, table=name, report={}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_refusal_states_what_else_has_the_name_of_a_table(call):
    make_root()
    make_view("ns", "view")
    make_table("ns", "lance")
    make_version(("ns", "lance"), 1)
    lance = "A table of this name exists, but its format is lance: use the Lance protocol"
    for name, detail in (
        ("view", "A view of this name exists."),
        ("lance", lance),
        ("none", None),
    ):
        with unchanged(), pytest.raises(TableNotFound) as refused:
            CALLS[call](("ns", name))
        assert refused.value.detail == detail


def test_changes_of_a_function_are_audited_without_its_sql():
    make_namespace("ws")
    versions = [definition("x + 1")]
    content = Content(definitions=versions, doc="adds", secure=True, properties={"team": "a"})
    functions.create_function(actor=SYSTEM, function=("ws", "f"), content=content)
    functions.update_function(
        actor=SYSTEM, function=("ws", "f"), content=Content(definitions=versions)
    )
    functions.drop_function(actor=SYSTEM, function=("ws", "f"))
    created, updated, dropped = AuditEvent.objects.filter(target="ws.f").order_by("pk")
    (current,) = created.after["definitions"].values()
    assert created.after == {
        "definitions": created.after["definitions"],
        "doc": "adds",
        "secure": True,
        "properties": {"team": "a"},
    }
    plain = {
        "definitions": dict.fromkeys(created.after["definitions"], current),
        "doc": "",
        "secure": False,
        "properties": {},
    }
    assert (created.before, updated.before, updated.after) == (None, created.after, plain)
    assert (dropped.before, dropped.after) == (plain, None)
    actions = [event.action for event in (created, updated, dropped)]
    assert actions == ["function.create", "function.update", "function.drop"]


def test_a_job_that_leaves_out_files_gets_their_names_with_the_table(monkeypatch):
    make_iceberg_table("ns", "t")
    base = tables.load_table(actor=SYSTEM, table=("ns", "t"))
    actor = replace(SYSTEM, job_kind="compact", job_leaves_out=True)

    def load(*paths: str) -> tables.LoadedTable:
        monkeypatch.setattr(tables.job_files, "left_out", lambda *_: frozenset(paths))
        return tables.load_table(actor=actor, table=("ns", "t"))

    whole, one, both = load(), load("a"), load("b", "a")
    assert (whole.etag, whole.document) == (base.etag, base.document)
    assert both.document == with_left_out_files(base.document, ["a", "b"])
    assert load("a", "b").etag == both.etag
    assert len({base.etag, one.etag, both.etag}) == 3  # answers are cached by them
    for loaded in (one, both):
        assert loaded.etag.startswith(f"{base.etag[:-1]}.job-")
        assert loaded.etag.endswith('"')
