"""Two PostgreSQL servers behind one address: one is a replica of the other, and can be promoted.

Replication is synchronous: a commit is acknowledged when both have it on disk. After a failover, there is
only one server, and no further failover, until the replica is created again.
"""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psutil
import psycopg

from server import identity
from server.postgres import DATABASE, USER, Postgres
from server.roles import SUPERUSER
from tests.chaos.harness.proxy import Proxy
from tests.ports import free_port

_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "wal_level": "replica",
    "wal_keep_size": "1GB",
    "max_wal_size": "2GB",
    "wal_retrieve_retry_interval": "200ms",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m ",
}
_ACCESS = f"""\
local  all          {SUPERUSER}  trust
local  replication  {SUPERUSER}  trust
host   all          {USER}       127.0.0.1/32  scram-sha-256
"""


class Pair:
    """``url`` is that of the primary. ``home`` must be accessible to every user."""

    def __init__(self, home: Path) -> None:
        self._home = home / "pair"
        first = Postgres(self._home / "a", self._home / "run")
        first.prepare()
        self._programs = first.program("postgres").parent
        self._identity = identity.choose(
            first.program("postgres"), [self._home, first.socket_dir.parent]
        )
        hba = self._home / "a" / "pg_hba.conf"
        hba.write_text(_ACCESS, "utf-8")
        os.chown(hba, *self._identity.owner)
        self._password = first.password_file.read_text("utf-8").strip().rpartition(":")[2]
        self._log = (self._home / "log").open("ab")
        self._primary = self._node("a")
        self._replica = self._node("b")
        self._proxy = Proxy(self._primary.port)
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.is_protected = False
        """True if every acknowledged commit is on both servers."""
        self.failovers = 0

    @property
    def url(self) -> str:
        credentials = f"{USER}:{quote(self._password)}"
        return f"postgresql://{credentials}@127.0.0.1:{self._proxy.port}/{DATABASE}"

    @property
    def log(self) -> str:
        return (self._home / "log").read_text("utf-8", "replace")

    def __enter__(self) -> Self:
        self._threads.append(threading.Thread(target=self._keep))
        self._threads[0].start()
        self._primary.should_run = True
        self._primary.wait_ready()
        with self._primary.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        self._proxy.__enter__()
        self._make_replica()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._proxy.__exit__()
        for node in (self._primary, self._replica):
            node.kill()
        self._log.close()

    def process(self) -> psutil.Process | None:
        """The postmaster of the primary; None while it is being restarted."""
        return self._primary.process()

    def fail_over(self) -> bool:
        """Kill the primary with all its processes and promote the replica. False if acknowledged
        commits would be lost, since the replica is not complete."""
        with self._guard:
            if not self.is_protected or not self._is_complete():
                return False
            self.is_protected = False
            old, new = self._primary, self._replica
            old.kill()
            with new.connect("postgres") as connection:
                connection.execute("SELECT pg_promote(true, 60)")
                # Its own replica does not exist yet, so no commit waits for one.
                _replicate(connection, to="")
            self._primary, self._replica = new, old
            self._proxy.switch(new.port)
            self.failovers += 1
        self._threads.append(threading.Thread(target=self._make_replica))
        self._threads[-1].start()
        return True

    def _is_complete(self, within: float = 5.0) -> bool:
        """True if the replica is synchronous now. Commits wait for it from then on."""
        deadline = time.monotonic() + within
        with contextlib.suppress(psycopg.Error), self._primary.connect("postgres") as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
            while time.monotonic() < deadline:
                if connection.execute(
                    "SELECT count(*) FROM pg_stat_replication"
                    " WHERE sync_state = 'sync' AND flush_lsn >= %s::pg_lsn",
                    row,
                ).fetchone() == (1,):
                    return True
                time.sleep(0.02)
        return False

    def _keep(self) -> None:
        """Start the servers, and restart them after kills.

        This runs in one thread, because the servers die with the thread that started them.
        """
        while not self._stop.wait(0.1):
            with self._guard:
                for node in (self._primary, self._replica):
                    if node.should_run and node.process() is None:
                        node.start()

    def _make_replica(self) -> None:
        """Create a copy of the primary. Commits wait for the replica once it is complete."""
        node = self._replica
        while not self._stop.is_set():
            node.kill()
            shutil.rmtree(node.directory, ignore_errors=True)
            if self._copy(node):
                node.should_run = True
                break
            self._stop.wait(0.5)
        while not self._stop.wait(0.2):
            with (
                contextlib.suppress(psycopg.Error),
                self._primary.connect("postgres") as connection,
            ):
                streaming = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
                if connection.execute(streaming).fetchone() != (1,):
                    continue
                _replicate(connection, to="*")
                time.sleep(1)  # wait for commits that began without a replica
                if self._is_complete():
                    self.is_protected = True
                    return

    def _copy(self, node: "_Node") -> bool:
        command = [
            str(self._programs / "pg_basebackup"),
            *("-d", self._primary.conninfo("postgres")),
            *("-D", str(node.directory), "-R", "-X", "stream", "--checkpoint=fast"),
        ]
        completed = subprocess.run(
            self._identity.launch(command),
            cwd=self._home,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=False,
        )
        return completed.returncode == 0

    def _node(self, name: str) -> "_Node":
        sockets = self._home / "run" / name
        sockets.mkdir(mode=0o700, exist_ok=True)
        os.chown(self._home, *self._identity.owner)
        os.chown(sockets, *self._identity.owner)
        return _Node(
            self._home / name, sockets, self._programs / "postgres", self._identity, self._log
        )


class _Node:
    def __init__(
        self,
        directory: Path,
        sockets: Path,
        program: Path,
        user: identity.Identity,
        log: "object",
    ) -> None:
        self.directory, self.port = directory, free_port()
        self._sockets, self._program, self._user, self._log = sockets, program, user, log
        self._process: subprocess.Popen[bytes] | None = None
        self.should_run = False

    def conninfo(self, database: str) -> str:
        return f"host={self._sockets} port={self.port} user={SUPERUSER} dbname={database}"

    def connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(self.conninfo(database), autocommit=True, connect_timeout=5)

    def start(self) -> None:
        settings = _SETTINGS | {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._sockets),
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = subprocess.Popen(
            self._user.launch(
                [str(self._program), "-D", str(self.directory), *options],
                *("--parent", str(os.getpid()), "--death-signal", "3"),
            ),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=self._log,  # type: ignore[arg-type]
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while True:
            try:
                return self.connect("postgres").close()
            except psycopg.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def process(self) -> psutil.Process | None:
        if self._process is None or self._process.poll() is not None:
            return None
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self._process.pid)
        return None

    def kill(self) -> None:
        """Kill all its processes, as if its machine had stopped. It is not restarted."""
        self.should_run = False
        if self._process is None:
            return
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children(recursive=True)
            for process in (psutil.Process(self._process.pid), *children):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(children, timeout=10)
        self._process.wait(10)
        self._process = None


def _replicate(connection: psycopg.Connection, *, to: str) -> None:
    connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{to}'")
    connection.execute("SELECT pg_reload_conf()")
