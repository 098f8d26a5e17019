"""The command line, for a job that is started manually."""

import argparse
import json
import os
import sys
import time
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from .actions import ACTIONS, run
from .errors import Failed, describe
from .events import emit
from .session import start_session


def main() -> int:
    request = from_command_line()
    try:
        spark = start_session(request)
        emit("log", message=f"Spark {spark.version} runs as {spark.sparkContext.applicationId}")
        result = run(request, spark)
    except (Failed, PySparkException, Py4JError, OSError) as error:
        kind, message = describe(error)
        emit("failed", kind=kind, message=message)
        if not isinstance(error, Failed):
            print(str(error).strip(), file=sys.stderr)
        return 1
    emit("result", data=result)
    return 0


def from_command_line() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Maintain an Iceberg table of the catalog.")
    parser.add_argument("action", choices=sorted(ACTIONS))
    parser.add_argument("table", help="such as sales.orders; a JSON list if a name contains a dot")
    parser.add_argument("--url", default=os.environ.get("MONODON_URL", "http://127.0.0.1:2333"))
    parser.add_argument(
        "--catalog",
        help="a catalog that the session has configured, instead of --url and MONODON_API_KEY",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        help="an option of the procedure, such as min-input-files=2",
    )
    parser.add_argument("--strategy", choices=["binpack", "sort"], help="for compact")
    parser.add_argument(
        "--sort-order",
        help="for compact with --strategy sort, such as 'country, created_at DESC NULLS LAST' or"
        " 'zorder(country, created_at)'; the default is the sort order of the table",
    )
    parser.add_argument("--older-than-days", type=float, default=7.0)
    parser.add_argument("--retain-last", type=int, default=10)
    parser.add_argument(
        "--dry-run", action="store_true", help="for remove_orphans: list the files only"
    )
    arguments = parser.parse_args()
    if arguments.dry_run and arguments.action != "remove_orphans":
        parser.error("only remove_orphans supports --dry-run")
    if arguments.action != "compact" and (arguments.strategy or arguments.sort_order):
        parser.error("only compact takes --strategy and --sort-order")
    table = (
        json.loads(arguments.table)
        if arguments.table.startswith("[")
        else arguments.table.split(".")
    )
    return {
        "action": arguments.action,
        "table": table,
        "url": arguments.url,
        "token": os.environ.get("MONODON_API_KEY", ""),
        "catalog": arguments.catalog,
        "strategy": arguments.strategy,
        "sort_order": arguments.sort_order,
        "options": dict(option.split("=", 1) for option in arguments.option),
        "older_than_ms": int((time.time() - arguments.older_than_days * 86_400) * 1000),
        "retain_last": arguments.retain_last,
        "is_dry_run": arguments.dry_run,
    }
