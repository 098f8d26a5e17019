"""Concurrent commits to Iceberg tables over real connections, and with an unreachable database."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.models.functions import Now

from catalog.access import SYSTEM
from catalog.errors import (
    CatalogError,
    CommitConflict,
    OutcomeUnknown,
    RequirementFailed,
    TableAlreadyExists,
    TableNotFound,
)
from catalog.models import StagedFile, Table, TableVersion, Transaction, TransactionStatus
from catalog.postgresql.outcomes import OutcomeLost
from catalog.services.engine import commit as engine_commit
from catalog.services.engine import commit_outcomes, commit_queue, locks
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import metadata_files, metadata_operations
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.services.iceberg.tables import LoadedTable
from catalog.services.lance.ledger import version_operations
from catalog.storage import local_files, locations
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_root,
    make_table,
)
from tests.rivals import commit_without_turns

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("warehouse", "root"),
]
ROUNDS = 4
T = ("ns", "t")
U = ("ns", "u")


@pytest.fixture
def root(transactional_db) -> None:
    make_root()


@pytest.fixture(params=["turns", "no turns"])
def without_turns(request, monkeypatch) -> None:
    """With turns, as within a process, and without, as between several processes."""
    # All threads of a race wait in this process, on a machine that may be slow.
    monkeypatch.setattr(commit_queue, "_WAIT_SECONDS", 120.0)
    monkeypatch.setattr(commit_queue, "_IMPATIENT_SECONDS", 120.0)
    monkeypatch.setattr(commit_queue, "_PASS_BY_SECONDS", 120.0)
    if request.param == "no turns":
        commit_without_turns(monkeypatch)


def race(*calls: Callable[[], Any]) -> list[Any]:
    """Make the calls concurrently, each over its own connection. Return their results or refusals."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=60)
            return call()
        except CatalogError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def change(
    table: tuple[str, ...], updates: dict[str, str], *requirements: dict[str, Any]
) -> TableChange:
    return TableChange(
        table=table,
        requirements=list(requirements),
        updates=[{"action": "set-properties", "updates": updates}],
    )


def commit_to(
    table: tuple[str, ...], updates: dict[str, str], *requirements: dict[str, Any]
) -> LoadedTable:
    requested = change(table, updates, *requirements)
    return iceberg_commits.commit_table(actor=SYSTEM, change=requested)


def load(table: tuple[str, ...]) -> LoadedTable:
    return iceberg_tables.load_table(actor=SYSTEM, table=table)


def kinds(outcome: list[Any]) -> Counter[str]:
    return Counter(type(result).__name__ for result in outcome)


def agrees(warehouse: Path) -> None:
    """Assert that metadata files on disk and in the ledger are the same, and that no file is
    recorded as pending."""
    assert not StagedFile.objects.exists()
    ledger = {
        locations.iceberg_path(path)
        for path in TableVersion.objects.filter(table__format="iceberg").values_list(
            "manifest_path", flat=True
        )
    }
    assert {str(warehouse / name) for name in files(warehouse)} == ledger
    for table in Table.objects.present().filter(format="iceberg"):
        numbers = list(table.versions.order_by("version").values_list("version", flat=True))
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert table.iceberg_metadata.sequence == numbers[-1]


def test_many_writers_commit_to_one_table(warehouse, without_turns):
    """Eight writers with twenty commits each: no commit is lost."""
    make_iceberg_table(*T)

    def writer(number: int) -> Callable[[], list[int]]:
        def write() -> list[int]:
            sequences = []
            for commit in range(20):
                while True:
                    try:
                        sequences.append(commit_to(T, {f"w{number}.{commit}": "x"}).sequence)
                        break
                    except CommitConflict:  # lost too many races
                        continue
            return sequences

        return write

    outcome = race(*(writer(number) for number in range(8)))
    assert all(isinstance(result, list) for result in outcome), outcome
    assert sorted(sequence for sequences in outcome for sequence in sequences) == list(
        range(1, 161)
    )
    loaded = load(T)
    assert loaded.sequence == 160
    assert set(loaded.document["properties"]) == {
        f"w{number}.{commit}" for number in range(8) for commit in range(20)
    }
    agrees(warehouse)


