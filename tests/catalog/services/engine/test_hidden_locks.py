"""Commits that name objects which the actor may not see, while other transactions hold the rows of these objects."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
from django.db import connection

from catalog import access
from catalog.access import On
from catalog.errors import Busy, CatalogError, NamespaceNotFound, TableNotFound
from catalog.identifiers import digest
from catalog.models import Namespace, Principal, PrincipalKind
from catalog.postgresql import limits
from catalog.privileges import Privilege
from catalog.services.access.grant_operations import SetGrant
from catalog.services.engine import commit as engine
from catalog.services.engine.admission import admission
from catalog.services.engine.commit import commit
from catalog.services.engine.operation import Operation, locked_names
from catalog.services.governance.annotation_operations import SetDescription
from catalog.services.lance.ledger.registration_operations import DeclareTable
from catalog.services.tables.namespace_operations import CreateNamespace, DropNamespace
from catalog.services.tables.table_operations import DeregisterTable, RenameTable
from tests.factories import make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]


@pytest.fixture
def actor() -> access.Principal:
    """Somebody who owns the namespace ``own``, and may not see the namespace ``hidden``."""
    make_root()
    Principal.objects.create(name="ada", kind=PrincipalKind.SERVICE)
    make_table("own", "t")
    make_table("hidden", "t")
    make_namespace("hidden", "below")
    Namespace.objects.filter(name="own").update(owner="ada")
    principal = access.named("ada")
    assert principal is not None
    return principal


@pytest.fixture
def _locked(actor: access.Principal, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another session holds all rows of the hidden namespace, and requests wait for a second."""
    bounds = limits.RequestLimits(threads=4, lock_seconds=1, statement_seconds=30)
    monkeypatch.setattr(limits, "requests", bounds)
    raw = connection.connection
    with psycopg.connect(raw.info.dsn, password=raw.info.password) as other:
        other.execute("SELECT FROM catalog_namespace WHERE path[1] = 'hidden' FOR UPDATE")
        other.execute(
            "SELECT FROM catalog_table WHERE namespace_id IN"
            " (SELECT id FROM catalog_namespace WHERE path[1] = 'hidden') FOR UPDATE"
        )
        connection.close()  # the next session has the short time-out
        yield
        other.rollback()
    connection.close()


OPERATIONS: dict[str, list[Operation]] = {
    "deregister": [DeregisterTable(table=("hidden", "t"))],
    "rename": [RenameTable(table=("hidden", "t"), new=("own", "u"))],
    "rename to": [RenameTable(table=("own", "t"), new=("hidden", "t"))],
    "declare": [DeclareTable(table=("hidden", "u"))],
    "describe": [SetDescription(target=("hidden", "t"), is_table=True, description="x")],
    "describe namespace": [SetDescription(target=("hidden",), is_table=False, description="x")],
    "grant": [SetGrant(on=On.table(("hidden", "t")), principal="ada", privileges=Privilege.READ)],
    "create namespace": [CreateNamespace(namespace=("hidden", "new"))],
    "drop namespace": [DropNamespace(namespace=("hidden",), cascade=True)],
}


def refusal(operations: list[Operation], actor: access.Principal) -> CatalogError:
    with unchanged(), pytest.raises(CatalogError) as refused:
        commit(operations, actor=actor)
    return refused.value


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("_locked")
def test_a_locked_hidden_object_is_refused_like_a_missing_one(actor, name):
    error = refusal(OPERATIONS[name], actor)
    assert isinstance(error, NamespaceNotFound | TableNotFound), error
    assert error.operation == 0


def test_a_single_operation_reads_what_is_hidden_only_after_a_wait(actor, monkeypatch):
    calls = []
    monkeypatch.setattr(engine, "hidden_names", lambda *call: calls.append(call) or frozenset())
    operation = SetDescription(target=("own", "t"), is_table=True, description="x")
    commit([operation], actor=actor)
    assert calls == []
    commit([operation] * 2, actor=actor)
    assert [len(operations) for operations, _ in calls] == [2]


@pytest.mark.usefixtures("_locked")
def test_several_operations_do_not_wait_for_a_hidden_object(actor, django_assert_max_num_queries):
    first = SetDescription(target=("own", "t"), is_table=True, description="x")
    for name, operations in OPERATIONS.items():
        with django_assert_max_num_queries(40) as captured:
            error = refusal([first, *operations], actor)
        assert isinstance(error, NamespaceNotFound | TableNotFound), (name, error)
        assert error.operation == 1, name
        assert not [query for query in captured if float(query["time"]) > 0.9], name


@pytest.mark.usefixtures("_locked")
def test_whoever_sees_a_locked_object_is_asked_to_try_again(actor):
    for operations in (OPERATIONS["deregister"], OPERATIONS["deregister"] * 2):
        error = refusal(operations, access.Principal("root", Privilege.ALL))
        assert isinstance(error, Busy)
        assert "hidden.t" in error.message


def test_a_commit_locks_the_names_of_all_its_operations():
    operations = [
        SimpleNamespace(
            namespaces=lambda: [("a",)], subtrees=lambda: [("b",)], tables=lambda: [("c", "t")]
        ),
        SimpleNamespace(namespaces=list, subtrees=list, tables=lambda: [("c", "t"), ("c", "u")]),
    ]
    names = [("a",), ("b",), ("c", "t"), ("c", "u")]
    assert locked_names(operations) == {digest(name) for name in names}


def test_a_hidden_object_for_which_others_wait_is_refused_like_a_missing_one(actor, monkeypatch):
    bounds = limits.RequestLimits(threads=1, lock_seconds=1, statement_seconds=30)
    monkeypatch.setattr(limits, "requests", bounds)
    operations = OPERATIONS["deregister"]
    is_inside, may_leave = threading.Event(), threading.Event()

    def stay() -> None:
        with admission.enter(locked_names(operations), tuple):
            is_inside.set()
            may_leave.wait(30)

    other = threading.Thread(target=stay)
    other.start()
    try:
        assert is_inside.wait(30)
        assert isinstance(refusal(operations, access.Principal("root", Privilege.ALL)), Busy)
        assert isinstance(refusal(operations, actor), NamespaceNotFound)
    finally:
        may_leave.set()
        other.join()
