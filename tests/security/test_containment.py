"""A table whose files make Lance end a process, or take its memory, does so a few times only."""

import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from django.conf import settings as django_settings

from api.front import connections
from catalog.errors import Busy, ServiceUnavailable
from catalog.services.lance.containment import calls, journal, watcher
from catalog.services.lance.containment.journal import Journal, Verdict
from catalog.storage.outages import availability, large_inputs
from tests.api.front.test_connections import spare_descriptors
from tests.catalog.storage.outages.test_availability import eventually
from tests.live import LiveServer, Lost, live_template
from tests.security import hostile_data_files

__all__ = ["live_template"]
MIB = 1024**2
TABLE = ("ns", "t")


SUSPECT = Verdict(runs_alone=True)
STRONGLY_SUSPECT = Verdict(runs_alone=True, must_run_alone=True)


def ended(
    shared: Journal,
    *names: tuple[str, str],
    is_suspect: bool = False,
    joined_by: tuple[tuple[str, str], ...] = (),
) -> int:
    """A process that ends during calls for tables and principals; returns its number.

    ``joined_by``: the calls which began later, beside those that had to run alone.
    """
    verdict = STRONGLY_SUSPECT if joined_by else SUSPECT if is_suspect else Verdict()
    with warnings.catch_warnings():  # Lance warns, but this process calls nothing of it
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            for table, principal in names:
                shared.begin(tuple(table.split(".")), principal, verdict)
            for table, principal in joined_by:
                shared.begin(tuple(table.split(".")), principal)
            finished = shared.begin(("finished",), "nobody")
            shared.end(finished)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def test_tables_and_principals_of_an_ended_process_are_suspect() -> None:
    shared = Journal()
    pid = ended(shared, ("evil", "user:mallory"), ("good", "user:ada"))
    assert shared.verdict(("evil",), "user:bob") == Verdict()  # nobody has looked yet
    (death,) = shared.recover()
    assert (death.pid, death.is_certain) == (pid, False)
    assert death.names == ("evil (user:mallory)", "good (user:ada)")
    assert shared.verdict(("evil",), "user:bob") == SUSPECT
    assert shared.verdict(("other",), "user:mallory") == SUSPECT
    assert shared.verdict(("other",), "user:bob") == Verdict()
    assert shared.verdict(("finished",), "nobody") == Verdict()
    assert shared.recover() == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass in the journal."""
    passed = 0.0
    now = time.monotonic

    def let_pass(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(journal, "monotonic", lambda: now() + passed)
    return let_pass


def test_a_table_that_ends_a_process_alone_is_refused(clock: Callable[[float], None]) -> None:
    shared = Journal()
    for expected in (600, 1200, 2400):
        ended(shared, ("evil", "user:mallory"), is_suspect=True)
        ended(shared, ("evil", "user:mallory"), is_suspect=True)  # in another process
        assert [death.is_certain for death in shared.recover()] == [True, True]
        assert round(shared.verdict(("evil",), "user:bob").refused_seconds) == expected
        clock(expected + 1)
        assert shared.verdict(("evil",), "user:bob").refused_seconds == 0
    assert shared.verdict(("good",), "user:bob") == Verdict()


def test_a_principal_with_three_such_tables_is_refused() -> None:
    shared = Journal()
    for number in range(3):
        assert shared.verdict(("good",), "user:mallory").refused_seconds == 0
        ended(shared, (f"evil{number}", "user:mallory"), is_suspect=True)
        shared.recover()
    assert round(shared.verdict(("good",), "user:mallory").refused_seconds) == 600
    assert shared.verdict(("good",), "user:bob") == Verdict()


def test_calls_beside_others_are_never_blamed() -> None:
    """Whoever can end a process must not get others' tables refused."""
    shared = Journal()
    for number in range(10):
        ended(shared, (f"evil{number}", "user:mallory"), ("good", "user:ada"), is_suspect=True)
        shared.recover()
    verdict = shared.verdict(("good",), "user:ada")
    assert (verdict.must_run_alone, verdict.refused_seconds) == (True, 0)


