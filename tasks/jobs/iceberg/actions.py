"""The actions of a job, and how one of them is run."""

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from . import removal, rewriting
from .events import emit
from .progress import Progress
from .session import prepare_session
from .table import Table

JOB_PROPERTY = "monodon.job-id"

ACTIONS: dict[str, Callable[[Table], dict[str, Any]]] = {
    "compact": rewriting.compact,
    "clean_up": removal.clean_up,
    "remove_orphans": removal.remove_orphans,
    "rewrite_manifests": rewriting.rewrite_manifests,
    "rewrite_position_deletes": rewriting.rewrite_position_deletes,
    "compute_statistics": rewriting.compute_statistics,
}
"""Each returns its result as JSON, and raises Failed and errors of Spark."""


def run(request: dict[str, Any], spark: SparkSession) -> dict[str, Any]:
    """Run the requested action and return its result. Raises Failed and errors of Spark."""
    prepare_session(spark, request)
    environment: Any = spark.sparkContext._jvm.org.apache.iceberg.EnvironmentContext  # type: ignore[union-attr]  # noqa: SLF001
    if job := request.get("job"):
        # Iceberg writes this into the summary of every snapshot that this process creates.
        environment.put(JOB_PROPERTY, str(job))
    ended = threading.Event()
    watcher = Progress(spark, request.get("total"))
    progress = threading.Thread(target=watcher.watch, args=(ended,), daemon=True)
    emit("stage", name="planning")
    progress.start()
    try:
        return ACTIONS[request["action"]](Table(spark, request))
    finally:
        ended.set()
        progress.join(5)
        environment.remove(JOB_PROPERTY)
