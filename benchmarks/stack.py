"""The servers under measurement, in a temporary home: the same programs and flags as `make up` uses."""

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from benchmarks.errors import BenchmarkError
from server import commands, processes
from server.options import PROJECT, Options
from server.paths import Home
from server.postgres import Postgres
from server.processes import Child

API_KEY = "benchmark-key-0123456789"


def wsgi_command(options: Options, application: str) -> list[str]:
    return [
        *("-m", "granian", "--interface", "wsgi"),
        *("--host", options.host, "--port", str(options.port)),
        *("--workers", str(options.web_workers)),
        *("--blocking-threads", str(options.web_threads)),
        *("--blocking-threads-idle-timeout", "600"),
        *("--backlog", "1024", "--backpressure", "512"),
        *("--no-ws", "--http", "1", "--log-level", "warning"),
        application,
    ]


class Stack:
    """A home, its PostgreSQL, and any number of web servers. Use it as a context manager."""

    def __init__(self, directory: Path | None = None) -> None:
        # Not /tmp, which may be memory: commits shall wait for a disk as they do in production.
        base = directory or Path(os.environ.get("TMPDIR") or "/var/tmp")
        self.root = Path(tempfile.mkdtemp(prefix="monodon-bench-", dir=base))
        self.root.chmod(0o711)  # as root the database runs as another user, who must pass through
        self.home = Home(self.root / "home")
        self.home.create()
        self._exit = contextlib.ExitStack()
        self._exit.callback(shutil.rmtree, self.root, ignore_errors=True)
        self._exit.callback(self.home.remove_sockets)
        self._lines: deque[str] = deque(maxlen=50)
        self.postgres = Postgres(
            self.home.postgres,
            self.home.socket_dir(),
            extra_privileges=True,
            sink=self.keep,
        )

    def __enter__(self) -> Self:
        try:
            self._exit.callback(self.postgres.stop)
            self.postgres.start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._exit.close()

    @property
    def warehouse(self) -> Path:
        return self.home.root / "warehouse"

    @property
    def postgres_pid(self) -> int:
        return int((self.home.postgres / "postmaster.pid").read_text().splitlines()[0])

    def last_lines(self) -> str:
        return "\n".join(self._lines)

    def keep(self, line: str) -> None:
        self._lines.append(line)

    def environment(self, database_url: str) -> dict[str, str]:
        """Environment variables of a process of the stack."""
        environment = {n: v for n, v in os.environ.items() if not n.startswith(("MONODON_", "PG"))}
        return environment | {
            "MONODON_HOME": str(self.home.root),
            "MONODON_ADMIN_API_KEY": API_KEY,
            "MONODON_ADMIN_PASSWORD": "benchmark",
            "PYTHONUNBUFFERED": "1",
            "DATABASE_URL": database_url,
            "REDIS_URL": f"unix://{self.root}/no-broker",  # no measured operation starts a job
            processes.MARK: f"benchmark-{os.getpid()}",
        }

    def bootstrap(self, database_url: str) -> None:
        """Migrations, static files, the API key. Raises BenchmarkError."""
        setup = Child(
            "setup",
            [sys.executable, "manage.py", "bootstrap"],
            sink=self.keep,
            environment=self.environment(database_url),
            directory=PROJECT,
        )
        setup.start()
        setup.wait(300.0)
        setup.drain()
        if setup.exit_status != 0:
            raise BenchmarkError(f"The setup failed:\n{self.last_lines()}")

    def start_web(
        self,
        database_url: str,
        wsgi: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> tuple[Child, int]:
        """A web server as `make up` starts it; returns it and its port once it answers.

        ``wsgi`` is a WSGI application to serve instead, with as many processes and threads.
        ``settings`` are further environment variables.
        """
        port = free_port()
        options = Options.from_environment(
            {**(settings or {}), "MONODON_HOME": str(self.home.root), "MONODON_PORT": str(port)}
        )
        metrics = self.root / f"metrics-{port}"
        metrics.mkdir()
        child = Child(
            "web",
            [sys.executable, *(wsgi_command(options, wsgi) if wsgi else commands.web(options))],
            sink=self.keep,
            environment=self.environment(database_url)
            | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
            | dict(settings or {}),
            directory=PROJECT,
        )
        self._start(child, f"http://127.0.0.1:{port}/health/live")
        return child, port

    def start_reference(self) -> tuple[Child, int, Path]:
        """Lance's reference server, its port and its root directory."""
        port = free_port()
        root = self.root / "reference"
        child = Child(
            "reference",
            [sys.executable, "-m", "benchmarks.reference", str(root), str(port)],
            sink=self.keep,
            environment=os.environ,
            directory=PROJECT,
        )
        self._start(child, f"http://127.0.0.1:{port}/v1/namespace/%24/list")
        return child, port, root

    def _start(self, child: Child, url: str) -> None:
        self._exit.callback(_stop, child)
        child.start()
        deadline = time.monotonic() + 60.0
        while not _answers(url):
            if not child.running or time.monotonic() > deadline:
                raise BenchmarkError(f"The {child.name} server did not start:\n{self.last_lines()}")
            time.sleep(0.1)


@contextlib.contextmanager
def running(directory: Path | None) -> Iterator[Stack]:
    """A stack that is also cleaned up when the benchmark is asked to end."""

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Stack(directory) as stack:
        yield stack


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _stop(child: Child) -> None:
    child.signal(child.polite)
    if not child.wait(5.0):
        child.kill_group()
        child.wait(2.0)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
