"""`python -m server up`: start all processes in order, restart dead ones, stop all in order."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from server import banner, commands, postgres, processes
from server.errors import GaveUp, ServerError
from server.locks import HomeLock
from server.options import PROJECT, Options
from server.output import Output
from server.paths import Home
from server.ports import Port
from server.postgres import Postgres
from server.processes import Child
from server.valkey import Valkey

CRASHES, CRASH_WINDOW = 10, 60.0
BACKOFF_FIRST, BACKOFF_LAST = 0.2, 5.0
TICK = 0.1
WEB_FIRST = 15.0
_READY_SECONDS = 3.0

# In total less than the 10 s for a stop, with SIGKILL at the end of each.
SERVICES_PATIENCE, VALKEY_PATIENCE, POSTGRES_PATIENCE = 4.5, 1.0, 2.5


class _StopRequested(Exception):
    pass


@dataclass
class Service:
    """A child process that is restarted when it dies. `prepare` runs before every start."""

    child: Child
    prepare: Callable[[], None] = lambda: None
    crashes: deque[float] = field(default_factory=lambda: deque(maxlen=CRASHES))
    restart_at: float | None = None

    def crashed(self, now: float) -> float:
        """Record a crash and return the pause before the restart. Raises GaveUp after too many
        crashes."""
        self.crashes.append(now)
        recent = [moment for moment in self.crashes if now - moment <= CRASH_WINDOW]
        if len(recent) >= CRASHES:
            raise GaveUp(
                f"{self.child.name} died {CRASHES} times within {CRASH_WINDOW:.0f} s; giving up. "
                f"Its last lines above should say why."
            )
        delay: float = min(BACKOFF_FIRST * 2 ** (len(recent) - 1), BACKOFF_LAST)
        self.restart_at = now + delay
        return delay


class Supervisor:
    def __init__(self, options: Options, output: Output, *, with_parent: bool = False) -> None:
        self._options = options
        self._output = output
        self._home = Home(options.home)
        self._port = Port(options.host, options.port)
        self._mark = hashlib.sha256(os.fsencode(options.home.resolve())).hexdigest()[:16]
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._parent = os.getppid() if with_parent else None
        self._services: list[Service] = []
        self._web: Service | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._reported_waiting = self._started

    def run(self) -> None:
        """Run until a stop is requested. Raises ServerError if it cannot start or continue."""
        self._home.create()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        with HomeLock(self._home.root, url=self._options.local_url) as lock:
            if swept := processes.sweep(self._mark, patience=3.0):
                self._say(f"ended {swept} processes that an earlier run left behind")
            self._hold_port(patience=5.0 if swept else 0.0)
            self._start_watchdog(lock.children_descriptor)
            try:
                self._start_everything()
                while True:
                    self._tick()
            except _StopRequested:
                self._say("stopping (Ctrl-C again to hurry)")
            finally:
                lock.stopping()
                began = time.monotonic()
                self._stop_everything()
                self._home.remove_sockets()
                self._port.release()
                self._say(f"stopped in {time.monotonic() - began:.1f} s")

    def _hold_port(self, *, patience: float) -> None:
        """Take the port. A process that was just killed may hold it until the kernel has ended it."""
        deadline = time.monotonic() + patience
        while True:
            try:
                self._port.hold()
            except ServerError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    # -- starting

    def _start_everything(self) -> None:
        options = self._options
        self._say(f"state in {self._home.root}")
        environment = os.environ | {
            "MONODON_HOME": str(self._home.root),
            "MONODON_HOST": options.host,
            "MONODON_PORT": str(options.port),
            "PYTHONUNBUFFERED": "1",
            processes.MARK: self._mark,
        }
        # Otherwise every process would compile the modules again at each start.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["DATABASE_URL"], environment["REDIS_URL"] = self._start_stores()
        self._bootstrap(environment)
        metrics = {"PROMETHEUS_MULTIPROC_DIR": str(self._home.fresh_metrics())}
        self._web = self._python("web", environment | metrics, *commands.web(options))
        self._keep(self._web)
        self._wait_for_web()
        self._keep(self._python("worker", environment, *commands.job_worker(options)))
        self._keep(self._python("tasks", environment, *commands.task_worker(options)))
        self._keep(self._python("beat", environment, *commands.BEAT))

    def _wait_for_web(self) -> None:
        """Wait for the web server first: with few cores, the imports of worker and beat would delay
        it."""
        patience = time.monotonic() + WEB_FIRST
        while not self._ready and time.monotonic() < patience:
            self._tick()

    def _start_stores(self) -> tuple[str, str]:
        """Start both stores concurrently, if both are embedded. Returns their URLs."""
        options, sockets = self._options, None
        database_url, redis_url = options.database_url, options.redis_url
        waits: list[Callable[[], None]] = []
        if database_url is None or redis_url is None:
            sockets = self._home.socket_dir()
        if redis_url is None and sockets is not None:
            valkey = Valkey(self._home.valkey, sockets, sink=self._sink("valkey"))
            service = Service(valkey.child(self._mark), valkey.prepare)
            self._keep(service)
            redis_url = valkey.url
            waits.append(lambda: valkey.wait_ready(service.child, between=self._raise_if_stopping))
        if database_url is None and sockets is not None:
            database = Postgres(self._home.postgres, sockets, sink=self._sink("postgres"))
            if not (self._home.postgres / "PG_VERSION").exists():
                self._say("creating the database cluster (once)")
            keeper = Service(database.child(), database.prepare)
            self._keep(keeper)
            database_url = database.url
            waits += [
                lambda: database.wait_ready(keeper.child, between=self._raise_if_stopping),
                database.ensure_database,
            ]
        for wait in waits:
            wait()
        if database_url is None or redis_url is None:
            raise AssertionError("every branch above sets both")
        return database_url, redis_url

    def _bootstrap(self, environment: dict[str, str]) -> None:
        """Run migrations, collect static files, and create the first user and key. The output shows
        the secrets once."""
        setup = Child(
            "setup",
            [sys.executable, "manage.py", "bootstrap"],
            sink=self._sink("setup"),
            environment=environment,
            directory=PROJECT,
        )
        setup.start()
        self._watch(setup)
        try:
            while not setup.wait(TICK):
                self._raise_if_stopping()
        finally:
            setup.kill_group()
            setup.wait(2.0)
            setup.drain()
            self._forget(setup)
        if setup.exit_status != 0:
            raise ServerError(
                f"The setup {processes.describe_exit(setup.exit_status)}; its lines above say why."
            )

    def _python(self, name: str, environment: dict[str, str], *arguments: str) -> Service:
        child = Child(
            name,
            [sys.executable, *arguments],
            sink=self._sink(name),
            environment=environment,
            directory=PROJECT,
        )
        return Service(child)

    def _keep(self, service: Service) -> None:
        self._raise_if_stopping()
        service.prepare()
        service.child.start()
        self._watch(service.child)
        self._services.append(service)

    # -- running

    def _tick(self) -> None:
        self._stop.wait(TICK)
        self._raise_if_stopping()
        now = time.monotonic()
        for service in self._services:
            if service.restart_at is not None:
                if now >= service.restart_at:
                    self._restart(service)
            elif not service.child.running:
                self._bury(service, now)
        if self._watchdog is not None and self._watchdog.poll() is not None:
            self._say("the watchdog died; starting it again")
            self._restart_watchdog()
        if not self._ready:
            self._check_ready(now)

    def _bury(self, service: Service, now: float) -> None:
        child = service.child
        how = processes.describe_exit(child.exit_status)
        child.kill_group()  # the web server's and the worker's own children, still on their port
        child.drain()
        self._forget(child)
        delay = service.crashed(now)
        self._say(f"{child.name} {how}; starting it again in {delay:.1f} s")

    def _restart(self, service: Service) -> None:
        service.restart_at = None
        service.prepare()
        service.child.start()
        self._watch(service.child)

    def _check_ready(self, now: float) -> None:
        status, body = _get(f"{self._options.local_url}/health/ready")
        # An answer of another process on the port does not mean that the server is ready.
        is_ours = (
            self._web is not None
            and self._web.child.running
            and self._port.is_served_by(self._web.child.pid)
        )
        if status == 200 and is_ours:
            self._ready = True
            for line in banner.lines(self._options.local_url, now - self._started):
                self._say(line)
        elif now - self._reported_waiting > 15:
            self._reported_waiting = now
            reason = f": {body[:300]}" if status else ""
            self._say(f"starting, for {now - self._started:.0f} s so far{reason}")

    # -- stopping

    def _stop_everything(self) -> None:
        by_name = {service.child.name: service.child for service in self._services}
        self._stop_together(
            [by_name[name] for name in ("beat", "tasks", "worker", "web") if name in by_name],
            SERVICES_PATIENCE,
        )
        # Processes in their own sessions, such as Spark's drivers; the broker is stopped next.
        if "valkey" in by_name:
            self._stop_together([by_name["valkey"]], VALKEY_PATIENCE)
        processes.sweep(self._mark, patience=0.0 if self._hurry.is_set() else 0.5)
        if "postgres" in by_name:
            self._stop_postgres(by_name["postgres"])
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            try:
                self._watchdog.wait(2.0)
            except subprocess.TimeoutExpired:
                self._watchdog.kill()

    def _stop_together(self, children: Iterable[Child], patience: float) -> None:
        running = [child for child in children if child.running]
        for child in running:
            child.signal(child.polite)
        deadline = time.monotonic() + patience
        while running and time.monotonic() < deadline and not self._hurry.is_set():
            time.sleep(0.03)
            running = [child for child in running if child.running]
        for child in running:
            self._say(f"{child.name} did not stop in time; killing it")
        for child in children:
            child.kill_group()
            child.wait(1.0)
            child.drain(0.3)
            self._forget(child)

    def _stop_postgres(self, child: Child) -> None:
        if child.running:
            postgres.stop(child, patience=0.2 if self._hurry.is_set() else POSTGRES_PATIENCE)
        self._forget(child)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _raise_if_stopping(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            self._stop.set()
        if self._stop.is_set():
            raise _StopRequested

    # -- the watchdog

    def _start_watchdog(self, lock: int) -> None:
        self._lock_descriptor = lock
        self._watchdog = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py"))],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[lock],
        )

    def _restart_watchdog(self) -> None:
        self._start_watchdog(self._lock_descriptor)
        for service in self._services:
            if service.child.running:
                self._watch(service.child)

    def _watch(self, child: Child) -> None:
        self._tell_watchdog(f"+{child.pid} {int(child.polite)}\n")

    def _forget(self, child: Child) -> None:
        if child.exit_status is not None:
            self._tell_watchdog(f"-{child.pid}\n")

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog is None or self._watchdog.stdin is None:
            return
        try:
            self._watchdog.stdin.write(line.encode())
            self._watchdog.stdin.flush()
        except (
            BrokenPipeError,
            ValueError,
        ):  # the next tick starts another one, which gets the complete list
            return

    # -- messages

    def _say(self, text: str) -> None:
        self._output.line("monodon", text)

    def _sink(self, name: str) -> Callable[[str], None]:
        def sink(text: str) -> None:
            self._output.line(name, text)

        return sink


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Uses no proxy of the environment, which could not reach this machine."""


def _get(url: str) -> tuple[int, str]:
    """The status and the body of a GET request. The status is 0 if there is no answer."""
    try:
        with _DIRECT.open(url, timeout=_READY_SECONDS) as answer:
            return answer.status, answer.read(2000).decode("utf-8", "replace")
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read(2000).decode("utf-8", "replace")
    except (OSError, ValueError) as exc:
        return 0, str(exc)
