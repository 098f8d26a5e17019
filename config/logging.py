"""Logs: one line an event, as text for people or as JSON for machines, with the request's id."""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from api.request_id import request_id

# What a LogRecord always has; anything else was passed in ``extra`` and belongs in the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "request",
}


def configure(options: dict[str, str]) -> None:
    """Set up the root logger. ``options``: format (text or json) and level (settings.LOGGING)."""
    # No thread, process and caller in our lines, so no need to find them out for each.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if options["format"] == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(options["level"])
    # Refusals are told by RequestMiddleware; what is left here are tracebacks.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    logging.getLogger("celery.beat").setLevel(logging.WARNING)
    # The audit trail tells who signs in, and who fails to.
    logging.getLogger("axes").setLevel(logging.WARNING)
    # Two lines for each periodic task, every fifteen seconds.
    logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


# What people write into paths and names must not look like a line of its own.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """What was passed in ``extra``, which follows what a record always has."""
    facts = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if current := request_id.get():
        facts.setdefault("request_id", current)
    return facts


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{seconds}.{record.msecs:03.0f} {record.levelname:<7} {record.getMessage()}"
        for name, value in _facts(record).items():
            line += f" {name}={value}"
        line = line.translate(_CONTROL)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
