"""Which lines of PostgreSQL and Valkey the output leaves out."""

import pytest

from server import routine_lines


@pytest.mark.parametrize(
    "line",
    [
        "LOG:  starting PostgreSQL 18.4 on x86_64-pc-linux-gnu, compiled by gcc, 64-bit",
        'LOG:  listening on Unix socket "/srv/monodon/run/postgres/.s.PGSQL.5432"',
        "LOG:  database system was shut down at 2026-11-26 20:38:36 UTC",
        "LOG:  database system is ready to accept connections",
        "LOG:  received fast shutdown request",
        "LOG:  aborting any active transactions",
        "LOG:  shutting down",
        "LOG:  database system is shut down",
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is not yet accepting connections",
        "FATAL:  the database system is shutting down",
    ],
)
def test_lines_of_every_start_and_stop_are_left_out(line: str) -> None:
    assert routine_lines.of_postgres(line)


@pytest.mark.parametrize(
    "line",
    [
        "LOG:  database system was interrupted; last known up at 2026-11-26 20:40:22 UTC",
        "LOG:  database system was not properly shut down; automatic recovery in progress",
        "LOG:  received immediate shutdown request",
        "LOG:  server process (PID 123) was terminated by signal 9: Killed",
        'FATAL:  data directory "/srv/monodon/postgres" has invalid permissions',
        "ERROR:  a value that ends with: LOG:  shutting down",
        "PANIC:  could not write to file: No space left on device",
        "",
    ],
)
def test_other_lines_of_postgresql_are_printed(line: str) -> None:
    assert not routine_lines.of_postgres(line)


def test_lines_of_valkey() -> None:
    stop = "11878:signal-handler (1795725622) Received SIGTERM scheduling shutdown..."
    assert routine_lines.of_valkey(stop)
    end = "11878:M 26 Nov 2026 20:40:22.304 # Valkey is now ready to exit, bye bye..."
    assert routine_lines.of_valkey(end)
    error = "11878:M 26 Nov 2026 20:40:22.304 # Can't open the append-only file: Permission denied"
    assert not routine_lines.of_valkey(error)
