"""A commit of operations that succeed, are refused or conflict: attempts, locks, counters."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import psycopg
import pytest
from django.db import DatabaseError, IntegrityError, OperationalError

from catalog.access import SYSTEM
from catalog.access.principal import Progress
from catalog.errors import (
    Busy,
    CatalogError,
    InvalidInput,
    NamespaceNotFound,
    ServiceUnavailable,
    TableNotFound,
    VersionAlreadyExists,
)
from catalog.identifiers import digest
from catalog.models import Table, Transaction, TransactionStatus
from catalog.postgresql.outcomes import TransactionLost
from catalog.services.engine import audit_records, commit_outcomes, table_cache
from catalog.services.engine import commit as engine
from catalog.services.engine.batch import Batch, RowReplaced
from catalog.services.engine.operation import Operation
from catalog.services.engine.table_cache import NamespaceCache, TableCache
from catalog.services.tables import namespace_operations, table_operations
from tests.factories import make_namespace, make_root, unchanged

pytestmark = pytest.mark.django_db
TABLE = ("ws", "t")


@dataclass(frozen=True, kw_only=True)
class Probe(Operation):
    """An operation that locks a table's name, and fails with one error at each attempt."""

    name: ClassVar[str] = "Probe"
    action: ClassVar[str] = "probe.run"
    errors: list[Exception] = field(default_factory=list)
    refusals: list[CatalogError] = field(default_factory=list)
    unprepared: CatalogError | None = None
    conflict_error: CatalogError | None = None

    def prepare(self) -> "Probe":
        if self.unprepared is not None:
            raise self.unprepared
        return self

    def tables(self) -> Any:
        return [TABLE]

    def apply(self, batch: Any) -> str:
        if self.errors:
            raise self.errors.pop(0)
        batch.record("ws.t", after={"a": 1})
        return "result"

    def conflict(self, constraint: str) -> CatalogError | None:
        return self.conflict_error

    def after_refusal(self, error: CatalogError, actor: Any) -> None:
        self.refusals.append(error)


def database_error(cause: Exception) -> OperationalError:
    error = OperationalError()
    error.__cause__ = cause
    return error


def deadlock() -> OperationalError:
    return database_error(psycopg.errors.DeadlockDetected())


@pytest.fixture
def parents(monkeypatch):
    """For each attempt, True if it also locked the parents of the names."""
    attempts = []
    lock = engine._lock

    def recording(batch, operations, *, with_parents):
        attempts.append(with_parents)
        lock(batch, operations, with_parents=with_parents)

    monkeypatch.setattr(engine, "_lock", recording)
    return attempts


