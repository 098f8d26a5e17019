"""A driver: a child process that runs jobs on Spark, in a process group of its own.

    worker                                       driver (tasks/jobs/driver.py)
    each request as a line of JSON  ──stdin──▶   ends when its standard input does
    report, log events              ◀──stdout──  {"event": "accepted", "job": 7}
                                                 {"event": "stage", "name": "rewriting"}
                                                 {"event": "progress", "done": 3, "total": 8}
                                                 {"event": "log", "message": "..."}
    result, or the reason           ◀──stdout──  {"event": "result", "data": {...}}
                                                 {"event": "failed", "kind": "conflict", "message": "..."}
    the last lines, for errors      ◀──stderr──  the output of Spark

A driver is stopped by SIGTERM and, soon after, SIGKILL to the whole group. If the worker dies, the
driver reads the end of its standard input and ends. Should it survive nevertheless, the catalog takes
no commit of it: the token of a job ends with the attempt (``jobs.principal_of_token``).

No secret is on a command line: tokens come with the requests, and the settings of Spark, which may
contain keys of a storage, are in a file that only the user of the worker can read.
"""

import contextlib
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

SCRIPT = Path(__file__).parent.parent / "jobs" / "driver.py"
_TICK = 0.5
# A canceled job must end within 10 s: the lease is renewed every 2 s, and this follows.
_POLITE_SECONDS = 3.0
_TAIL_LINES, _TAIL_SHOWN, _TAIL_CHARACTERS = 200, 12, 3000
_NOT_INHERITED = {"DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "PROMETHEUS_MULTIPROC_DIR"}
_INHERITED = ("MONODON_RUN", "AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "SPARK_")
"""Beginnings of names that are inherited nevertheless: Spark may need the identity of its machine."""
_SECRET = re.compile(
    r"^MONODON_|^PG|SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIAL|API_?KEY", re.IGNORECASE
)
"""Names of settings of the server, and of its secrets: a storage profile may name any variable."""


class Driver:
    """The child process, and the threads that read its output."""

    def __init__(self, properties: Callable[[Path], str], environment: Mapping[str, str]) -> None:
        """``properties`` returns Spark's settings for the driver's temporary directory."""
        self.jobs = 0
        """Number of jobs that were sent."""
        self._secrets: Sequence[str] = ()
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._directory = Path(tempfile.mkdtemp(prefix="monodon-spark-"))  # with mode 0700
        conf = self._directory / "spark.properties"
        try:
            conf.write_text(properties(self._directory), encoding="utf-8")
            self._process = self._start(conf, environment)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(
                target=_pump, args=(self._process.stderr, self._keep_line), daemon=True
            ),
        ]
        for reader in self._readers:
            reader.start()

    def _start(self, conf: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        inherited = {n: value for n, value in os.environ.items() if _is_inherited(n)}
        submit = ["--properties-file", str(conf), "--load-spark-defaults", "pyspark-shell"]
        # A JVM that is killed does not remove its temporary files: they must be in the directory.
        temporary = shlex.quote(f"-Djava.io.tmpdir={self._directory}")
        options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {temporary}".strip()
        return subprocess.Popen(  # noqa: S603 -- the interpreter, and a script of this package
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **inherited,
                **environment,
                "PYSPARK_SUBMIT_ARGS": shlex.join(submit),
                "SPARK_SUBMIT_OPTS": options,
                "MONODON_SPARK_DIRECTORY": str(self._directory),
            },
            cwd=self._directory,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, request: Mapping[str, Any], *, secrets: Sequence[str]) -> None:
        """Send a request. ``secrets`` are replaced in the last lines."""
        self.jobs += 1
        self._secrets = secrets
        self._tail.clear()
        stdin = self._process.stdin
        if stdin is None:
            raise AssertionError("the driver was started with a pipe")
        with contextlib.suppress(BrokenPipeError):  # if it ended, ``events`` ends too
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()

    def events(self) -> Iterator[Mapping[str, Any]]:
        """The events of the driver, and an empty one every half second, until it has ended."""
        while True:
            try:
                line = self._lines.get(timeout=_TICK)
            except queue.Empty:
                if not self.is_alive:  # a child of the driver may hold the pipe
                    return
                yield {}
                continue
            if line is None:
                return
            yield _event(line)

    def end(self) -> None:
        """End the whole group, if any process of it is left, and remove the temporary files."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _POLITE_SECONDS
        while self._has_processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def describe_exit(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)  # the pipe closes a moment earlier
        status = self._process.poll()
        if status is None:
            return "closed its output"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def tail(self) -> str:
        """The last lines of standard error since the last request."""
        self._readers[1].join(0.5)
        lines = [line for line in list(self._tail) if line.strip()][-_TAIL_SHOWN:]
        text = "\n".join(lines)
        for secret in self._secrets:  # before the text is cut, perhaps in a secret
            text = text.replace(secret, "***")
        return text[-_TAIL_CHARACTERS:]

    def has_printed(self, words: str) -> bool:
        """True if the words are among the last lines, of which an error shows fewer."""
        self._readers[1].join(0.5)
        return any(words in line for line in list(self._tail))

    def _read_events(self) -> None:
        _pump(self._process.stdout, self._lines.put)
        self._process.wait()  # an idle driver ends by itself
        shutil.rmtree(self._directory, ignore_errors=True)

    def _keep_line(self, line: bytes | None) -> None:
        if line is not None:
            self._tail.append(line.decode("utf-8", "replace").rstrip().replace("\0", ""))

    def _has_processes(self) -> bool:
        self._process.poll()  # a zombie that nobody waited for would count
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        """Send a signal to the group; False if the group has no process."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS, for a group of zombies
            return False
        return True


def _is_inherited(name: str) -> bool:
    """True if a driver gets this variable of the environment."""
    if name.startswith(_INHERITED):
        return True
    return name not in _NOT_INHERITED and not _SECRET.search(name)


def _pump(pipe: IO[bytes] | None, put: Callable[[bytes | None], None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed meanwhile
        for line in pipe or ():
            put(line)
    put(None)


def _event(line: bytes) -> Mapping[str, Any]:
    """The event of a line; empty for the output of Spark itself.

    The character NUL, which PostgreSQL does not store, is replaced: a path in a manifest may contain it.
    """
    try:
        result = json.loads(line.replace(b"\\u0000", b"\\ufffd"))
    except ValueError:
        return {}
    return result if isinstance(result, dict) else {}
