"""The history of a run: every operation of a client, with its answer."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
_READS = {"names", "describe", "latest", "list", "load", "rows"}


@dataclass
class Operation:
    """One line of the history. ``id`` is also the request id, which the catalog's rows contain.

    ``fail`` means a definite refusal: the server answered that nothing changed. ``unknown`` means that the
    answer was lost, or reported an unknown outcome.
    """

    id: str
    process: int
    space: str
    kind: str
    format: str = ""
    name: str = ""
    version: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    output: dict[str, Any] = field(default_factory=dict)
    call: int = 0
    returned: int = 0
    """Monotonic time in nanoseconds, like ``call``; 0 if the operation never returned."""
    outcome: str = UNKNOWN
    status: int = 0
    message: str = ""

    @property
    def is_write(self) -> bool:
        return bool(self.steps)

    @property
    def is_judged(self) -> bool:
        """True if the judges can check the answer.

        Each write is judged: a refused write must not have taken effect, and one without an answer at most once.
        """
        if self.is_write or self.kind == "append":
            return True
        is_refusal = self.output.get("error") in {"missing", "no version"}
        return self.kind in _READS and (self.outcome == OK or is_refusal)


class History:
    """Thread-safe history. Each namespace has its own file below ``directory``; none is kept in
    memory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.operations = 0
        self.judged = 0
        """Number of judged operations."""
        self.outcomes: Counter[str] = Counter()
        self.acknowledged = 0
        """Number of writes."""
        self._files: dict[str, BinaryIO] = {}
        self._lock = threading.Lock()

    def begin(self, operation: Operation) -> Operation:
        operation.call = time.monotonic_ns()
        return operation

    def end(self, operation: Operation) -> None:
        if operation.outcome != UNKNOWN:
            operation.returned = time.monotonic_ns()
        line = orjson.dumps(operation) + b"\n"
        with self._lock:
            self.operations += 1
            self.judged += operation.is_judged
            self.outcomes[operation.outcome] += 1
            self.acknowledged += operation.outcome == OK and operation.is_write
            file = self._files.get(operation.space)
            if file is None:
                file = self._files[operation.space] = self._path(operation.space).open("ab")
            file.write(line)

    def read(self, space: str) -> list[Operation]:
        """Operations of clients in a namespace so far, in the order of their answers."""
        with self._lock:
            if file := self._files.pop(space, None):
                file.close()
            path = self._path(space)
            lines = path.read_bytes().splitlines() if path.exists() else []
        return [Operation(**orjson.loads(line)) for line in lines]

    def spaces(self) -> Iterator[str]:
        return (path.stem for path in self.directory.glob("*.jsonl"))

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _path(self, space: str) -> Path:
        return self.directory / f"{space}.jsonl"