def test_compatible_commits_both_succeed(warehouse, without_turns):
    made = make_iceberg_table(*T)
    same = {"type": "assert-table-uuid", "uuid": made.document["table-uuid"]}
    for number in range(ROUNDS):
        outcome = race(
            lambda: commit_to(T, {f"a{number}": "x"}, same),  # noqa: B023 -- called at once
            lambda: commit_to(T, {f"b{number}": "x"}, same),  # noqa: B023
        )
        assert kinds(outcome) == {"LoadedTable": 2}
        assert {result.sequence for result in outcome} == {2 * number + 1, 2 * number + 2}
    assert len(load(T).document["properties"]) == 2 * ROUNDS
    agrees(warehouse)


def test_one_of_two_conflicting_commits_succeeds(warehouse, without_turns):
    """Each adds a column to the same schema."""
    make_iceberg_table(*T)
    for number in range(ROUNDS):
        schema = load(T).document["schemas"][-1]
        last = load(T).document["last-column-id"]
        column = {"id": last + 1, "name": f"c{number}", "type": "int", "required": False}

        def add(name: str, schema=schema, last=last, column=column) -> LoadedTable:
            requested = TableChange(
                table=T,
                requirements=[
                    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": last}
                ],
                updates=[
                    {
                        "action": "add-schema",
                        "schema": schema | {"fields": [*schema["fields"], column | {"name": name}]},
                    },
                    {"action": "set-current-schema", "schema-id": -1},
                ],
            )
            return iceberg_commits.commit_table(actor=SYSTEM, change=requested)

        names = [f"by{n} in {number}" for n in range(4)]
        outcome = race(*(lambda name=name: add(name) for name in names))
        assert kinds(outcome) == {"LoadedTable": 1, "RequirementFailed": 3}, outcome
        assert load(T).sequence == number + 1
    agrees(warehouse)


def test_concurrent_creations_of_one_name_have_one_winner(warehouse):
    make_namespace("ns")
    for number in range(ROUNDS):
        table = ("ns", f"t{number}")
        outcome = race(
            *[
                lambda table=table: iceberg_commits.create_table(
                    actor=SYSTEM, table=table, schema=ICEBERG_SCHEMA
                )
            ]
            * 4
        )
        assert kinds(outcome) == {"LoadedTable": 1, "TableAlreadyExists": 3}
        winner = next(result for result in outcome if isinstance(result, LoadedTable))
        assert load(table).document == winner.document
    agrees(warehouse)


def test_concurrent_creations_by_commit_have_one_winner(warehouse, without_turns):
    """The loser gets one of two errors: a failed requirement, or an existing name."""
    make_namespace("ns")
    for number in range(ROUNDS):
        table = ("ns", f"t{number}")
        staged = iceberg_commits.create_table(
            actor=SYSTEM, table=table, schema=ICEBERG_SCHEMA, stage=True
        ).document
        requested = TableChange(
            table=table,
            requirements=[{"type": "assert-create"}],
            updates=[
                {"action": "add-schema", "schema": staged["schemas"][0]},
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "add-spec", "spec": staged["partition-specs"][0]},
                {"action": "set-default-spec", "spec-id": -1},
                {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
                {"action": "set-default-sort-order", "sort-order-id": -1},
                {"action": "set-location", "location": staged["location"]},
            ],
        )
        outcome = race(
            *[
                lambda requested=requested: iceberg_commits.commit_table(
                    actor=SYSTEM, change=requested
                ),
            ]
            * 4
        )
        assert kinds(outcome)["LoadedTable"] == 1
        for result in outcome:
            assert isinstance(
                result, LoadedTable | RequirementFailed | TableAlreadyExists | CatalogError
            )
    agrees(warehouse)


def test_a_commit_races_with_a_drop(warehouse, without_turns):
    for number in range(ROUNDS):
        table = ("ns", f"t{number}")
        made = make_iceberg_table(*table)
        committed, dropped = race(
            lambda table=table: commit_to(table, {"a": "b"}),
            lambda table=table: iceberg_tables.drop_table(actor=SYSTEM, table=table),
        )
        assert isinstance(dropped, Table)
        row = Table.objects.get(pk=made.pk)
        if isinstance(committed, LoadedTable):
            assert row.iceberg_metadata.metadata_location == committed.metadata_location
        else:
            assert type(committed) is TableNotFound
            assert row.iceberg_metadata.metadata_location == made.metadata_location
    agrees(warehouse)


