"""Statements of an event loop, on connections of their own to the test database."""

import asyncio
import errno
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from catalog.postgresql import limits, pipeline
from catalog.postgresql.pipeline import NoRow, Pipeline, numbered

STATEMENTS = {
    "echo": "SELECT $1::bigint, pg_backend_pid()",
    "nothing": "SELECT 1 WHERE false",
    "types": "SELECT ARRAY[1, 2]::bigint[], ARRAY['a', 'b,c']::text[], NULL::text, $1::uuid",
    "wait": "SELECT pg_sleep($1::float)",
    "date": "SELECT $1::date",
    "divide": "SELECT 1 / $1::int",
}
UUID = "018f3c1e-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def _quickly(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pipeline, "_PAUSE_SECONDS", 0.0)
    parameters = pipeline._parameters()
    yield
    # A session whose client has gone ends after its statement.
    while _sleeping_sessions(parameters):
        time.sleep(0.05)


def _sleeping_sessions(parameters: dict[str, Any]) -> int:
    with psycopg.connect(**parameters) as other:
        row = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event = 'PgSleep'"
        ).fetchone()
    return 0 if row is None else row[0]


def run(
    work: Callable[[Pipeline], Awaitable[None]], statements: dict[str, str] | None = None
) -> None:
    async def serve() -> None:
        connected = Pipeline(asyncio.get_running_loop(), statements or STATEMENTS)
        try:
            await asyncio.wait_for(work(connected), 30)
        finally:
            connected.close()
            for thread in threading.enumerate():
                if thread.name == "pipeline":
                    await asyncio.to_thread(thread.join)
            await asyncio.sleep(0)  # a connection that has just been opened is closed

    asyncio.run(serve())


async def row(connected: Pipeline, name: str, *parameters: object) -> Any:
    """The row of a statement, as soon as there is a connection."""
    values = [None if value is None else str(value).encode() for value in parameters]
    while (future := connected.execute(name.encode(), values)) is None:  # noqa: ASYNC110 -- set by a thread
        await asyncio.sleep(0.01)
    return await future


def end_session(pid: int) -> None:
    with psycopg.connect(**pipeline._parameters()) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [pid])


def test_no_plan_reads_all_rows_of_a_table():
    """And the session has the limits of requests, as those of threads."""

    async def work(connected: Pipeline) -> None:
        scan, bitmap, lock_timeout = await row(connected, "settings")
        assert (scan, bitmap) == ("off", "off")
        assert lock_timeout != "0"

    names = ("enable_seqscan", "enable_bitmapscan", "lock_timeout")
    settings = ", ".join(f"current_setting('{name}')" for name in names)
    run(work, {"settings": f"SELECT {settings}"})


def test_named_parameters_become_numbers():
    text = "SELECT %(a)s, %(b)s, %(a)s"
    assert numbered(text, "b", "a") == "SELECT $2, $1, $2"


def test_the_first_statement_connects():
    async def work(connected: Pipeline) -> None:
        assert connected.execute(b"echo", [b"1"]) is None
        assert (await row(connected, "echo", 7))[0] == 7

    run(work)


def test_many_statements_get_their_own_rows():
    async def work(connected: Pipeline) -> None:
        await row(connected, "echo", 0)
        rows = await asyncio.gather(*(row(connected, "echo", number) for number in range(500)))
        assert [each[0] for each in rows] == list(range(500))
        assert len({each[1] for each in rows}) == 1
        assert not connected._pending

    run(work)


def test_rows_have_the_types_of_their_columns():
    async def work(connected: Pipeline) -> None:
        assert await row(connected, "nothing") is None
        columns = await row(connected, "types", UUID)
        assert columns[:3] == ([1, 2], ["a", "b,c"], None)
        assert str(columns[3]) == UUID

    run(work)


def test_a_failing_statement_fails_those_sent_with_it_and_no_later_ones():
    async def work(connected: Pipeline) -> None:
        await row(connected, "echo", 0)
        results = await asyncio.gather(
            row(connected, "echo", 1),
            row(connected, "divide", 0),
            row(connected, "echo", 2),
            return_exceptions=True,
        )
        assert results[0][0] == 1
        assert [type(result) for result in results[1:]] == [NoRow, NoRow]
        assert (await row(connected, "echo", 3))[0] == 3

    run(work)


def test_a_row_that_cannot_be_read_is_none():
    async def work(connected: Pipeline) -> None:
        pid = (await row(connected, "echo", 0))[1]
        results = await asyncio.gather(
            row(connected, "date", "10000-01-01"),  # Python has no such date
            row(connected, "echo", 1),
            return_exceptions=True,
        )
        assert isinstance(results[0], NoRow)
        assert results[1] == (1, pid)
        assert (await row(connected, "echo", 2)) == (2, pid)

    run(work)


def test_a_lost_connection_is_replaced():
    async def work(connected: Pipeline) -> None:
        pid = (await row(connected, "echo", 0))[1]
        future = connected.execute(b"wait", [b"1"])
        assert future is not None
        await asyncio.sleep(0.05)
        await asyncio.to_thread(end_session, pid)
        with pytest.raises(NoRow):
            await future
        assert (await row(connected, "echo", 1))[1] != pid

    run(work)


def test_a_connection_that_ends_while_it_is_idle_is_replaced():
    async def work(connected: Pipeline) -> None:
        pid = (await row(connected, "echo", 0))[1]
        await asyncio.to_thread(end_session, pid)
        while connected._libpq is not None:  # noqa: ASYNC110 -- set by a callback
            await asyncio.sleep(0.01)
        assert (await row(connected, "echo", 1))[1] != pid

    run(work)