def test_calls_of_one_principal_for_several_tables_are_counted_for_it() -> None:
    """It may read a table of others beside its own, which must not be refused."""
    shared = Journal()
    for _ in range(3):
        ended(shared, ("evil", "user:mallory"), ("good", "user:mallory"), is_suspect=True)
        (death,) = shared.recover()
        assert death.is_certain
    assert shared.verdict(("other",), "user:mallory").refused_seconds > 0
    assert shared.verdict(("good",), "user:ada").refused_seconds == 0
    assert shared.verdict(("evil",), "user:ada").refused_seconds == 0


def test_a_slow_end_is_blamed_on_the_call_that_had_to_run_alone() -> None:
    """Calls of others join it after a second, while Lance goes on to take memory."""
    shared = Journal()
    for number in range(journal.MAX_SUSPICIONS):
        ended(shared, ("evil", "user:mallory"), (f"good{number}", f"user:{number}"))
        shared.recover()
    assert shared.verdict(("evil",), "user:bob") == STRONGLY_SUSPECT
    ended(shared, ("evil", "user:mallory"), joined_by=(("good", "user:ada"), ("fine", "user:bob")))
    (death,) = shared.recover()
    assert death.is_certain
    assert shared.verdict(("evil",), "user:bob").refused_seconds > 0
    assert shared.verdict(("good",), "user:ada") == SUSPECT


def test_a_certain_cause_exonerates_those_that_were_there_by_chance() -> None:
    """Otherwise, the calls of a busy principal would be refused for ten minutes because of another's table."""
    shared = Journal()
    for _ in range(journal.MAX_SUSPICIONS):
        ended(shared, ("evil", "user:mallory"), ("good", "user:ada"))
    shared.recover()
    assert shared.verdict(("good",), "user:ada") == STRONGLY_SUSPECT
    ended(shared, ("evil", "user:mallory"), is_suspect=True)
    shared.recover()
    assert shared.verdict(("evil",), "user:ada").refused_seconds > 0
    assert shared.verdict(("good",), "user:ada") == SUSPECT


def test_a_process_that_gets_the_number_of_an_ended_one_is_another() -> None:
    shared = Journal()
    ended(shared, ("evil", "user:mallory"))
    shared._owners[0] = os.getpid()  # as if the system had used the number of this process before
    assert [death.names for death in shared.recover()] == [("evil (user:mallory)",)]
    row = shared.begin(("good",), "user:ada")
    assert shared.recover() == []
    shared.end(row)


def test_a_look_at_the_connections_ends_no_claim() -> None:
    """A process loses its locks of a file when it closes any descriptor of the file, also a duplicate."""
    shared = Journal()
    row = shared.begin(("good",), "user:ada")
    for connection in connections._sockets():
        connection.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        os._exit(len(shared.recover()))
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert shared.verdict(("good",), "user:ada") == Verdict()
    shared.end(row)


def test_another_table_with_the_same_label_is_not_confused() -> None:
    """Names may have dots: otherwise, a tenant could get the table of another one refused."""
    shared = Journal()
    ended(shared, ("a.b.c", "user:mallory"), is_suspect=True)
    ended(shared, ("a.d e", "user:mallory"), is_suspect=True)
    shared.recover()
    assert shared.verdict(("a", "b", "c"), "user:ada").refused_seconds > 0
    assert shared.verdict(("a", "d+e"), "user:ada").refused_seconds > 0  # the same table
    for other in (("a", "b.c"), ("a.b", "c"), ("a.b.c",)):
        assert shared.verdict(other, "user:ada") == Verdict()


def test_running_processes_are_not_judged() -> None:
    shared = Journal()
    row = shared.begin(("good",), "user:ada")
    ended(shared, ("evil", "user:mallory"))
    assert len(shared.recover()) == 1
    assert shared.verdict(("good",), "user:ada") == Verdict()
    shared.end(row)


def test_more_calls_and_processes_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_REGION_SIZE", 32)
    shared = Journal()
    rows = [shared.begin((f"t{number}",), "user:ada") for number in range(40)]
    assert rows.count(None) == 8
    for row in rows:
        shared.end(row)
    for _ in range(150):
        ended(shared, ("t", ""))
    assert len(shared.recover()) == 127  # the others found no room


