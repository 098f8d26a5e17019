"""Compaction of a Lance table: Spark executors rewrite groups of fragments.

The driver of the worker (``driver.py``) calls ``run`` for each job; the worker plans the groups and
commits the results. If the script is started manually, it plans and commits by itself, through the
catalog:

    MONODON_API_KEY=mnd_... spark-submit tasks/jobs/lance_compact.py sales.orders \
        --url http://127.0.0.1:2333

Progress, log lines and the result are written to standard output, one JSON object per line.
"""

import argparse
import base64
import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import lance
from lance.dataset import LanceDataset
from lance.namespace import RestNamespace
from lance.optimize import Compaction, CompactionTask, RewriteResult
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_MAX_CONCURRENT = 256
_RETRYABLE = "Retryable commit conflict"
_AUTO_CLEANUP = "lance.auto_cleanup."
_EXPIRES_AT = "expires_at_millis"
"""The storage option with the time at which temporary credentials expire."""
_output_lock = threading.Lock()


def emit(event: str, **fields: Any) -> None:
    """Write an event to standard output."""
    with _output_lock:
        print(json.dumps({"event": event, **fields}), flush=True)


# --- the request ------------------------------------------------------------------------------


def from_command_line() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Compact a Lance table of the catalog.")
    parser.add_argument("table", help="such as sales.orders; a JSON list if a name contains a dot")
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


def rewrite(source: dict[str, Any], version: int, task: str, manifest: bytes | None = None) -> str:
    """Write the rows of a group to new files; returns the result as JSON. The table does not change.

    ``manifest`` is the version as the catalog has checked it. Without it, Lance reads it from storage, where
    it may have been replaced since.

    ``source`` travels to the executors with the code. It has the arguments of ``lance.dataset``:
    ``uri`` and ``storage_options``; or ``table_id``, and ``catalog`` with those of ``RestNamespace``.
    Lance then gets the credentials from the catalog, and renews them before they expire.
    """
    if "catalog" in source:
        catalog = RestNamespace(**source["catalog"])  # type: ignore[no-untyped-call]
        dataset = lance.dataset(
            namespace_client=catalog, table_id=source["table_id"], version=version
        )
    else:
        dataset = LanceDataset(**source, version=version, serialized_manifest=manifest)
    return str(CompactionTask.from_json(task).execute(dataset).json())  # type: ignore[attr-defined]


def execute(
    context: SparkContext,
    source: dict[str, Any],
    version: int,
    tasks: list[str],
    manifest: bytes | None = None,
) -> Iterator[tuple[int, str | None, str]]:
    """Rewrite groups; yields the number, result and error of each as soon as it is finished.

    Each group is a Spark job of its own, so the failure of a group does not stop the others.
    """
    shared = context.broadcast(manifest)  # it may be large

    def run(task: str) -> str:
        rows = context.parallelize([task], 1)
        results = rows.map(lambda text: rewrite(source, version, text, shared.value)).collect()
        return str(results[0])

    at_once = min(len(tasks), 2 * context.defaultParallelism, _MAX_CONCURRENT)
    try:
        with ThreadPoolExecutor(max_workers=max(at_once, 1)) as pool:
            running = {pool.submit(run, task): number for number, task in enumerate(tasks)}
            for ended in as_completed(running):
                try:
                    yield running[ended], ended.result(), ""
                except (PySparkException, Py4JError) as error:
                    yield running[ended], None, _last_line(error)
    finally:
        shared.destroy()


def _last_line(error: BaseException) -> str:
    """The last line of an error's message that names a Python error, without the lines of Java."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error:" in line and not line.startswith(("at ", "org."))]
    return (named or lines or [repr(error)])[-1][:1000]


# --- the two modes -------------------------------------------------------------------------------


def run(request: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """Rewrite the groups of the request, and write an event for each, which the worker commits.

    Returns the number and the error of each group that failed.
    """
    context = spark.sparkContext
    sizes, finished = request["sizes"], 0
    emit("stage", name="rewriting")
    failed: list[dict[str, Any]] = []
    source = {"uri": request["uri"], "storage_options": request["storage_options"]}
    version, manifest = request["version"], base64.b64decode(request["manifest"])
    for number, result, error in execute(context, source, version, request["tasks"], manifest):
        if result is None:
            failed.append({"number": number, "error": error})
        else:
            emit("part", data={"number": number, "rewrite": result})
        finished += sizes[number]
        emit("progress", done=finished, total=sum(sizes))
    return {"failed": failed}


def by_hand(context: SparkContext, request: dict[str, Any]) -> dict[str, Any]:
    """Plan the groups, rewrite them, and commit each one. Groups changed concurrently stay as they are."""
    key = os.environ.get("MONODON_API_KEY", "")
    address = {"uri": request["url"]} | ({"header.x-api-key": key} if key else {})
    catalog = RestNamespace(**address)  # type: ignore[no-untyped-call]

    def newest() -> lance.LanceDataset:
        return lance.dataset(namespace_client=catalog, table_id=request["table"])

    dataset = newest()
    settings = [key for key in dataset.config() if key.startswith(_AUTO_CLEANUP)]
    if settings and not request["is_dry_run"]:
        # Lance would clean up after each commit, against the table's policies.
        dataset.delete_config_keys(settings)
        dataset = newest()
    planned = Compaction.plan(dataset, request["options"]).tasks
    sizes = [len(task.fragments) for task in planned]
    result = {"version": dataset.version, "groups": len(planned), "fragments": sum(sizes)}
    if request["is_dry_run"]:
        return result
    tasks = [task.json() for task in planned]  # type: ignore[attr-defined]
    source: dict[str, Any] = {
        "uri": dataset.uri,
        "storage_options": dataset.latest_storage_options(),
    }
    if _EXPIRES_AT in (source["storage_options"] or {}):
        source = {"catalog": address, "table_id": request["table"]}
    finished = committed = remaining = 0
    for number, text, error in execute(context, source, dataset.version, tasks):
        reason = error
        if text is not None:
            try:
                Compaction.commit(newest(), [RewriteResult.from_json(text)])  # type: ignore[attr-defined]
                committed += 1
            except OSError as conflict:
                if _RETRYABLE not in str(conflict):
                    raise
                reason = "it was changed concurrently"
        if reason:
            remaining += 1
            emit("log", level="warning", message=f"group {number} was not compacted: {reason}")
        finished += sizes[number]
        emit("progress", done=finished, total=sum(sizes))
    return {**result, "committed": committed, "left": remaining, "version": newest().version}


def describe(error: BaseException) -> tuple[str, str]:
    """The kind and the message of an error of ``run``."""
    return "error", _last_line(error)


def main() -> int:
    request = from_command_line()
    try:
        spark = SparkSession.builder.appName("monodon lance_compact").getOrCreate()
        context = spark.sparkContext
        emit("log", message=f"Spark {spark.version} runs as {context.applicationId}")
        result = by_hand(context, request)
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        kind, message = describe(error)
        emit("failed", kind=kind, message=message)
        print(error, file=sys.stderr)
        return 1
    emit("result", data=result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
