"""Spark drivers: one child process for each job, in a process group of its own.

    worker                                    driver (tasks/jobs/<script>.py)
    request as a line of JSON  ──stdin──▶     reads it, and ends when its standard input does
    report, log events         ◀──stdout──    {"event": "progress", "done": 3, "total": 8}
                                              {"event": "log", "message": "..."}
                                              {"event": "part", "data": {...}}
    result, or why there is none              {"event": "result", "data": {...}}
                                              {"event": "failed", "kind": "conflict", "message": "..."}
    the tail, for the error    ◀──stderr──    whatever Spark says

Who is to stop is told by SIGTERM and, soon after, SIGKILL to the whole group. A driver whose worker
died sees the end of its standard input. And should one live on all the same, the catalog takes no
commit of it: the token that it got ends with the attempt (``jobs.principal_of_token``).

Nothing secret is on a command line: the token comes with the request, and the settings of Spark,
which may hold keys of a storage, in a file that nobody else can read.
"""

import contextlib
import importlib.util
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import DatabaseError, connection

from catalog.access import tokens
from catalog.errors import CommitConflict, ServiceUnavailable, Unsupported
from catalog.models import Job, JobEvent
from catalog.services.engine import jobs
from catalog.services.engine.jobs import Report

_SCRIPTS = Path(__file__).with_name("jobs")
_TICK = 0.5
# A canceled job is over within 10 s: the lease is looked at every 2 s, and then this.
_POLITE_SECONDS = 3.0
_END_SECONDS = 30.0  # of a driver that told its result
_NOTICE_SECONDS = 5.0  # until the keeper of the lease has seen why the catalog refuses the token
_TAIL_LINES, _TAIL_SHOWN, _TAIL_CHARACTERS = 200, 12, 3000
_OLDEST_JAVA, _NEWEST_JAVA = 17, 23
ICEBERG_PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""What belongs to the PySpark of requirements.txt."""
_FORCED_CONF = {"spark.sql.variable.substitute": "false"}
"""Otherwise Spark replaces ``${env:NAME}`` in the name of a table by a variable of the environment."""
_NOT_INHERITED = {
    "DATABASE_URL",
    "REDIS_URL",
    "DJANGO_SETTINGS_MODULE",
    "MONODON_ADMIN_API_KEY",
    "MONODON_ADMIN_PASSWORD",
    "MONODON_SECRET_KEY",
    "MONODON_SPARK_CONF",
    "PROMETHEUS_MULTIPROC_DIR",
}


def run(
    job: Job,
    script: str,
    request: Mapping[str, Any],
    report: Report,
    *,
    needs_iceberg: bool = False,
    on_part: Callable[[Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run ``tasks/jobs/<script>.py`` for a job; see ``jobs.Spark``."""
    home = _spark_home()
    java = _java_home()
    if needs_iceberg:
        _require_iceberg()
    token = tokens.issue_job_token(job.pk, job.attempts)
    with tempfile.TemporaryDirectory(prefix="monodon-spark-", ignore_cleanup_errors=True) as place:
        directory = Path(place)  # which nobody else can read
        conf = directory / "spark.properties"
        conf.write_text(_properties(_conf(job, script, directory)), encoding="utf-8")
        environment = {
            **{name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
            **({"JAVA_HOME": java} if java else {}),
            "SPARK_HOME": home,
            "PYSPARK_PYTHON": _executor_python(),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": shlex.join(
                ["--properties-file", str(conf), "--load-spark-defaults", "pyspark-shell"]
            ),
            "MONODON_JOB": str(job.pk),
        }
        driver = _Driver(_SCRIPTS / f"{script}.py", environment, directory, secret=token)
        try:
            driver.send({**request, "job": job.pk, "url": settings.MONODON_URL, "token": token})
            return _follow(job, driver, report, on_part)
        finally:
            driver.end()