def test_the_oldest_verdict_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MAX_VERDICTS", 4)
    shared = Journal()
    for number in range(6):
        ended(shared, (f"t{number}", ""))
        shared.recover()
    verdicts = [shared.verdict((f"t{number}",), "").runs_alone for number in range(6)]
    assert verdicts == [False, False, True, True, True, True]


def test_a_refusal_outlasts_later_suspicions(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    monkeypatch.setattr(journal, "_MAX_VERDICTS", 4)
    shared = Journal()
    for seconds in (601, 300):
        ended(shared, ("evil", ""), is_suspect=True)
        shared.recover()
        clock(seconds)
    assert shared.verdict(("evil",), "").refused_seconds > 600
    for number in range(6):
        ended(shared, (f"t{number}", ""))
        shared.recover()
    assert shared.verdict(("evil",), "").refused_seconds > 0


# --- calls of one process ----------------------------------------------------------------------


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setattr(availability, "does_serve_requests", True)
    shared = Journal()
    monkeypatch.setattr(calls, "journal", shared)
    monkeypatch.setattr(calls, "_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(calls, "_MUST_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(calls, "_ALONE_SECONDS", 0.3)
    yield shared
    assert calls.running() == []


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def held(table: tuple[str, str], release: threading.Event) -> threading.Thread:
    """A call that runs until the event is set."""

    def work() -> None:
        with calls.contained(table, "user:ada"):
            release.wait(10)

    thread = in_thread(work)
    eventually(lambda: [call.table for call in calls.running()].count(table) == 1)
    return thread


def test_a_refused_table_is_named_with_a_time(shared: Journal) -> None:
    ended(shared, ("ns.t", "user:mallory"), is_suspect=True)
    shared.recover()
    with (
        pytest.raises(ServiceUnavailable, match=r"'ns[.]t' have ended processes") as error,
        calls.contained(TABLE, "user:ada"),
    ):
        pytest.fail("it runs")
    assert 590 < error.value.retry_seconds <= 601
    with calls.contained(("ns", "other"), "user:mallory"):
        pass


def test_a_suspect_call_waits_until_those_of_others_have_ended(shared: Journal) -> None:
    ended(shared, ("ns.t", "user:mallory"))
    shared.recover()
    release = threading.Event()
    other = held(("ns", "other"), release)
    with calls.contained(TABLE, "user:ada"):
        assert len(calls.running()) == 2  # of the same principal
    threading.Timer(0.05, release.set).start()
    with calls.contained(TABLE, "user:bob"):
        assert [call.table for call in calls.running()] == [TABLE]
        assert calls._alone is not None
    other.join()
    assert calls._alone is None


def test_others_wait_for_a_suspect_call_and_then_join_it(shared: Journal) -> None:
    ended(shared, ("ns.t", "user:mallory"))
    shared.recover()
    release = threading.Event()
    suspect = held(TABLE, release)
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        with calls.contained(("ns", "other"), "user:bob"):
            seconds.append(time.monotonic() - began)
    assert 0 < seconds[0] < 0.6
    assert max(seconds[1:]) < 0.1  # it does not keep them waiting again
    release.set()
    suspect.join()


def test_a_call_that_must_run_alone_is_refused_beside_others(shared: Journal) -> None:
    for _ in range(journal.MAX_SUSPICIONS):
        ended(shared, ("ns.t", "user:mallory"))
    shared.recover()
    release = threading.Event()
    other = held(("ns", "other"), release)
    with pytest.raises(Busy, match=r"'ns[.]t'"), calls.contained(TABLE, "user:bob"):
        pytest.fail("it runs")
    release.set()
    other.join()
    with calls.contained(TABLE, "user:ada"):
        pass


def test_a_call_within_a_call_is_part_of_it(shared: Journal) -> None:
    with calls.contained(TABLE, "user:ada"), calls.contained(("ns", "other"), "user:bob"):
        assert [call.table for call in calls.running()] == [TABLE]
    with pytest.raises(ZeroDivisionError), calls.contained(TABLE, "user:ada"):
        raise ZeroDivisionError
    assert not shared._calls["table"].any()


def test_an_abandoned_call_stays_noted_until_it_ends(shared: Journal) -> None:
    with calls.contained(TABLE, "user:ada"):
        end = calls.abandon()
    assert [call.table for call in calls.running()] == [TABLE]
    assert shared._calls["table"].any()
    end()
    assert not shared._calls["table"].any()


def test_the_time_between_items_is_not_a_call(shared: Journal) -> None:
    def items() -> Iterator[int]:
        for number in range(2):
            assert len(calls.running()) == 1
            yield number

    for _ in calls.each(TABLE, "user:ada", items()):
        assert calls.running() == []


def test_the_principal_is_that_of_the_request(shared: Journal) -> None:
    large_inputs.attribute("user:ada")
    with calls.contained(TABLE):
        assert [call.principal for call in calls.running()] == ["user:ada"]
    large_inputs.release()


def test_jobs_note_nothing(shared: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "does_serve_requests", False)
    with calls.contained(TABLE, "user:ada"):
        assert calls.running() == []


@pytest.mark.usefixtures("shared")
def test_memory_ends_the_process_only_during_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[bool] = []
    monkeypatch.setattr(watcher, "_end", lambda: ends.append(True))
    watcher.look(1)
    with calls.contained(TABLE, "user:ada"):
        watcher.look(watcher.memory() * 2)
        assert ends == []
        watcher.look(1)
    assert ends == [True]


def test_memory_is_known_without_a_free_descriptor() -> None:
    assert watcher.memory() > 0
    with spare_descriptors(0):
        assert watcher.memory() > 0


def test_the_limit_of_memory(settings: django_settings, tmp_path: Path, monkeypatch) -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    container = tmp_path / "memory.max"
    monkeypatch.setattr(watcher, "_CGROUP_LIMIT", container)
    assert watcher.memory_limit() == machine // 4 * 3
    container.write_text("max\n")
    assert watcher.memory_limit() == machine // 4 * 3
    container.write_text(f"{400 * MIB}\n")
    assert watcher.memory_limit() == 300 * MIB
    settings.MONODON_WEB_MEMORY_BYTES = 7 * MIB
    assert watcher.memory_limit() == 7 * MIB


# --- a server ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    memory = str(800 * MIB)
    with LiveServer(workers=2, threads=4, MONODON_WEB_MEMORY_BYTES=memory) as server:
        assert server.post("/v1/namespace/w/create")[0] == 200
        for name, write in (
            ("aborts", hostile_data_files.ends_the_process),
            ("swells", hostile_data_files.takes_memory),
            ("good", hostile_data_files.is_good),
        ):
            location = server.warehouse / name
            write(location)
            body = {"location": str(location)}
            assert server.post(f"/v1/table/w${name}/register", body)[0] == 200
        yield server


def count(server: LiveServer, name: str) -> tuple[int, str]:
    """The answer to a request that reads rows; 0 if the connection ended without one."""
    try:
        status, answer = server.post(f"/v1/table/w${name}/count_rows", {"predicate": "id > 5"})
    except Lost:
        return 0, ""
    return status, json.dumps(answer)


@pytest.mark.xdist_group("containment")
@pytest.mark.parametrize("name", ["aborts", "swells"])
def test_a_server_refuses_a_table_that_ends_its_processes(server: LiveServer, name: str) -> None:
    answers = []
    goods = []
    with ThreadPoolExecutor(4) as executor:
        for _ in range(10):
            answers += list(executor.map(lambda _: count(server, name), range(4)))
            if all(
                status == 503 and "have ended processes" in text for status, text in answers[-4:]
            ):
                break
            server.wait_ready()
            goods.append(count(server, "good")[0])
    statuses = [status for status, _ in answers]
    assert statuses.count(0) >= 1
    assert "have ended processes" in answers[-1][1], answers
    assert "Retry" not in answers[-1][1]
    assert set(statuses) <= {0, 503}
    eventually(lambda: count(server, "good")[0] == 200)
    assert goods.count(200) >= len(goods) - 2
    assert f"w.{name} (" in server.log
