"""A live web server with its own database and home, which tests may kill.

`live` is one server for the whole session, `killable` a new one for each test. Both are fixtures, which a
conftest.py imports from here.
"""

import itertools
import json
import os
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import lance.namespace
import psutil
import psycopg
import pytest
import urllib3

from server import processes
from server.processes import Child
from tests import templates
from tests.checkout import PRESENT, Checkout
from tests.django_process import DjangoProcess
from tests.ports import free_port
from tests.templates import KEY

_NOT_INHERITED = ("MONODON_", "DATABASE_URL", "PYTEST_", "DJANGO_", "PROMETHEUS_")
_numbers = itertools.count(1)


class Lost(Exception):
    """The connection broke before the answer, so the outcome of the request is unknown."""


class LiveServer:
    """Starts on entry or by `start`, on the same port each time; start it from the main thread.

    `settings` are further environment variables of the server. With `beside`, it is a second web
    server of the same installation; close it first. With `checkout`, it runs the code of another
    release; then its database is empty until `bootstrap`.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        threads: int = 4,
        beside: "LiveServer | None" = None,
        checkout: Checkout = PRESENT,
        **settings: str,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="monodon live ")
        self._beside = beside
        self.home = beside.home if beside else Path(self._temporary.name) / "a home"
        self.warehouse = self.home / "ware house"
        if not beside:
            self.warehouse.mkdir(parents=True)
            (self.home / "static").mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = KEY
        self.checkout = checkout
        if beside:
            self.database_url = beside.database_url
        else:
            self.database_url = _create_database(is_empty=checkout is not PRESENT)
        self._log_path = self.home / f"server-{self.port}.log"
        self._log = self._log_path.open("a", encoding="utf-8")
        self._environment = {
            **{n: v for n, v in os.environ.items() if not n.startswith(_NOT_INHERITED)},
            "MONODON_HOME": str(self.home),
            "MONODON_WAREHOUSE": str(self.warehouse),
            "MONODON_ADMIN_API_KEY": self.key,
            "MONODON_PORT": str(self.port),
            "MONODON_WEB_WORKERS": str(workers),
            "MONODON_WEB_THREADS": str(threads),
            "MONODON_WORKER_CONCURRENCY": "1",
            "MONODON_LOG_LEVEL": "warning",
            "MONODON_MANIFEST_PATHS": "elsewhere/,other/",
            "MONODON_TRASH_SECONDS": "0",
            "MONODON_MAVEN_URL": "off",
            "DATABASE_URL": self.database_url,
            "MONODON_QUEUE": urlsplit(self.database_url).path.lstrip("/"),
            "PYTHONUNBUFFERED": "1",
            # Spark's drivers inherit it, and none of the settings.
            "TESTS_SERVER": str(self.home),
            **settings,
        }
        self._commands = checkout.commands(self._environment)
        self._web: Child | None = None
        self._worker: Child | None = None
        self._beat: Child | None = None
        self._django = DjangoProcess(self._environment)
        self._http = urllib3.PoolManager(maxsize=64, retries=False)

    # -- start and stop

    def __enter__(self) -> Self:
        if self._web is None:
            self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def bootstrap(self) -> None:
        """Migrate the database and prepare the home, as the operator does before a start."""
        self.checkout.bootstrap(self._environment)

    def start(self, *, wait: bool = True) -> None:
        """Start on the same port as before. Without `wait`, it may refuse connections for some
        seconds."""
        metrics = self.home / f"metrics-{next(_numbers)}"
        metrics.mkdir()
        environment = self._environment | {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
        self._web = self._child("web", environment, self._commands.web)
        self._web.start()
        if wait:
            self.wait_ready()

    def start_worker(self) -> None:
        """Start a Celery worker, which runs the jobs of the server."""
        self._worker = self._child("worker", self._environment, self._commands.worker)
        self._worker.start()

    def start_beat(self) -> None:
        """Start Celery beat, which sends the periodic tasks to the worker."""
        self._beat = self._child("beat", self._environment, self._commands.beat)
        self._beat.start()

    def kill_worker(self) -> None:
        """Send SIGKILL to the Celery worker and the processes it forked."""
        assert self._worker is not None
        worker = psutil.Process(self._worker.pid)
        pids = [worker.pid, *(child.pid for child in worker.children(recursive=True))]
        self._worker.kill_group()
        self._worker.wait(10)
        while any(processes.alive(pid) for pid in pids):
            time.sleep(0.002)
        self._worker.drain()
        self._worker = None

    def wait_ready(self, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not self._answers():
            assert self._web is not None
            assert self._web.running, f"the web server ended:\n{self.log}"
            assert time.monotonic() < deadline, f"not ready after {within} s:\n{self.log}"
            time.sleep(0.02)

    def kill(self) -> None:
        """Send SIGKILL to the web server and all its workers, and wait until they have ended."""
        assert self._web is not None
        pids = [process.pid for process in self._processes()]
        self._web.kill_group()
        self._web.wait(10)
        while any(processes.alive(pid) for pid in pids):
            time.sleep(0.002)
        self._web.drain()
        self._web = None

    def stop(self) -> None:
        """Stop all processes gracefully, and kill those that do not stop in time."""
        children = [child for child in (self._beat, self._worker, self._web) if child is not None]
        for child in children:
            child.signal(child.polite)
        for child in children:
            child.wait(10)
            child.kill_group()
            child.wait(5)
            child.drain()
        self._beat = self._worker = self._web = None

    def stop_background(self) -> None:
        """Stop the worker and beat gracefully; the web server continues."""
        for child in (self._beat, self._worker):
            if child is not None:
                child.signal(child.polite)
                assert child.wait(60), f"{child.name} does not stop:\n{self.log}"
                child.drain()
        self._beat = self._worker = None

    def close(self) -> None:
        """Stop the server, and remove its database and home."""
        self.stop()
        self._django.close()
        self._http.clear()
        if not self._beside:
            _drop_database(self.database_url)
        self._log.close()
        self._temporary.cleanup()

    # -- requests and state

    def client(self, **properties: str) -> lance.namespace.RestNamespace:
        return lance.namespace.RestNamespace(
            uri=self.url, **({"header.x-api-key": self.key} | properties)
        )

    def post(
        self, path: str, body: dict[str, Any] | None = None, *, request_id: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """Send a request once, and return its status and answer. Raises Lost if there is no answer."""
        headers = {"x-api-key": self.key, "content-type": "application/json"}
        if request_id:
            headers["x-request-id"] = request_id
        try:
            answer = self._http.request(
                "POST",
                self.url + path,
                body=json.dumps(body or {}).encode(),
                headers=headers,
                timeout=60,
            )
        except urllib3.exceptions.HTTPError as error:
            raise Lost(str(error)) from error
        return answer.status, json.loads(answer.data or b"{}")

    def post_until_answered(
        self, path: str, body: dict[str, Any] | None = None, *, within: float = 60.0
    ) -> tuple[int, dict[str, Any]]:
        """Send a request that may be repeated, until the server answers."""
        deadline = time.monotonic() + within
        while True:
            try:
                return self.post(path, body)
            except Lost:
                assert time.monotonic() < deadline, f"no answer within {within} s:\n{self.log}"
                time.sleep(0.05)

    def database(self) -> psycopg.Connection:
        """A new connection to the server's database, in autocommit mode."""
        return psycopg.connect(self.database_url, autocommit=True)

    def wait_until_idle(self) -> None:
        """Wait until PostgreSQL has ended the transactions of killed processes.

        It continues with statements that it received before the connection broke, such as a COMMIT.
        """
        with self.database() as connection:
            while connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                " AND state <> 'idle'"
            ).fetchone() != (0,):
                time.sleep(0.02)

    def settle(self) -> None:
        """Finish the moves of staged manifests that a crash interrupted, as the periodic task does."""
        self.manage(
            "import catalog.services.lance.ledger.versions as v\nwhile v.settle_pending(): pass"
        )

    def manage(self, code: str) -> None:
        """Run Python code with Django set up for this server's database."""
        self._django.run(code)

    def web_cpu_seconds(self) -> float:
        """CPU time of the web processes so far."""
        times = [process.cpu_times() for process in self._processes()]
        return sum(time.user + time.system for time in times)

    def resident(self) -> list[int]:
        """Resident memory of each web process, in bytes."""
        return [process.memory_info().rss for process in self._processes()]

    @property
    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8")

    def _processes(self) -> list[psutil.Process]:
        assert self._web is not None
        web = psutil.Process(self._web.pid)
        return [web, *web.children(recursive=True)]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health/live", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def drivers(self) -> list[psutil.Process]:
        """The running processes of Spark's drivers of this server's workers."""
        drivers = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except psutil.Error:
                continue
            is_own = environment.get("TESTS_SERVER") == str(self.home)
            if is_own and "MONODON_SPARK_DIRECTORY" in environment:
                drivers.append(process)
        return drivers

    def _child(self, name: str, environment: dict[str, str], arguments: list[str]) -> Child:
        return Child(
            name,
            [self.checkout.python, *arguments],
            sink=self._write_log,
            environment=self.checkout.environment(environment),
            directory=self.checkout.directory,
        )

    def _write_log(self, line: str) -> None:
        print(line, file=self._log, flush=True)


@pytest.fixture(scope="session")
def live_template() -> None:
    """The database that those of live servers are copies of, made before the first of them starts."""
    templates.with_key()


@pytest.fixture(scope="session")
def live(live_template: None) -> Iterator[LiveServer]:
    """One server, with a Celery worker, for all tests that leave it running."""
    with LiveServer() as server:
        server.start_worker()
        yield server


@pytest.fixture
def killable(live_template: None) -> Iterator[LiveServer]:
    """A server for one test, which may kill it."""
    with LiveServer() as server:
        yield server


# -- databases


def _unique() -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return f"monodon_live_{worker}_{os.getpid()}_{next(_numbers)}"


def _create_database(*, is_empty: bool = False) -> str:
    name = _unique()
    if is_empty:
        templates.execute("CREATE DATABASE {}", name)
    else:
        templates.execute("CREATE DATABASE {} TEMPLATE {}", name, templates.with_key())
    return templates.url_of(name)


def _drop_database(url: str) -> None:
    name = urlsplit(url).path.lstrip("/")
    templates.execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