def _follow(
    job: Job,
    driver: "_Driver",
    report: Report,
    on_part: Callable[[Mapping[str, Any]], None] | None,
) -> dict[str, Any]:
    """Until the driver has ended. Raises for everything but a result."""
    finished, total = 0, job.total
    result: dict[str, Any] | None = None
    failure: Mapping[str, Any] | None = None
    for event in _handing_on(driver.events(), on_part):
        match event:
            case {"event": "progress", "done": int(finished)}:
                total = event.get("total") or total
            case {"event": "log", "message": str(message)}:
                level = JobEvent.Level(event.get("level", JobEvent.Level.INFO))
                _log(job, message, level, event.get("data"))
            case {"event": "result", "data": dict(result)}:
                pass
            case {"event": "failed"}:
                failure = event
            case _:
                pass
        report(finished, total)  # raises when the job has to stop
    if result is not None:
        return result
    if driver.said("unresolved dependency"):
        raise Unsupported(
            f"Spark cannot fetch {', '.join(settings.MONODON_SPARK_PACKAGES)}: correct"
            " MONODON_SPARK_PACKAGES, or, where there is no way to Maven Central, set"
            " MONODON_SPARK_JARS to the path of the jar"
        )
    if failure is None:
        text = f"The Spark driver {driver.ending()}: {driver.tail()}"
        _log(job, text, JobEvent.Level.ERROR)
        raise RuntimeError(text)
    message = str(failure.get("message", ""))
    _log(job, message, JobEvent.Level.ERROR, {"tail": driver.tail()})
    match failure.get("kind"):
        case "refused":
            raise Unsupported(message)
        case "conflict":
            raise CommitConflict(message)
        case "stopped":
            _wait_for_reason(report, finished)
            raise ServiceUnavailable(message)
    raise RuntimeError(f"{message}: {driver.tail()}")


def _handing_on(
    events: Iterator[Mapping[str, Any]], on_part: Callable[[Mapping[str, Any]], None] | None
) -> Iterator[Mapping[str, Any]]:
    """The events; the data of each part goes to ``on_part`` first."""
    for event in events:
        if event.get("event") == "part" and on_part is not None:
            on_part(event["data"])
        yield event


def _wait_for_reason(report: Report, done: int) -> None:
    """The catalog took no commit of the job any more: let the keeper of its lease see why."""
    deadline = time.monotonic() + _NOTICE_SECONDS
    while time.monotonic() < deadline:
        report(done, None)
        time.sleep(_TICK)


