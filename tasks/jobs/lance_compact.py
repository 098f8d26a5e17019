"""Compaction of one Lance table: executors write groups of fragments anew.

Started by the worker (``tasks.spark``), which plans, and commits what comes back; or by hand, and
then it does both itself, through the catalog:

    MONODON_API_KEY=mnd_... spark-submit tasks/jobs/lance_compact.py sales.orders \
        --url http://127.0.0.1:2333

The worker sends one line of JSON on standard input and then holds that open: when it ends, so does
this process, with all that it started. What happens is told on standard output, a JSON object a line.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import lance
from lance.namespace import RestNamespace
from lance.optimize import Compaction, CompactionTask, RewriteResult
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_MOST_AT_ONCE = 256
_RETRYABLE = "Retryable commit conflict"
_one_at_a_time = threading.Lock()


def tell(event: str, **facts: Any) -> None:
    with _one_at_a_time:
        print(json.dumps({"event": event, **facts}), flush=True)


# --- what is asked -----------------------------------------------------------------------------


def from_worker() -> dict[str, Any]:
    """The request on standard input; from then on this process ends when that does."""
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        more = os.read(0, 65536)
        if not more:
            os._exit(3)
        parts.append(more)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(0, signal.SIGKILL)  # of our own: the worker has made the group

    threading.Thread(target=watch, daemon=True).start()
    request: dict[str, Any] = json.loads(b"".join(parts))
    return request


def from_command_line() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Compact a Lance table of the catalog.")
    parser.add_argument("table", help="such as sales.orders; a JSON list where a name has a dot")
    parser.add_argument("--url", default=os.environ.get("MONODON_URL", "http://127.0.0.1:2333"))
    parser.add_argument("--target-rows", type=int, default=1024 * 1024)
    parser.add_argument("--deleted-ratio", type=float, default=0.1)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    table = (
        json.loads(arguments.table)
        if arguments.table.startswith("[")
        else arguments.table.split(".")
    )
    return {
        "table": table,
        "url": arguments.url,
        "options": {
            "target_rows_per_fragment": arguments.target_rows,
            "materialize_deletions_threshold": arguments.deleted_ratio,
        },
        "is_dry_run": arguments.dry_run,
    }


# --- on executors ------------------------------------------------------------------------------


def rewrite(uri: str, version: int, task: str) -> str:
    """Write a group's rows to new files. Nothing of the table changes."""
    dataset = lance.dataset(uri, version=version)
    return str(CompactionTask.from_json(task).execute(dataset).json())  # type: ignore[attr-defined]


def execute(
    context: SparkContext, uri: str, version: int, tasks: list[str]
) -> Iterator[tuple[int, str | None, str]]:
    """Number, result and error of each group, as they end.

    Each is a job of Spark's own: so one that fails takes no other with it.
    """

    def run(task: str) -> str:
        rows = context.parallelize([task], 1)
        return str(rows.map(lambda text: rewrite(uri, version, text)).collect()[0])

    at_once = min(len(tasks), 2 * context.defaultParallelism, _MOST_AT_ONCE)
    with ThreadPoolExecutor(max_workers=max(at_once, 1)) as pool:
        running = {pool.submit(run, task): number for number, task in enumerate(tasks)}
        for ended in as_completed(running):
            try:
                yield running[ended], ended.result(), ""
            except (PySparkException, Py4JError) as error:
                yield running[ended], None, _last_line(error)


def _last_line(error: BaseException) -> str:
    """What was wrong: Python's own error, below Java's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error:" in line and not line.startswith(("at ", "org."))]
    return (named or lines or [repr(error)])[-1][:1000]


# --- the two ways of being run -------------------------------------------------------------------


def for_worker(context: SparkContext, request: dict[str, Any]) -> dict[str, Any]:
    """Only the executors' part; the worker commits."""
    sizes, finished = request["sizes"], 0
    rewrites, failed = [], []
    for number, result, error in execute(
        context, request["uri"], request["version"], request["tasks"]
    ):
        if result is None:
            failed.append(error)
        else:
            rewrites.append(result)
        finished += sizes[number]
        tell("progress", done=finished, total=sum(sizes))
    return {"rewrites": rewrites, "failed": failed}


def by_hand(context: SparkContext, request: dict[str, Any]) -> dict[str, Any]:
    """Plan, execute, and commit each group as it ends. What others changed meanwhile is left."""
    key = os.environ.get("MONODON_API_KEY", "")
    headers = {"header.x-api-key": key} if key else {}
    catalog = RestNamespace(uri=request["url"], **headers)  # type: ignore[no-untyped-call]

    def newest() -> lance.LanceDataset:
        return lance.dataset(namespace_client=catalog, table_id=request["table"])

    dataset = newest()
    planned = Compaction.plan(dataset, request["options"]).tasks
    sizes = [len(task.fragments) for task in planned]
    result = {"version": dataset.version, "groups": len(planned), "fragments": sum(sizes)}
    if request["is_dry_run"]:
        return result
    tasks = [task.json() for task in planned]  # type: ignore[attr-defined]
    finished = committed = remaining = 0
    for number, text, error in execute(context, dataset.uri, dataset.version, tasks):
        reason = error
        if text is not None:
            try:
                Compaction.commit(newest(), [RewriteResult.from_json(text)])  # type: ignore[attr-defined]
                committed += 1
            except OSError as conflict:
                if _RETRYABLE not in str(conflict):
                    raise
                reason = "others changed it meanwhile"
        if reason:
            remaining += 1
            tell("log", level="warning", message=f"group {number} is left as it was: {reason}")
        finished += sizes[number]
        tell("progress", done=finished, total=sum(sizes))
    return {**result, "committed": committed, "left": remaining, "version": newest().version}


def main() -> int:
    is_from_worker = bool(os.environ.get("MONODON_JOB"))
    request = from_worker() if is_from_worker else from_command_line()
    try:
        spark = SparkSession.builder.appName("monodon lance_compact").getOrCreate()
        context = spark.sparkContext
        tell("log", message=f"Spark {spark.version} runs as {context.applicationId}")
        result = (for_worker if is_from_worker else by_hand)(context, request)
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        tell("failed", kind="error", message=_last_line(error))
        print(error, file=sys.stderr)
        return 1
    tell("result", data=result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
