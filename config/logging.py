"""Logs: one line per event, as text or JSON, with the request's id."""

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

from api.request_id import request_id

# Attributes of every LogRecord. Others were passed in ``extra`` and are added to the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "request",
}


def configure(options: dict[str, str]) -> None:
    """Set up the root logger. ``options``: format (text or json) and level (settings.LOGGING)."""
    # The lines contain no thread, process or caller, so these need not be determined.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if options["format"] == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(options["level"])
    # RequestMiddleware logs refusals, so only tracebacks remain here.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    logging.getLogger("celery.beat").setLevel(logging.WARNING)
    # The audit trail records log-ins and failed attempts.
    logging.getLogger("axes").setLevel(logging.WARNING)
    # It logs two lines for each periodic task, every fifteen seconds.
    logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


# Characters in paths and names that could start a forged log line.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """The attributes of a record that were passed in ``extra``."""
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