def test_an_error_of_the_system_prevents_no_later_connection(monkeypatch):
    attempts, connect = [], psycopg.connect

    def fail_once(**parameters: Any) -> Any:
        attempts.append(parameters)
        if len(attempts) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return connect(**parameters)

    async def work(connected: Pipeline) -> None:
        assert (await row(connected, "echo", 1))[0] == 1

    with monkeypatch.context() as patch:
        patch.setattr(psycopg, "connect", fail_once)
        run(work)
    assert len(attempts) == 2


def test_nobody_waits_for_long(monkeypatch):
    monkeypatch.setattr(pipeline, "_PATIENCE_SECONDS", 0.1)

    async def work(connected: Pipeline) -> None:
        await row(connected, "echo", 0)
        results = await asyncio.gather(
            row(connected, "wait", 1), row(connected, "echo", 1), return_exceptions=True
        )
        assert [type(result) for result in results] == [NoRow, NoRow]
        assert (await row(connected, "echo", 2))[0] == 2

    run(work)


def test_an_idle_connection_is_not_given_up(monkeypatch):
    monkeypatch.setattr(pipeline, "_PATIENCE_SECONDS", 0.05)

    async def work(connected: Pipeline) -> None:
        pid = (await row(connected, "echo", 0))[1]
        await asyncio.sleep(0.3)
        assert (await row(connected, "echo", 1))[1] == pid

    run(work)


def test_the_number_of_waiting_statements_is_bounded(monkeypatch):
    monkeypatch.setattr(pipeline, "_MAX_PENDING", 3)

    async def work(connected: Pipeline) -> None:
        await row(connected, "echo", 0)
        futures = [connected.execute(b"echo", [b"1"]) for _ in range(4)]
        assert futures[3] is None
        assert [(await future)[0] for future in futures[:3] if future is not None] == [1, 1, 1]

    run(work)


def test_statements_are_planned_again(monkeypatch):
    monkeypatch.setattr(pipeline, "_PLANNED_AGAIN_AT", (3, 5))

    async def work(connected: Pipeline) -> None:
        for number in range(10):
            assert (await row(connected, "echo", number))[0] == number
        assert not connected._plan_again_at

    run(work)


def test_a_column_with_another_type_prepares_the_statements_again():
    name = "pipeline_of_tests"
    with psycopg.connect(**pipeline._parameters()) as other:
        other.execute(f"CREATE TABLE {name} AS SELECT 1::int AS value")

        async def work(connected: Pipeline) -> None:
            assert await row(connected, "read") == (1,)
            other.execute(f"ALTER TABLE {name} ALTER value TYPE text")
            with pytest.raises(NoRow):
                await row(connected, "read")
            assert await row(connected, "read") == ("1",)

        try:
            run(work, {"read": f"SELECT * FROM {name}"})
        finally:
            other.execute(f"DROP TABLE {name}")


def test_without_a_database_there_are_no_rows(monkeypatch, caplog):
    monkeypatch.setattr(pipeline, "_parameters", lambda: {"host": "127.0.0.1", "port": 1})

    async def work(connected: Pipeline) -> None:
        for _ in range(20):
            assert connected.execute(b"echo", [b"1"]) is None
            await asyncio.sleep(0.01)

    run(work)
    assert "No connection for reads in the event loop" in caplog.text


def test_without_a_free_file_descriptor_there_are_no_rows(monkeypatch, caplog):
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work(connected: Pipeline) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline.os, "dup", refuse)
            for _ in range(100):
                assert connected.execute(b"echo", [b"1"]) is None
                await asyncio.sleep(0.01)
        assert "Too many open files" in caplog.text
        assert (await row(connected, "echo", 7))[0] == 7

    run(work)


def test_without_a_thread_there_are_no_rows(monkeypatch, caplog):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work(connected: Pipeline) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for _ in range(20):
                assert connected.execute(b"echo", [b"1"]) is None
                await asyncio.sleep(0.01)
        assert "can't start new thread" in caplog.text
        assert (await row(connected, "echo", 7))[0] == 7

    run(work)


def test_a_statement_that_cannot_be_prepared_gives_no_rows(caplog):
    async def work(connected: Pipeline) -> None:
        for _ in range(20):
            assert connected.execute(b"wrong", []) is None
            await asyncio.sleep(0.01)

    run(work, {"wrong": "SELECT no_such_column"})
    assert "no_such_column" in caplog.text


def test_a_closed_pipeline_gives_no_rows():
    async def work(connected: Pipeline) -> None:
        future = None
        await row(connected, "echo", 0)
        future = connected.execute(b"wait", [b"1"])
        connected.close()
        assert future is not None
        with pytest.raises(NoRow):
            await future
        assert connected.execute(b"echo", [b"1"]) is None

    run(work)


def test_its_sessions_have_the_limits_of_requests(monkeypatch):
    limited = limits.RequestLimits(threads=4, lock_seconds=3, statement_seconds=30)
    monkeypatch.setattr(limits, "requests", limited)
    parameters = pipeline._parameters()
    assert parameters["autocommit"] is True
    assert parameters["dbname"] == connection.settings_dict["NAME"]
    with psycopg.connect(**parameters) as other:
        assert other.execute("SHOW statement_timeout").fetchone() == ("30s",)
        assert other.execute("SHOW lock_timeout").fetchone() == ("3s",)
