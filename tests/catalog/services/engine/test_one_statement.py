"""Commits that take one statement if they can: when they repeat with locks, and what they read before."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import psycopg
import pytest
from django.db import IntegrityError

from catalog.access import SYSTEM, IdempotencyKey, Principal
from catalog.access.principal import Progress
from catalog.errors import InvalidInput, OutcomeUnknown, TableNotFound
from catalog.identifiers import digest
from catalog.models import Table, TableState, TableVersion, Transaction
from catalog.services.engine import commit as engine
from catalog.services.engine import table_cache
from catalog.services.engine.batch import Batch, LocksRequired
from catalog.services.engine.operation import first_target
from catalog.services.engine.statements import NewVersion
from tests.catalog.services.engine.test_commit import (
    TABLE,
    Probe,
    counted,
    counters,
    database_error,
    deadlock,
)
from tests.factories import make_root, make_table, make_version, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
NAME = digest(TABLE)


@dataclass(frozen=True, kw_only=True)
class Append(Probe):
    """An operation that adds a version, and fails with one error at each attempt."""

    version: int = 2
    attempts: list[str] = field(default_factory=list)
    """How each attempt was made."""
    looks: list[Mapping[Any, Table]] = field(default_factory=list)
    """The tables that each look at the files got."""
    needs_files: bool = False
    is_append: bool = True

    def only_adds(self) -> bool:
        return self.is_append

    def look(self, tables: Mapping[Any, Table]) -> "Append":
        self.looks.append(tables)
        return self

    def apply(self, batch: Batch) -> str:
        self.attempts.append("one statement" if batch.is_one_statement else "locks")
        if self.errors:
            raise self.errors.pop(0)
        if self.needs_files:
            batch.require_looked()
        table = batch.table(TABLE)
        batch.add(
            NewVersion(
                table=table,
                branch="",
                version=self.version,
                manifest_path=f"{self.version}.manifest",
                staged_path=None,
                manifest_size=None,
                e_tag=None,
                metadata=None,
                transaction_id=batch.transaction.id,
            )
        )
        batch.record("ws.t", table=table)
        return "result"


@dataclass(frozen=True, kw_only=True)
class Swap(Append):
    swaps: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def table(db: None) -> Table:
    make_root()
    row = make_table(*TABLE)
    make_version(TABLE, 1)
    return row


def versions() -> list[int]:
    return list(TableVersion.objects.order_by("version").values_list("version", flat=True))


def test_a_version_is_added_in_one_statement(table):
    operation = Append()
    assert engine.commit([operation], actor=SYSTEM).results == ["result"]
    assert (operation.attempts, operation.looks) == (["one statement"], [])
    assert versions() == [1, 2]


@pytest.mark.parametrize(
    "error",
    [InvalidInput("rests on an old row"), LocksRequired(), deadlock(), IntegrityError()],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_that_may_rest_on_old_rows_is_decided_with_locks(error):
    operation = Append(errors=[error])
    assert engine.commit([operation], actor=SYSTEM).results == ["result"]
    assert operation.attempts == ["one statement", "locks"]
    assert versions() == [1, 2]


@pytest.mark.parametrize(
    "error",
    [OutcomeUnknown("lost"), database_error(psycopg.OperationalError())],
    ids=lambda error: type(error).__name__,
)
def test_other_failures_are_final(error):
    operation = Append(errors=[error])
    with unchanged(), pytest.raises(type(error)):
        engine.commit([operation], actor=SYSTEM)
    assert operation.attempts == ["one statement"]


def test_a_violation_that_an_operation_recognizes_is_final():
    operation = Append(errors=[IntegrityError()], conflict_error=InvalidInput("taken"))
    with unchanged(), pytest.raises(InvalidInput, match=r"^taken$") as refused:
        engine.commit([operation], actor=SYSTEM)
    assert refused.value.operation == 0
    assert operation.attempts == ["one statement"]


def test_a_table_that_has_changed_is_read_again(table):
    first, second = Append(version=2), Append(version=3)
    engine.commit([first], actor=SYSTEM)
    Table.objects.filter(pk=table.pk).update(state=TableState.DROPPED)
    with unchanged(), pytest.raises(TableNotFound):
        engine.commit([second], actor=SYSTEM)
    assert second.attempts == ["one statement", "locks"]
    third = Append(version=3)
    with unchanged(), pytest.raises(TableNotFound):
        engine.commit([third], actor=SYSTEM)
    assert third.attempts == ["locks"]  # it is not in the cache any more


@pytest.mark.parametrize(
    ("operations", "way"),
    [
        ([Append(version=2), Append(version=3)], "one statement"),
        ([Append(version=2), Swap(version=3)], "one statement"),
        ([Swap(version=2), Swap(version=3)], "locks"),
        ([Append(version=2), Append(version=3, is_append=False)], "locks"),
    ],
)
def test_operations_are_committed_in_one_statement_if_possible(operations, way):
    engine.commit(operations, actor=SYSTEM)
    assert [operation.attempts for operation in operations] == [[way], [way]]
    assert versions() == [1, 2, 3]


def test_a_commit_with_an_idempotency_key_takes_locks():
    key = IdempotencyKey(NAME, lambda: "fingerprint")
    operation = Append()
    engine.commit([operation], actor=replace(SYSTEM, idempotency=key))
    assert operation.attempts == ["locks"]


def test_files_are_read_before_the_locks(table):
    operation = Append(errors=[LocksRequired()])
    table_cache.tables.get({NAME})
    engine.commit([operation], actor=SYSTEM)
    assert operation.looks == [{NAME: table}]


def test_files_that_an_operation_needs_are_read_without_the_locks(table):
    operation = Append(needs_files=True, is_append=False)
    engine.commit([operation], actor=SYSTEM)
    assert operation.attempts == ["locks", "locks"]
    assert operation.looks == [{NAME: table}]
    operation = Append(needs_files=True, version=3)
    engine.commit([operation], actor=SYSTEM)
    assert (operation.attempts, operation.looks) == (["one statement"], [])


# --- what a commit leaves behind ---------------------------------------------------------------


def seconds() -> tuple[float, float]:
    """The number of measured commits, and their seconds."""
    (metric,) = engine.COMMIT_SECONDS.collect()
    values = {sample.name: sample.value for sample in metric.samples}
    return values["monodon_commit_seconds_count"], values["monodon_commit_seconds_sum"]


@pytest.mark.parametrize("error", [None, InvalidInput("no"), ValueError("a bug")])
def test_the_duration_of_each_commit_is_measured(error):
    count, total = seconds()
    operation = Probe(errors=[error] if error is not None else [])
    if error is None:
        engine.commit([operation], actor=SYSTEM)
    else:
        with pytest.raises(type(error)):
            engine.commit([operation], actor=SYSTEM)
    assert seconds()[0] == count + 1
    assert 0 < seconds()[1] - total < 60


def dry(actor: Principal = SYSTEM) -> Principal:
    return replace(actor, progress=Progress(is_dry_run=True))


def test_a_refused_dry_run_leaves_nothing_behind():
    before, operation = counters(), Probe(errors=[InvalidInput("no")])
    with unchanged(), pytest.raises(InvalidInput):
        engine.commit([operation], actor=dry())
    assert operation.refusals == []
    assert counted(before) == {("commits", "refused"): 1}


def test_a_commit_exempts_the_large_files_that_it_has_read_unless_it_is_rolled_back(monkeypatch):
    """The limit on reading them must not fail a request whose change stands."""
    exempted: list[bool] = []
    monkeypatch.setattr(engine.large_inputs, "exempt", lambda: exempted.append(True))
    engine.commit([Probe()], actor=dry())
    assert exempted == []
    engine.commit([Probe()], actor=SYSTEM)
    assert exempted == [True]
    with pytest.raises(InvalidInput):
        engine.commit([Probe(errors=[InvalidInput("no")])], actor=SYSTEM)
    assert exempted == [True]


def test_the_rights_of_an_actor_are_confirmed_before_anything_is_prepared():
    def refuse() -> None:
        raise InvalidInput("the job has lost its rights")

    operation = Probe(unprepared=InvalidInput("prepared"))
    with unchanged(), pytest.raises(InvalidInput, match="lost its rights"):
        engine.commit([operation], actor=replace(SYSTEM, confirm=refuse))


# --- what a commit locks -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Find(Probe):
    """An operation that records the table that it finds, and whether locations may be shared."""

    shares: bool = False
    finds: list[Any] = field(default_factory=list)

    def shares_locations(self) -> bool:
        return self.shares

    def apply(self, batch: Batch) -> str:
        self.finds.append((batch.find_table(TABLE), batch.shares_locations))
        return super().apply(batch)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([True, True], [True, True]),
        ([True, False, True, False, True], [False, False, False, True, True]),
        ([False, True], [True, True]),
    ],
)
def test_locations_are_shared_once_no_later_operation_locks_them(shares, expected):
    operations = [Find(shares=value) for value in shares]
    engine.commit(operations, actor=SYSTEM)
    assert [is_shared for operation in operations for _, is_shared in operation.finds] == expected


def test_several_operations_do_not_get_a_table_that_the_actor_may_not_see(table):
    stranger = Principal("stranger")
    single, first, second = Find(), Find(), Find()
    engine.commit([single], actor=stranger)
    outcome = engine.commit([first, second], actor=stranger)
    tables = [operation.finds[0][0] for operation in (single, first, second)]
    assert tables == [table, None, None]
    assert Transaction.objects.get(pk=outcome.transaction_id).actor == "stranger"


@dataclass(frozen=True, kw_only=True)
class Named(Probe):
    """An operation that locks these names."""

    locks: Mapping[str, list[Any]]

    def tables(self) -> Any:
        return self.locks.get("tables", [])

    def namespaces(self) -> Any:
        return self.locks.get("namespaces", [])

    def subtrees(self) -> Any:
        return self.locks.get("subtrees", [])


def test_a_commit_is_named_after_the_first_object_that_it_locks():
    locks: dict[str, list[Any]] = {"subtrees": [("c",)]}
    assert first_target([Named(locks={}), Named(locks=locks)]) == ()
    assert first_target([Named(locks=locks)]) == ("c",)
    locks["namespaces"] = [("b",), ("d",)]
    assert first_target([Named(locks=locks)]) == ("b",)
    locks["tables"] = [("a", "t")]
    assert first_target([Named(locks=locks), Named(locks={})]) == ("a", "t")
