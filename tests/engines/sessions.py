"""Sessions of engines with a Python client, each in a process with packages of its own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines import statements

_LOOP = """
import json, sys
answers, sys.stdout = sys.stdout, sys.stderr
exec(sys.argv[1])
for line in sys.stdin:
    try:
        answer = {"rows": execute(json.loads(line))}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer, default=str), file=answers, flush=True)
"""
"""Runs a program that defines `execute`, and calls it with each statement."""
_STOP_SECONDS = 30


class StatementError(Exception):
    """A statement failed; the message is the engine's."""


class Session:
    """Statements to one session, which ends with the process."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def __call__(self, statement: str) -> statements.Rows:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(statement)}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the session ended:\n{self._log.read_text()[-5000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise StatementError(answer["error"])
        rows: statements.Rows = answer["rows"]
        return rows


def environment(packages: Path, home: Path, **variables: str) -> dict[str, str]:
    """The environment of a process with these packages, and with nothing of this one's."""
    return {
        "PYTHONPATH": str(packages),
        "PATH": os.pathsep.join([f"{packages}/bin", "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": str(home),
        **variables,
    }


@contextmanager
def session(program: str, directory: Path, variables: dict[str, str]) -> Iterator[Session]:
    """A session of a program that defines `execute`. It runs in the directory."""
    log = directory / "session.log"
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _LOOP, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            cwd=directory,
            env=variables,
        ) as process,
    ):
        try:
            yield Session(process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
