"""The Monodon under test: ``python -m server up`` with its own home, and its processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg

from server.options import PROJECT
from tests.chaos.harness.clock import Clock
from tests.chaos.harness.pair import Pair
from tests.ports import free_port

KEY = "key-of-the-fault-harness"
_NOT_INHERITED = ("MONODON_", "DATABASE_URL", "REDIS_URL", "PYTEST_", "DJANGO_", "PROMETHEUS_")
ROLES = ("web", "worker", "beat", "postgres", "broker")


class Cluster:
    """Everything that ``make up`` starts. ``home`` must be reachable by other users, for PostgreSQL."""

    def __init__(
        self,
        home: Path,
        *,
        clock: Clock | None = None,
        pair: Pair | None = None,
        **settings: str,
    ) -> None:
        self.home, self.clock, self.pair = home, clock, pair
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = {
            "MONODON_HOME": str(home),
            "MONODON_PORT": str(self.port),
            "MONODON_ADMIN_API_KEY": KEY,
            "MONODON_WEB_WORKERS": "2",
            "MONODON_WEB_THREADS": "8",
            "MONODON_WORKER_CONCURRENCY": "1",
            "MONODON_LOG_LEVEL": "warning",
            **(clock.environment if clock is not None else {}),
            # setproctitle, a dependency of a test tool, would overwrite the memory that environ()
            # reads.
            "SPT_NOENV": "1",
            **({"DATABASE_URL": pair.url} if pair is not None else {}),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._database_url = ""
        self._log = (home / "harness.log").open("ab")

    @property
    def warehouse(self) -> Path:
        return self.home / "warehouse"

    @property
    def log(self) -> str:
        return (self.home / "harness.log").read_text("utf-8", "replace")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._log.close()

    def start(self, within: float = 240.0) -> None:
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(_NOT_INHERITED)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "server", "up", "--with-parent"],
            cwd=PROJECT,
            env=inherited | self.settings,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.wait_ready(within)

    def stop(self) -> None:
        if self._process is None:
            return
        self.resume_all()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process = None

    def wait_ready(self, within: float = 120.0) -> None:
        deadline = time.monotonic() + within
        while not self.is_ready():
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the supervisor ended:\n{self.log[-4000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not ready within {within} s:\n{self.log[-4000:]}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    # -- its processes

    def process(self, role: str) -> psutil.Process | None:
        """The child of the supervisor that has this role; None while it is being restarted."""
        if role == "postgres" and self.pair is not None:
            return self.pair.process()
        assert self._process is not None
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if _role(child.cmdline()) == role:
                        return child
        return None

    def children(self, role: str) -> list[psutil.Process]:
        parent = self.process(role)
        with contextlib.suppress(psutil.Error):
            return parent.children(recursive=True) if parent else []
        return []

    def backends(self) -> list[psutil.Process]:
        """PostgreSQL's processes that serve a client."""
        pids = []
        for child in self.children("postgres"):
            with contextlib.suppress(psutil.Error, IndexError):
                title = child.cmdline()[0]
                serves = "[local]" in title or "127.0.0.1(" in title
                if title.startswith("postgres:") and serves and "walsender" not in title:
                    pids.append(child)
        return pids

    def resume_all(self) -> None:
        for role in ROLES:
            for process in (self.process(role), *self.children(role)):
                with contextlib.suppress(psutil.Error):
                    if process is not None and process.status() == psutil.STATUS_STOPPED:
                        process.resume()

    # -- inspection

    def database_url(self) -> str:
        """URL of the web server's database, with the embedded database's authentication."""
        if self._database_url:
            return self._database_url
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(psutil.Error):
                process = self.process("web") or self.process("worker")
                if process and (url := process.environ().get("DATABASE_URL")):
                    self._database_url = url
                    return url
            time.sleep(0.2)
        raise RuntimeError(f"there is no web server:\n{self.log[-4000:]}")

    def database(self, **options: Any) -> psycopg.Connection:
        return psycopg.connect(self.database_url(), autocommit=True, **options)

    def is_idle(self, seconds: float) -> bool:
        """True if no transaction of the server has been open for this time."""
        with self.database(connect_timeout=5) as connection:
            return connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                " AND state <> 'idle' AND xact_start < now() - %s * interval '1 s'",
                [seconds],
            ).fetchone() == (0,)

    def wait_until_idle(self, within: float = 60.0) -> None:
        """Wait until PostgreSQL has ended the transactions of killed processes."""
        deadline = time.monotonic() + within
        while not self.is_idle(2):
            if time.monotonic() > deadline:
                raise RuntimeError("transactions stay open in the database")
            time.sleep(0.1)


def _role(command: list[str]) -> str:
    words = " ".join(command)
    if "granian" in words or "config.web" in words:  # its title once it listens, or not yet
        return "web"
    if "celery" in words:
        return "beat" if " beat" in words else "worker"
    if command and command[0].endswith("/postgres"):
        return "postgres"
    # Valkey replaces its command line by a title.
    return "broker" if command and "valkey-server" in command[0] else ""