def test_a_commit_races_with_a_rename(warehouse, without_turns):
    make_namespace("other")
    for number in range(ROUNDS):
        table, new = ("ns", f"t{number}"), ("other", f"t{number}")
        make_iceberg_table(*table)
        committed, renamed = race(
            lambda table=table: commit_to(table, {"a": "b"}),
            lambda table=table, new=new: iceberg_tables.rename_table(
                actor=SYSTEM, table=table, new=new
            ),
        )
        assert renamed is None
        if isinstance(committed, LoadedTable):
            assert load(new).document == committed.document
        else:
            assert type(committed) is TableNotFound
            assert load(new).sequence == 0
    agrees(warehouse)


def test_a_commit_races_with_a_replacement(warehouse, without_turns):
    """A commit prepared for the former table is never applied to the new one."""
    for _ in range(ROUNDS):
        first = make_iceberg_table(*T)
        same = {"type": "assert-table-uuid", "uuid": first.document["table-uuid"]}

        def replace() -> LoadedTable:
            iceberg_tables.drop_table(actor=SYSTEM, table=T)
            return iceberg_commits.create_table(actor=SYSTEM, table=T, schema=ICEBERG_SCHEMA)

        committed, second = race(lambda same=same: commit_to(T, {"a": "b"}, same), replace)
        assert isinstance(committed, LoadedTable | TableNotFound | RequirementFailed), committed
        assert load(T).document == second.document
        iceberg_tables.drop_table(actor=SYSTEM, table=T)
    agrees(warehouse)


def test_transactions_over_several_tables_do_not_deadlock(warehouse, without_turns):
    """Transactions change the same tables in different orders, together with Lance versions."""
    tables = [("ns", f"t{number}") for number in range(4)]
    for table in tables:
        make_iceberg_table(*table)
    make_table("ns", "lance")
    before = Transaction.objects.count()

    def writer(number: int) -> Callable[[], int]:
        def write() -> int:
            dice, count_committed = random.Random(number), 0
            for count in range(6):
                chosen = dice.sample(tables, 3)
                version = 1 + number * 6 + count
                create = version_operations.CreateVersion(
                    table=("ns", "lance"), version=version, manifest_path=f"elsewhere/{version}"
                )
                while True:
                    try:
                        iceberg_commits.commit_tables(
                            actor=SYSTEM,
                            changes=[
                                change(table, {f"w{number}.{count}": "x"}) for table in chosen
                            ],
                            also=[create],
                        )
                    except CommitConflict:
                        continue
                    count_committed += 1
                    break
            return count_committed

        return write

    assert race(*(writer(number) for number in range(4))) == [6] * 4
    assert Transaction.objects.count() == before + 24
    assert sum(len(load(table).document["properties"]) for table in tables) == 24 * 3
    assert TableVersion.objects.filter(table__format="lance").count() == 24
    agrees(warehouse)


def test_concurrent_registrations_of_one_file_have_one_winner(warehouse):
    made = make_iceberg_table(*T)
    iceberg_tables.unregister_table(actor=SYSTEM, table=T)
    outcome = race(
        *(
            lambda n=n: iceberg_commits.register_table(
                actor=SYSTEM, table=("ns", f"r{n}"), metadata_location=made.metadata_location
            )
            for n in range(4)
        )
    )
    assert kinds(outcome) == {"LoadedTable": 1, "LocationTaken": 3}
    assert files(warehouse).keys() == {
        str(Path(locations.iceberg_path(made.metadata_location)).relative_to(warehouse))
    }