def counters():
    """Commits and requested versions by result, since the process began."""
    return {
        (sample.name, sample.labels["result"]): sample.value
        for counter in (engine.COMMITS, engine.VERSIONS)
        for metric in counter.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


def counted(before):
    return {
        (name.removeprefix("monodon_").removesuffix("_total"), result): value - before.get(key, 0)
        for key, value in counters().items()
        for name, result in [key]
        if value != before.get(key, 0)
    }


def test_a_commit_is_recorded_and_counted(parents):
    before, actor = counters(), replace(SYSTEM, progress=Progress(), request_id="r1")
    outcome = engine.commit([Probe(), Probe()], actor=actor)
    assert outcome.results == ["result", "result"]
    row = Transaction.objects.get()
    assert (outcome.transaction_id, outcome.id, outcome.goes_on) == (row.pk, str(row.pk), False)
    entry = {"operation": "Probe", "target": "ws.t", "a": 1}
    assert (row.actor, row.request_id, row.operations) == ("system", "r1", [entry, entry])
    assert counted(before) == {("commits", "committed"): 1}
    assert actor.progress.committed is True
    assert parents == [False]


def test_an_empty_commit_has_no_transaction():
    outcome = engine.commit([], actor=SYSTEM)
    assert (outcome.transaction_id, outcome.id, outcome.results) == (None, None, [])
    assert not Transaction.objects.exists()


def test_a_commit_with_a_queued_transaction_continues(monkeypatch):
    class Waits(Probe):
        def apply(self, batch):
            batch.transaction.status = TransactionStatus.QUEUED
            return super().apply(batch)

    assert engine.commit([Waits()], actor=SYSTEM).goes_on is True


def test_a_deadlock_is_repeated_with_the_same_locks(parents):
    errors = [deadlock(), database_error(psycopg.errors.SerializationFailure())]
    assert engine.commit([Probe(errors=errors)], actor=SYSTEM).results == ["result"]
    assert parents == [False] * 3


@pytest.mark.parametrize(
    ("errors", "attempts"),
    [
        ([deadlock() for _ in range(5)], [False] * 5),
        ([RowReplaced() for _ in range(5)], [False, True, True, True, True]),
        ([RowReplaced(), *(deadlock() for _ in range(4))], [False, True, True, True, True]),
        ([deadlock(), *(RowReplaced() for _ in range(4))], [False, False, True, True, True]),
    ],
)
def test_a_commit_that_conflicts_at_every_attempt_is_given_up(parents, errors, attempts):
    with unchanged(), pytest.raises(ServiceUnavailable) as refusal:
        engine.commit([Probe(errors=list(errors))], actor=SYSTEM)
    assert refusal.value.message == "The commit kept meeting others; try again"
    assert parents == attempts


def test_the_same_violation_at_every_attempt_is_an_internal_error(parents):
    errors = [IntegrityError(number) for number in range(6)]
    with unchanged(), pytest.raises(IntegrityError) as raised:
        engine.commit([Probe(errors=errors)], actor=SYSTEM)
    assert raised.value.args == (4,)
    assert parents == [False, True, True, True, True]


def test_a_violation_is_refused_by_the_first_operation_that_recognizes_it():
    taken, other = InvalidInput("taken"), InvalidInput("other")
    operations = [
        Probe(),
        Probe(conflict_error=taken),
        Probe(errors=[IntegrityError()], conflict_error=other),
    ]
    with unchanged(), pytest.raises(InvalidInput, match=r"^taken$") as refusal:
        engine.commit(operations, actor=SYSTEM)
    assert refusal.value.operation == 1


def test_other_database_errors_are_raised_immediately(parents):
    with unchanged(), pytest.raises(OperationalError):
        engine.commit([Probe(errors=[database_error(psycopg.OperationalError())])], actor=SYSTEM)
    assert parents == [False]


def test_a_lock_timeout_is_refused(parents):
    before = counters()
    errors = [database_error(psycopg.errors.LockNotAvailable())]
    with unchanged(), pytest.raises(Busy) as refusal:
        engine.commit([Probe(errors=errors)], actor=SYSTEM)
    assert refusal.value.message == (
        "Another transaction has held a lock for too long that a commit to 'ws.t' needs; try again"
    )
    assert counted(before) == {("commits", "refused"): 1}
    assert parents == [False]


@pytest.mark.django_db(transaction=True)
def test_repeated_connection_losses_are_reported_as_unavailable(parents):
    make_root()
    errors = [TransactionLost() for _ in range(5)]
    with unchanged(), pytest.raises(ServiceUnavailable) as refusal:
        engine.commit([Probe(errors=errors)], actor=SYSTEM)
    assert refusal.value.message == "The database was lost again and again; try again"
    assert parents == [False] * 5
    assert engine.commit([Probe(errors=[TransactionLost()])], actor=SYSTEM).results == ["result"]


def test_a_connection_loss_inside_a_transaction_is_raised(parents):
    with pytest.raises(TransactionLost):
        engine.commit([Probe(errors=[TransactionLost()])], actor=SYSTEM)
    assert parents == [False]


# -- refusals


def test_a_refusal_names_its_operation_and_undoes_the_others():
    before, actor = counters(), replace(SYSTEM, progress=Progress())
    first, second = Probe(), Probe(errors=[InvalidInput("no")])
    with unchanged(), pytest.raises(InvalidInput, match=r"^no$") as refusal:
        engine.commit([first, second, Probe()], actor=actor)
    assert refusal.value.operation == 1
    assert counted(before) == {("commits", "refused"): 1}
    assert (first.refusals, second.refusals) == ([], [])
    assert actor.progress.committed is False


def test_a_refusal_of_a_single_operation_is_passed_to_it():
    error = InvalidInput("no")
    operation = Probe(errors=[error])
    with unchanged(), pytest.raises(InvalidInput) as refusal:
        engine.commit([operation], actor=SYSTEM)
    assert refusal.value.operation == 0
    assert operation.refusals == [error]


def test_an_operation_that_cannot_be_prepared_is_refused_before_any_lock(parents):
    with unchanged(), pytest.raises(InvalidInput) as refusal:
        engine.commit([Probe(), Probe(unprepared=InvalidInput("no"))], actor=SYSTEM)
    assert refusal.value.operation == 1
    assert parents == []


def test_conflicts_are_counted_as_such():
    before = counters()
    operation = Probe(errors=[VersionAlreadyExists(TABLE, 3)])
    with unchanged(), pytest.raises(VersionAlreadyExists):
        engine.commit([operation], actor=SYSTEM)
    assert counted(before) == {("commits", "conflict"): 1, ("versions", "conflict"): 1}
    assert operation.refusals == []


@pytest.mark.parametrize(
    ("missing", "identifier"),
    [(("a", "b"), ("a", "b", "t")), (("a",), ("a", "t"))],
)
def test_a_table_in_a_missing_namespace_is_refused(missing, identifier):
    make_root()
    if len(missing) > 1:
        make_namespace(*missing[:-1])
    with unchanged(), pytest.raises(NamespaceNotFound) as refusal:
        engine.commit([table_operations.DropTable(table=identifier)], actor=SYSTEM)
    assert refusal.value.identifier == missing


def test_a_missing_table_is_refused():
    make_root()
    make_namespace("a", "b")
    with unchanged(), pytest.raises(TableNotFound) as refusal:
        engine.commit([table_operations.DropTable(table=("a", "b", "t"))], actor=SYSTEM)
    assert refusal.value.identifier == ("a", "b", "t")


def test_a_refusal_spells_names_as_the_request_does():
    make_root()
    make_namespace("a b")
    drop = table_operations.DropTable(table=("a+b", "t"))
    with unchanged(), pytest.raises(TableNotFound) as refusal:
        engine.commit([drop], actor=SYSTEM)
    assert refusal.value.identifier == ("a+b", "t")
    create = namespace_operations.CreateNamespace(namespace=("c", "d"))
    with unchanged(), pytest.raises(NamespaceNotFound) as refusal:
        engine.commit([create], actor=SYSTEM)
    assert refusal.value.identifier == ("c",)


def test_a_stored_name_is_spelled_as_the_request_does():
    class Spelled(Probe):
        def tables(self):
            return [("a+b", "t")]

    for error, identifier in (
        (NamespaceNotFound(("a b",)), ("a+b",)),
        (TableNotFound(("a b", "t")), ("a+b", "t")),
    ):
        error.detail = "a detail"
        refusal = Spelled().respelled(error)
        assert (type(refusal), refusal.identifier) == (type(error), identifier)
        assert refusal.detail == "a detail"
    for error in (NamespaceNotFound(("a+b",)), NamespaceNotFound(("c",)), InvalidInput("no")):
        assert Spelled().respelled(error) is error


def test_an_unknown_outcome_names_the_transaction():
    row = Transaction(actor="etl")
    refusal = commit_outcomes.unknown(row)
    assert refusal.message == "The database was lost during the commit, so its outcome is not known"
    assert refusal.detail == (
        "Read what the request was to change before you send it again. Transaction"
        f" '{row.pk}' exists if the commit stands."
    )


def test_an_action_that_fails_after_a_commit_is_logged(caplog):
    batch, calls = Batch(SYSTEM), []

    def fail(rows: list[object]) -> None:
        raise DatabaseError(rows)

    batch.after_commit(fail, make_root())
    batch.after_commit(calls.append, make_root())
    batch.finish()
    (record,) = caplog.records
    assert record.getMessage() == "An action after a commit failed; a periodic task repeats it"
    assert record.exc_info[0] is DatabaseError
    assert len(calls) == 1


def test_rows_that_a_batch_did_not_lock_leave_the_cache():
    batch = Batch(SYSTEM)
    row = make_root()
    batch.enter_namespace(row)
    assert batch.find_namespace(()) == row
    for _ in range(2):
        batch.forget_namespace(row)
        assert batch.find_namespace(()) is None
    table = Table(namespace=row, name="t", digest=digest(("t",)))
    for _ in range(2):
        batch.forget_table(table)
        assert batch.find_table(("t",)) is None


def test_the_namespace_of_a_table_is_read_if_another_is_cached(monkeypatch):
    parent, other = make_namespace("ws"), make_namespace("other")
    table = Table(namespace=parent, name="t", digest=digest(("ws", "t")))
    monkeypatch.setattr(table_cache, "namespaces", NamespaceCache())
    for cached in (parent, other):  # another namespace may have the path since
        table_cache.namespaces._rows[digest(("ws",))] = cached
        assert Batch(SYSTEM).parent(table, ("ws",)) == parent


def test_the_cache_of_tables_is_emptied_when_it_is_full():
    cache = TableCache()
    cache._rows = dict.fromkeys(range(19_999))
    cache.get({digest(TABLE)})
    assert len(cache._rows) == 19_999
    cache._rows[19_999] = None
    cache.get({digest(TABLE)})
    assert cache._rows == {}


def test_an_audit_row_names_the_interface_and_the_key():
    actor = replace(SYSTEM, interface="lance", key="nightly", request_id="r1", context={"a": "b"})
    row = audit_records.event(actor, "a.b", "ws.t", after={"x": 1}, before={"password": "p"})
    assert vars(row) == {
        "actor": "system",
        "action": "a.b",
        "target": "ws.t",
        "table_uuid": None,
        "before": {"password": "***"},
        "after": {"x": 1},
        "context": {"a": "b"},
        "request_id": "r1",
        "transaction_id": None,
        "interface": "lance",
        "key": "nightly",
    }
