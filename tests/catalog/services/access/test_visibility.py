"""Lists for principals with partial access: their content and a fixed number of statements."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalog import access
from catalog.models import Grant, Job, Namespace, Principal, Table, TableHealth
from catalog.privileges import Privilege, closure
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.maintenance import health, job_control
from catalog.services.tables import namespaces, tables
from tests.factories import make_namespace, make_root, make_table

MOST = 5
"""Maximum number of statements of a list, for any principal."""


@pytest.fixture(autouse=True)
def _catalog(db, settings, tmp_path):
    settings.MONODON_WAREHOUSE = str(tmp_path)
    make_root()
    make_namespace("hidden")
    for number in range(12):
        row = make_table("ws", f"t{number:02}")
        TableHealth.objects.create(
            table=row,
            measured_at=timezone.now(),
            is_newest=True,
            score=50,
            statistics={},
            planned=[],
        )
        Job.objects.create(kind="compact", table=row)
    Table.objects.filter(name__in=["t08", "t09"]).update(format="iceberg")


def by_tables(principal: Principal) -> None:
    for row in Table.objects.filter(name__in=["t01", "t03", "t08"]):
        Grant.objects.create(principal=principal, table=row, mask=closure(Privilege.READ).value)


def by_namespace(principal: Principal) -> None:
    row = Namespace.objects.named(("ws",)).get()
    Grant.objects.create(principal=principal, namespace=row, mask=Privilege.BROWSE.value)


def as_owner(principal: Principal) -> None:
    Table.objects.filter(name__in=["t01", "t03", "t08"]).update(owner=principal.name)


def through_a_group(principal: Principal) -> None:
    group = Principal.objects.create(name="group:g", kind="group")
    principal.groups.add(group)
    by_tables(group)


def without_grants(principal: Principal) -> None:
    pass


LANCE = [f"t{n:02}" for n in range(12) if n not in (8, 9)]
SOME = (["t01", "t03"], ["t08"])
CASES: list[tuple[Callable[[Principal], None], list[str], list[str]]] = [
    (by_tables, *SOME),
    (as_owner, *SOME),
    (through_a_group, *SOME),
    (by_namespace, LANCE, ["t08", "t09"]),
]
each_grant = pytest.mark.parametrize(("grant", "lance", "iceberg"), CASES)


def requester(grant: Callable[[Principal], None]) -> access.Principal:
    row = Principal.objects.create(name="who", kind="service")
    grant(row)
    return access.of_row(row)


def counted(call: Callable[[], Any]) -> Any:
    with CaptureQueriesContext(connection) as captured:
        result = call()
    assert len(captured) <= MOST, [query["sql"] for query in captured]
    return result


@each_grant
def test_every_list_contains_only_objects_that_may_be_browsed(grant, lance, iceberg):
    actor = requester(grant)
    ws = ("ws",)
    assert counted(lambda: tables.list_tables(actor=actor, namespace=ws))[0] == lance
    every, _ = counted(lambda: tables.list_all_tables(actor=actor))
    assert every == [("ws", name) for name in lance]
    listed, _ = counted(lambda: iceberg_tables.list_tables(actor=actor, namespace=ws))
    assert list(listed) == iceberg
    children = counted(lambda: namespaces.list_children(actor=actor, namespace=()))
    assert children.names == ["ws"]
    measured, _ = counted(lambda: health.list_health(actor=actor))
    assert {row.table.name for row in measured} == {*lance, *iceberg}
    jobs, _ = counted(lambda: job_control.list_jobs(actor=actor))
    assert {job.table.name for job in jobs} == {*lance, *iceberg}


@each_grant
def test_pages_are_full_despite_hidden_rows(grant, lance, iceberg):
    actor = requester(grant)
    listed, token = [], None
    while True:
        names, token = tables.list_tables(actor=actor, namespace=("ws",), limit=1, page_token=token)
        assert len(names) == 1
        listed += names
        if token is None:
            break
    assert listed == lance


def test_principals_without_grants_see_empty_lists():
    actor = requester(without_grants)
    assert tables.list_all_tables(actor=actor)[0] == []
    assert namespaces.list_children(actor=actor, namespace=()).names == []
    assert health.list_health(actor=actor)[0] == []
    assert job_control.list_jobs(actor=actor)[0] == []


def test_administrators_need_no_grant_query():
    actor = access.SYSTEM
    with CaptureQueriesContext(connection) as captured:
        assert access.holds(actor, Privilege.MANAGE, Table.objects.model(pk=5))
        assert access.is_visible(actor, access.On.table(("no", "such")))
    assert not captured.captured_queries
    assert not access.visible_tables(actor)
    assert not access.visible_namespaces(actor)


def test_a_privilege_check_is_one_statement():
    actor = requester(by_tables)
    for statements in (2, 1):  # the first check also reads the grants
        with CaptureQueriesContext(connection) as captured:
            access.require(actor, Privilege.READ, access.On.table(("ws", "t01")))
        assert len(captured) == statements
