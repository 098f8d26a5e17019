"""The history of a run: every operation that a client began, and what it was answered."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"


@dataclass
class Operation:
    """One line of the history. ``id`` is also the request id, so the catalog's rows name it.

    ``fail`` means a definite refusal: the server said that nothing changed. ``unknown`` means that the
    answer was lost, or said that the outcome is not known.
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
    """Of the monotonic clock, in nanoseconds, like ``call``; 0 if it never returned."""
    outcome: str = UNKNOWN
    status: int = 0
    message: str = ""

    @property
    def is_write(self) -> bool:
        return bool(self.steps)


class History:
    """Thread-safe; keeps the operations in memory and writes each to ``path`` as it returns."""

    def __init__(self, path: Path | None = None) -> None:
        self.operations: list[Operation] = []
        self._file = path.open("w", encoding="utf-8") if path else None
        self._lock = threading.Lock()

    def begin(self, operation: Operation) -> Operation:
        operation.call = time.monotonic_ns()
        return operation

    def end(self, operation: Operation) -> None:
        if operation.outcome != UNKNOWN:
            operation.returned = time.monotonic_ns()
        line = json.dumps(asdict(operation)) if self._file else ""
        with self._lock:
            self.operations.append(operation)
            if self._file:
                self._file.write(line + "\n")

    def close(self) -> None:
        if self._file:
            self._file.close()


def read(path: Path) -> Iterator[Operation]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield Operation(**json.loads(line))
