"""The events that a job writes to standard output, one JSON object per line."""

import json
import threading
from typing import Any

_output_lock = threading.Lock()


def emit(event: str, **fields: Any) -> None:
    """Write an event to standard output."""
    with _output_lock:
        print(json.dumps({"event": event, **fields}), flush=True)


def report_removed(paths: list[str]) -> None:
    """Report removed files to the catalog, which records them in the audit trail."""
    if paths:
        emit("part", data={"removed": paths})