def test_a_commit_that_loses_every_race_is_given_up(warehouse, monkeypatch):
    """A commit that meets another one at each attempt gives up, and leaves no file."""
    make_iceberg_table(*T)
    monkeypatch.setattr(iceberg_commits, "_ATTEMPTS", 3)
    real, written = local_files.write_new_file, []

    def write_late(path: str, content: bytes) -> None:
        real(path, content)
        written.append(path)
        with monkeypatch.context() as patch:
            patch.setattr(local_files, "write_new_file", real)
            race(lambda: rival(len(written)))

    def rival(number: int) -> LoadedTable:
        with pytest.MonkeyPatch.context() as patch:
            commit_without_turns(patch)
            return commit_to(T, {f"rival{number}": "x"})

    monkeypatch.setattr(local_files, "write_new_file", write_late)
    with pytest.raises(CommitConflict, match="others keep changing it"):
        commit_to(T, {"mine": "x"})
    assert len(written) == 3
    assert load(T).document["properties"] == {f"rival{n}": "x" for n in (1, 2, 3)}
    agrees(warehouse)


# --- an unreachable database -------------------------------------------------------------------


def _end_backend() -> None:
    """End the server process of this connection, as when PostgreSQL is stopped."""
    raw = connection.connection
    with psycopg.connect(raw.info.dsn, password=raw.info.password, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [raw.info.backend_pid])


@pytest.fixture(params=["stood", "did not stand"])
def lost_commit(request, monkeypatch) -> bool:
    """Break the connection at the next COMMIT, before or after it takes effect."""
    stands, real = request.param == "stood", DatabaseWrapper._commit

    def commit(self: DatabaseWrapper) -> None:
        monkeypatch.setattr(DatabaseWrapper, "_commit", real)
        if stands:
            real(self)
        _end_backend()
        if stands:
            self.connection.close()
            raise OperationalError("the connection is lost")
        real(self)

    monkeypatch.setattr(DatabaseWrapper, "_commit", commit)
    return stands


def sweep_later() -> int:
    StagedFile.objects.update(created_at=Now() - timedelta(minutes=16))
    return metadata_files.sweep()


@pytest.fixture
def two_tables() -> list[LoadedTable]:
    return [make_iceberg_table(*T), make_iceberg_table(*U)]


def test_the_outcome_of_a_commit_with_a_lost_answer_is_looked_up(
    warehouse, two_tables, lost_commit
):
    """It took effect, or it is repeated: in the end it took effect once."""
    before = files(warehouse)
    iceberg_commits.commit_tables(
        actor=SYSTEM, changes=[change(T, {"a": "b"}), change(U, {"a": "b"})]
    )
    new = files(warehouse).keys() - before.keys()
    assert len(new) == 2
    assert (load(T).sequence, load(U).sequence) == (1, 1)
    assert not StagedFile.objects.exists()
    failed = Transaction.objects.filter(status=TransactionStatus.FAILED)
    assert failed.count() == (0 if lost_commit else 1)
    agrees(warehouse)
    assert commit_to(T, {"c": "d"}).sequence == 2


@pytest.fixture
def no_look_up(monkeypatch) -> None:
    """The database is unreachable for longer than a request waits for the outcome."""

    def decide(transaction: Transaction) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(commit_outcomes, "_decide", decide)
    monkeypatch.setattr(commit_outcomes, "_PATIENCE_SECONDS", 0)


def test_a_commit_with_an_unknown_outcome_is_reported(
    warehouse, two_tables, lost_commit, no_look_up
):
    before = files(warehouse)
    with pytest.raises(OutcomeUnknown):
        iceberg_commits.commit_tables(
            actor=SYSTEM, changes=[change(T, {"a": "b"}), change(U, {"a": "b"})]
        )
    new = files(warehouse).keys() - before.keys()
    assert len(new) == 2
    assert len(load(T).document["properties"]) == lost_commit
    if lost_commit:
        assert not StagedFile.objects.exists()
        assert sweep_later() == 0
        assert len(files(warehouse)) == 4
    else:
        notes = set(StagedFile.objects.values_list("path", flat=True))
        assert notes == {str(warehouse / name) for name in new}
        assert metadata_files.sweep() == 0  # not yet: the commit may still be running
        assert sweep_later() == 2
        assert files(warehouse) == before
    agrees(warehouse)
    assert commit_to(T, {"c": "d"}).sequence == 1 + lost_commit


def test_the_outcome_of_a_creation_with_a_lost_answer_is_looked_up(
    warehouse, lost_commit_of_a_creation
):
    iceberg_commits.create_table(actor=SYSTEM, table=T, schema=ICEBERG_SCHEMA)
    assert len(files(warehouse)) == 1
    assert Table.objects.named(T).exists()
    assert sweep_later() == 0
    agrees(warehouse)