def _log(
    job: Job,
    message: str,
    level: JobEvent.Level = JobEvent.Level.INFO,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Write into the job's log; a database that is away for a moment must not end the driver."""
    try:
        jobs.log_event(job, message, level, data)
    except DatabaseError:
        connection.close()


class _Driver:
    """The child process, and the threads that read what it says."""

    def __init__(
        self, script: Path, environment: Mapping[str, str], directory: Path, *, secret: str
    ) -> None:
        self._secret = secret
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(  # noqa: S603 -- the interpreter, and a script of ours
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(
                target=_pump, args=(self._process.stdout, self._lines.put), daemon=True
            ),
            threading.Thread(target=_pump, args=(self._process.stderr, self._keep), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: Mapping[str, Any]) -> None:
        """The request; the pipe stays open, since its end tells the driver to end."""
        stdin = self._process.stdin
        if stdin is None:
            raise AssertionError("it was made with a pipe")
        with contextlib.suppress(BrokenPipeError):  # it died at once; its last words tell why
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()

    def events(self) -> Iterator[Mapping[str, Any]]:
        """What the driver tells, and an empty one every now and then, until it has ended."""
        while True:
            try:
                line = self._lines.get(timeout=_TICK)
            except queue.Empty:
                if self._process.poll() is not None:  # a grandchild may hold the pipe
                    return
                yield {}
                continue
            if line is None:
                break
            yield _event(line)
        deadline = time.monotonic() + _END_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            yield {}
            time.sleep(0.05)

    def end(self) -> None:
        """End the whole group, if anything of it is left."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _POLITE_SECONDS
        while self._is_there() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def ending(self) -> str:
        status = self._process.poll()
        if status is None:
            return "did not end"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def tail(self) -> str:
        """Its last lines of standard error."""
        self._readers[1].join(0.5)
        lines = [line for line in list(self._tail) if line.strip()][-_TAIL_SHOWN:]
        return "\n".join(lines)[-_TAIL_CHARACTERS:].replace(self._secret, "***")

    def said(self, words: str) -> bool:
        """Whether it was among its last words, of which an error shows fewer."""
        self._readers[1].join(0.5)
        return any(words in line for line in list(self._tail))

    def _keep(self, line: bytes | None) -> None:
        if line is not None:
            self._tail.append(line.decode("utf-8", "replace").rstrip().replace("\0", ""))

    def _is_there(self) -> bool:
        self._process.poll()  # what is dead and not waited for would be counted
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        """Whether there was a process of the group to get it."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of a group of dead ones
            return False
        return True


def _pump(pipe: IO[bytes], put: Callable[[bytes | None], None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
        for line in pipe:
            put(line)
    put(None)


def _event(line: bytes) -> Mapping[str, Any]:
    """A line that is no event is Spark's, and says nothing here."""
    try:
        result = json.loads(line)
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}


# --- what Spark needs ----------------------------------------------------------------------------


def _spark_home() -> str:
    """Of the PySpark that is installed with us, which the Iceberg runtime fits."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unsupported("This worker has no Spark: pip install pyspark, as in requirements.txt")
    return str(Path(spec.origin).parent)


def _java_home() -> str:
    """What JAVA_HOME is to be; empty: what is on the PATH will do. Raises Unsupported."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    requirement = f"Spark needs Java {_OLDEST_JAVA} to {_NEWEST_JAVA}"
    if java is None or not Path(java).exists():
        where = f"there is none in JAVA_HOME ({home})" if home else "none is installed"
        raise Unsupported(f"{requirement}, and {where}: install one and set JAVA_HOME")
    output = subprocess.run(  # noqa: S603
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    ).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or not _OLDEST_JAVA <= int(version[1]) <= _NEWEST_JAVA:
        java_version = version[1] if version else "none that runs"
        raise Unsupported(
            f"{requirement}, not {java_version} ({java}): install one and set JAVA_HOME"
        )
    return home


def _require_iceberg() -> None:
    """Raises Unsupported where no Iceberg runtime is set, or its file is missing."""
    for jar in settings.MONODON_SPARK_JARS:
        path = jar.removeprefix("file://")
        if "://" not in path and not Path(path).is_file():
            raise Unsupported(f"MONODON_SPARK_JARS names '{jar}', and there is no such file")
    extra = settings.MONODON_SPARK_CONF
    jars = (extra.get(name) for name in ("spark.jars", "spark.jars.packages"))
    if not (settings.MONODON_SPARK_JARS or settings.MONODON_SPARK_PACKAGES or any(jars)):
        raise Unsupported(
            "Spark has no Iceberg runtime: set MONODON_SPARK_PACKAGES to"
            f" {ICEBERG_PACKAGE}, or MONODON_SPARK_JARS to the path of its jar"
        )


def _executor_python() -> str:
    """What executors run Python with: on this machine as we do, on a cluster what is said."""
    if settings.SPARK_MASTER.startswith("local"):
        return sys.executable
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _conf(job: Job, script: str, directory: Path) -> dict[str, str]:
    conf = {
        "spark.master": settings.SPARK_MASTER,
        "spark.app.name": f"monodon {script} {job.pk}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if settings.SPARK_MASTER.startswith("local"):
        conf["spark.local.dir"] = str(directory)
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    if settings.MONODON_SPARK_JARS:
        conf["spark.jars"] = ",".join(settings.MONODON_SPARK_JARS)
    if settings.MONODON_SPARK_PACKAGES:
        conf["spark.jars.packages"] = ",".join(settings.MONODON_SPARK_PACKAGES)
    return conf | settings.MONODON_SPARK_CONF | _FORCED_CONF


def _properties(conf: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    escaped = partial(re.sub, r"([\\:=#! ])", r"\\\1")
    lines = (f"{escaped(name)}={_one_line(escaped(value))}\n" for name, value in conf.items())
    return "".join(lines)


def _one_line(value: str) -> str:
    return value.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
