"""A Spark driver that runs jobs one after another.

The worker (``tasks.spark``) starts this script and writes one request for each job to standard input,
as a line of JSON. Events are written to standard output, one JSON object per line: ``accepted`` when
a job begins, then those of the job's script, and at the end ``result`` or ``failed``.

Spark is started for the first job and kept for the following ones. Each job has a Spark session of
its own, so that no setting, catalog or credential of a job is visible to another one. The driver ends
with all its child processes when standard input is closed, which happens when the worker ends, or
when no job arrives for some minutes.
"""

import importlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from types import ModuleType
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_FULL = 0.7
"""Fraction of the JVM's heap that is still in use after a garbage collection, above which the driver
must not take another job."""
_END_SECONDS = 2.0  # until a JVM that no longer answers has ended
_output_lock = threading.Lock()


def emit(event: str, **fields: Any) -> None:
    """Write an event to standard output."""
    with _output_lock:
        print(json.dumps({"event": event, **fields}), flush=True)


def end(status: int) -> None:
    """End this process and all processes that it started, and remove the temporary files."""
    if directory := os.environ.get("MONODON_SPARK_DIRECTORY"):
        shutil.rmtree(directory, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # the worker started this process in a group of its own
    os._exit(status)


def read_requests(requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Receive requests until standard input is closed; then end the process at once."""
    pending = b""
    while data := os.read(0, 65536):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            requests.put(json.loads(line))
    if directory := os.environ.get("MONODON_SPARK_DIRECTORY"):
        shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def describe_death(error: BaseException) -> str:
    """How Spark's JVM ended; empty if it runs, or if the error is another one.

    The error itself would only say that a connection was refused.
    """
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    if gateway is None or not isinstance(error, (OSError, Py4JNetworkError)):
        return ""
    try:
        status = gateway.proc.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
    return f"Spark's JVM {how}"


class Driver:
    """The Spark session, and the scripts that were loaded."""

    def __init__(self) -> None:
        self._base: SparkSession | None = None
        self._scripts: dict[str, ModuleType] = {}

    def run(self, request: dict[str, Any]) -> None:
        """Run a job and write its outcome."""
        emit("accepted", job=request["job"])
        script: ModuleType | None = None
        recycle = ""
        try:
            script = self._script(request["script"])
            base = self._start()
            session = base.newSession()
            self._activate(session)
            try:
                result = script.run(request, session)
            finally:
                recycle = self._clean_up(base)
        except (PySparkException, Py4JError, OSError, ValueError) as error:
            kind, message = script.describe(error) if script else ("error", str(error))
            if death := describe_death(error):
                kind, message = "error", death
            print(error, file=sys.stderr, flush=True)
            emit("failed", kind=kind, message=message, recycle=recycle)
        except Exception as error:  # noqa: BLE001 -- the outermost frame of a job
            traceback.print_exc()
            described = script.describe(error) if script else ("error", repr(error))
            emit("failed", kind=described[0], message=described[1], recycle=recycle)
        else:
            emit("result", data=result, recycle=recycle)

    def _script(self, name: str) -> ModuleType:
        """A module or package beside this script. Executors get its functions by value, since they lack the file."""
        if name not in self._scripts:
            module = importlib.import_module(name)
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
            self._scripts[name] = module
        return self._scripts[name]

    def _start(self) -> SparkSession:
        """The session from which those of jobs are derived; it has no catalogs and no secrets."""
        if self._base is None:
            emit("stage", name="starting Spark")
            self._base = SparkSession.builder.getOrCreate()
        context = self._base.sparkContext
        emit(
            "spark",
            version=self._base.version,
            application=context.applicationId,
            ui=context.uiWebUrl or "",
        )
        return self._base

    @staticmethod
    def _activate(session: SparkSession) -> None:
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001

    def _clean_up(self, base: SparkSession) -> str:
        """Remove everything that a job left in the JVM. Returns why it must not run another job, or
        an empty text."""
        context = base.sparkContext
        jvm: Any = context._jvm  # noqa: SLF001
        try:
            context.cancelAllJobs()
            self._activate(base)
            base.catalog.clearCache()
            for name in ("spark.job.description", "spark.jobGroup.id"):
                context.setLocalProperty(name, None)  # type: ignore[arg-type]
            if not self._forget_signatures(jvm):
                return "signed requests cannot be removed from the cache"
            return self._memory(jvm)
        except (PySparkException, Py4JError, OSError) as error:
            return f"the session cannot be cleaned up: {error}"[:500]

    @staticmethod
    def _forget_signatures(jvm: Any) -> bool:
        """Forget the signed requests and the sessions of signing, which Iceberg keeps for the process.

        A job must not read a file with a signature that another job got for it.
        """
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        name = "org.apache.iceberg.aws.s3.signer.S3V4RestSignerClient"
        if isinstance(jvm.software.amazon.awssdk.services.s3.S3Client, JavaPackage):
            return True  # without the libraries of S3, nothing can be signed
        try:
            signer = loader.loadClass(name)
            cache = signer.getDeclaredField("SIGNED_COMPONENT_CACHE")
            cache.setAccessible(True)
            cache.get(None).invalidateAll()
            for shared in ("authManager", "httpClient"):
                field = signer.getDeclaredField(shared)
                field.setAccessible(True)
                field.set(None, None)
        except Py4JError:
            return False
        return True

    @staticmethod
    def _memory(jvm: Any) -> str:
        runtime = jvm.java.lang.Runtime.getRuntime()
        limit = _FULL * runtime.maxMemory()
        if runtime.totalMemory() - runtime.freeMemory() <= limit:
            return ""
        jvm.java.lang.System.gc()
        used = runtime.totalMemory() - runtime.freeMemory()
        return f"{used >> 20} MiB of its memory are in use" if used > limit else ""


def main() -> int:
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=read_requests, args=(requests,), daemon=True).start()
    idle = float(os.environ.get("MONODON_SPARK_IDLE_SECONDS") or 300)
    driver = Driver()
    with suppress(queue.Empty):
        while True:
            driver.run(requests.get(timeout=idle))
    end(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
