"""The supervisor's decisions, without processes."""

import io
import os
import re
import time
from pathlib import Path

import pytest

from server.errors import GaveUp
from server.identity import Identity
from server.output import Output
from server.processes import Child, describe_exit
from server.supervisor import CRASHES, Service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    child = Child(
        "web",
        ["/bin/true"],
        sink=lambda line: None,
        environment={},
        directory=tmp_path,
        identity=Identity(owner=(0, 0)),
    )
    return Service(child)


def test_the_wait_before_a_restart_grows_to_a_limit(service: Service) -> None:
    delays = [service.crashed(float(second)) for second in range(CRASHES - 1)]
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays[-1] == 5.0


def test_the_supervisor_stops_after_repeated_crashes(service: Service) -> None:
    for second in range(CRASHES - 1):
        service.crashed(float(second))
    with pytest.raises(GaveUp, match="web died 10 times within 60 s"):
        service.crashed(30.0)


def test_old_crashes_are_forgotten(service: Service) -> None:
    for second in range(CRASHES - 1):
        service.crashed(float(second))
    assert service.crashed(1000.0) == 0.2


def test_log_lines_have_a_padded_name_and_colour_on_terminals() -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    for output in (Output(plain), Output(coloured, colour=True)):
        output.line("web", "started")
        output.flush()
    assert plain.getvalue() == "web      | started\n"
    assert coloured.getvalue() == "\x1b[32mweb      |\x1b[0m started\n"


def test_a_closed_terminal_does_not_stop_anything() -> None:
    stream = io.StringIO()
    stream.close()
    output = Output(stream, colour=False)
    output.line("web", "started")
    output.flush()
    output.line("web", "goes on")
    output.flush()


def test_a_reader_that_stops_reading_does_not_stop_anything() -> None:
    """As a pager does, or a terminal after Ctrl-S: the pipe is full."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as stream:
        output = Output(stream, colour=False)
        began = time.monotonic()
        for number in range(25_000):
            output.line("web", f"{number:0100}")
        output.flush()
        assert time.monotonic() - began < 10
        lines = []
        for line in reader:  # the terminal continues
            lines.append(line)
            if "lost" in line:
                break
        output.line("web", "goes on")
        assert reader.readline() == "web      | goes on\n"
        output.flush()
    assert lines[0] == f"web      | {0:0100}\n"
    assert re.fullmatch(r"monodon  \| \d+ lines were lost: nobody read the output\n", lines[-1])
    assert len(lines) > 10_000


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exited with status 0"), (-9, "was killed by SIGKILL"), (None, "is running")],
)
def test_an_exit_is_described(status: int | None, words: str) -> None:
    assert describe_exit(status) == words