def test_a_creation_with_an_unknown_outcome_is_reported(
    warehouse, lost_commit_of_a_creation, no_look_up
):
    stands = lost_commit_of_a_creation
    with pytest.raises(OutcomeUnknown):
        iceberg_commits.create_table(actor=SYSTEM, table=T, schema=ICEBERG_SCHEMA)
    assert len(files(warehouse)) == 1
    assert Table.objects.named(T).exists() == stands
    assert sweep_later() == (0 if stands else 1)
    assert len(files(warehouse)) == stands
    agrees(warehouse)


@pytest.fixture
def namespace() -> None:
    make_namespace("ns")


@pytest.fixture(params=["stood", "did not stand"])
def lost_commit_of_a_creation(request, namespace, monkeypatch) -> bool:
    """Lose the answer to the single statement of a creation, which takes effect or not."""
    stands, real = request.param == "stood", engine_commit.insert

    def insert(*arguments: Any) -> None:
        monkeypatch.setattr(engine_commit, "insert", real)
        if stands:
            real(*arguments)
        connection.close()
        raise OutcomeLost("the connection is lost")

    monkeypatch.setattr(engine_commit, "insert", insert)
    return stands


def test_a_commit_whose_session_ended_before_it_is_repeated(warehouse, two_tables, monkeypatch):
    """The commit certainly had no effect, so it is repeated."""
    before, real = files(warehouse), local_files.write_new_file

    def write(path: str, content: bytes) -> None:
        real(path, content)
        _end_backend()

    monkeypatch.setattr(local_files, "write_new_file", write)
    commit_to(T, {"a": "b"})
    assert load(T).sequence == 1
    assert len(files(warehouse).keys() - before.keys()) == 1
    assert sweep_later() == 0
    agrees(warehouse)


def test_a_metadata_file_that_is_being_registered_is_not_removed(monkeypatch):
    """Its table has moved, so another one can be registered at the former location."""
    keep = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    made = make_iceberg_table(*T, properties=keep)
    former = made.metadata_location
    moved = {"action": "set-location", "location": f"{made.location}-moved"}
    iceberg_commits.commit_table(
        actor=SYSTEM, change=TableChange(table=T, requirements=[], updates=[moved])
    )
    is_checked, may_continue = Event(), Event()
    enter = metadata_operations.enter_version

    def enter_late(*arguments: Any) -> None:
        if threading.current_thread() is registration:
            is_checked.set()
            assert may_continue.wait(20)
        enter(*arguments)

    monkeypatch.setattr(metadata_operations, "enter_version", enter_late)
    registration = in_thread(
        lambda: iceberg_commits.register_table(actor=SYSTEM, table=U, metadata_location=former)
    )
    assert is_checked.wait(20)
    writer = in_thread(lambda: set_properties(T, number="1"))
    writer.join(1)
    may_continue.set()
    registration.join(20)
    writer.join(20)
    assert iceberg_tables.load_table(actor=SYSTEM, table=U).metadata_location == former
    assert iceberg_tables.load_table(actor=SYSTEM, table=T).sequence == 2
    assert Path(former.removeprefix("file://")).exists()


def test_commits_that_remove_metadata_files_do_not_wait_for_each_other():
    """Those of tables with several directories, from whose files others could be registered."""
    keep = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.data.path": f"file://{locations.allowed_roots()[0]}/data",
    }
    make_iceberg_table(*T, properties=keep)
    set_properties(T, number="1")
    with transaction.atomic():
        locks.share_locations()  # as such a commit
        writer = in_thread(lambda: set_properties(T, number="2"))
        writer.join(20)
        assert not writer.is_alive()
    assert iceberg_tables.load_table(actor=SYSTEM, table=T).sequence == 2
    assert TableVersion.objects.filter(deleted_at__isnull=False).count() == 1


def in_thread(call: Callable[[], object]) -> Thread:
    def run() -> None:
        try:
            call()
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    return thread


def set_properties(table: tuple[str, ...], **properties: str) -> LoadedTable:
    update = {"action": "set-properties", "updates": properties}
    change = TableChange(table=table, requirements=[], updates=[update])
    return iceberg_commits.commit_table(actor=SYSTEM, change=change)
