"""The embedded PostgreSQL cluster: initialised, started in the foreground, reachable by a Unix socket only.

The application's role owns its database and is no superuser (`server.roles`)."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg

from server import identity, processes, programs, routine_lines
from server.errors import DatabaseUnusable
from server.processes import Child, Sink
from server.roles import SUPERUSER, Roles

USER = "monodon"
DATABASE = "monodon"

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "effective_cache_size": "1GB",
    "work_mem": "8MB",
    "maintenance_work_mem": "128MB",
    "max_wal_size": "2GB",
    "checkpoint_completion_target": "0.9",
    "wal_compression": "on",
    "wal_level": "replica",
    "random_page_cost": "1.1",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "",
    "log_checkpoints": "off",
    "log_min_messages": "log",
    # Errors of lost races (a unique violation, a serialization failure) are expected, and not logged.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}

_THROWAWAY = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "1h",
}


class Postgres:
    """One data directory and one socket directory; `durable=False` is for data that may be lost.

    `extra_privileges` lets the application's role create roles, disable triggers and start checkpoints,
    for tests and benchmarks.

    `start` and `stop` run a cluster for tests and benchmarks. The supervisor uses `prepare`, `child` and
    `wait_ready` instead, because it restarts dead processes.
    """

    def __init__(
        self,
        data_dir: Path,
        socket_dir: Path,
        *,
        durable: bool = True,
        extra_privileges: bool = False,
        sink: Sink = lambda line: None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.socket_dir = socket_dir.absolute() / "postgres"
        self._durable = durable
        self._sink = sink
        self._programs = programs.find(self.data_dir)
        self._child: Child | None = None
        self.data_dir.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        socket_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._identity = identity.choose(
            self._programs / "postgres", [self.data_dir.parent, self.socket_dir.parent]
        )
        self._roles = Roles(
            self.data_dir, self._identity, role=USER, extra=extra_privileges or not durable
        )

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The URL of a database. It contains the path of the password file, not the password."""
        host, file = quote(str(self.socket_dir), safe=""), quote(str(self.password_file), safe="")
        return f"postgresql://{USER}@/{database}?host={host}&passfile={file}"

    @property
    def password_file(self) -> Path:
        return self._roles.password_file

    def program(self, name: str) -> Path:
        """A client program of the same release: psql, pgbench, pg_dump, …"""
        return self._programs / name

    # -- without a supervisor

    def start(self) -> None:
        """Raises DatabaseUnusable."""
        self.prepare()
        self._child = self.child()
        self._child.start()
        self.wait_ready(self._child)
        self.ensure_database()

    def stop(self) -> None:
        if self._child is not None:
            stop(self._child, patience=10.0)
            self._child = None

    # -- with a supervisor

    def prepare(self) -> None:
        """Create the data directory if it does not exist, and end a server of an earlier run.

        Also called before each restart: the backends of a killed server must be gone before the next
        may start.
        """
        self._make_socket_dir()
        if (self.data_dir / "PG_VERSION").exists():
            self._take_over()
        else:
            self._initialise()
        if not self._roles.are_prepared:
            self._prepare_roles()
        self._roles.allow_application()

    def _prepare_roles(self) -> None:
        self._roles.allow_preparation()
        child = self.child()
        child.start()
        try:
            self._wait(child, lambda: self._roles.prepare(self._connect_as, DATABASE))
        except psycopg.Error as exc:
            raise DatabaseUnusable(
                f"The roles of the cluster in {self.data_dir} could not be made: {exc}"
            ) from exc
        finally:
            # A smart shutdown lets the session end whose connection was just closed.
            child.signal(signal.SIGTERM)
            child.wait(5.0)
            stop(child, patience=10.0)

    def _connect_as(self, role: str, database: str) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self.socket_dir), user=role, dbname=database, autocommit=True
        )

    def child(self) -> Child:
        """The process of the server. It has no `processes.MARK`, because a sweep cannot shut down
        PostgreSQL cleanly."""
        settings = _SETTINGS | ({} if self._durable else _THROWAWAY)
        settings["unix_socket_directories"] = f'"{self.socket_dir}"'
        command = [str(self.program("postgres")), "-D", str(self.data_dir)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return Child(
            "postgres",
            command,
            sink=self._tell,
            environment=programs.environment(),
            directory=self.data_dir.parent,
            identity=self._identity,
            polite=signal.SIGINT,  # PostgreSQL's "fast" shutdown; SIGTERM would wait for the clients
        )

    def _tell(self, line: str) -> None:
        if not routine_lines.of_postgres(line):
            self._sink(line)

    def wait_ready(
        self, child: Child, *, patience: float = 300.0, between: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until the server is ready, possibly after recovery. `between` is called while waiting and may raise.

        Raises DatabaseUnusable if the server exits or the time is over.
        """
        self._wait(child, self._connect, patience=patience, between=between)

    def _connect(self) -> None:
        psycopg.connect(self.url_of("postgres"), connect_timeout=2).close()

    def _wait(
        self,
        child: Child,
        connect: Callable[[], None],
        *,
        patience: float = 300.0,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        started = time.monotonic()
        reported_at = started
        while True:
            between()
            if not child.running:
                child.drain()
                raise DatabaseUnusable(
                    f"PostgreSQL {processes.describe_exit(child.exit_status)}; its lines above say why. "
                    f"Its data is in {self.data_dir}."
                )
            try:
                connect()
            except psycopg.OperationalError as exc:
                now = time.monotonic()
                if now - started > patience:
                    raise DatabaseUnusable(f"PostgreSQL did not answer in time: {exc}") from exc
                if now - reported_at > 5:
                    reported_at = now
                    reason = str(exc).strip().splitlines()[-1].rpartition("FATAL:")[2]
                    self._sink(f"still starting: {reason.strip()}")
                time.sleep(0.03 if now - started < 1 else 0.25)
            else:
                return

    def ensure_database(self) -> None:
        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(query, [DATABASE]).fetchone() is None:
                connection.execute(f'CREATE DATABASE "{DATABASE}"')

    # -- the data directory

    def _make_socket_dir(self) -> None:
        """Create the socket directory with mode 0700, owned by the server's user.

        Files of an earlier server are removed: its lock file names a pid that another process may have now.
        """
        if not self._servers():
            shutil.rmtree(self.socket_dir, ignore_errors=True)
        self.socket_dir.mkdir(mode=0o700, exist_ok=True)
        os.chown(self.socket_dir, *self._identity.owner)
        self.socket_dir.chmod(0o700)

    def _initialise(self) -> None:
        """Initialise the cluster in a temporary directory, which is renamed when complete, so that
        a kill leaves no partial one."""
        if self.data_dir.exists() and any(self.data_dir.iterdir()):
            raise DatabaseUnusable(
                f"{self.data_dir} is not empty but holds no PostgreSQL cluster: move it away."
            )
        around = self.data_dir.with_name(self.data_dir.name + ".new")
        shutil.rmtree(around, ignore_errors=True)
        maker = self._identity.initdb or self._identity
        # Only root and the group may enter, so no other process of initdb's user can.
        around.mkdir(mode=0o700)
        os.chown(around, os.geteuid(), maker.owner[1])
        around.chmod(0o710)
        unfinished = around / "data"
        unfinished.mkdir(mode=0o700)
        os.chown(unfinished, *maker.owner)
        command = [
            str(self.program("initdb")),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            "--auth=reject",
            "--encoding=UTF8",
            "--no-locale",
            "--data-checksums",
            "--no-instructions",
        ]
        if self._major() >= 17:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if not self._durable:
            command += ["--no-sync"]
        result = subprocess.run(  # noqa: S603
            maker.launch(command),
            capture_output=True,
            text=True,
            env=programs.environment(),
            cwd=self.data_dir.parent,
            start_new_session=True,  # only the supervisor handles Ctrl-C, and lets this finish
            check=False,
        )
        if result.returncode != 0:
            shutil.rmtree(around, ignore_errors=True)
            raise DatabaseUnusable(
                f"PostgreSQL's initdb failed:\n{result.stdout}{result.stderr}".rstrip()
            )
        self._give(unfinished)
        if self.data_dir.exists():
            self.data_dir.rmdir()
        unfinished.rename(self.data_dir)
        around.rmdir()

    def _take_over(self) -> None:
        """Ensure that no server uses the data directory, and that the new server can read it."""
        version = (self.data_dir / "PG_VERSION").read_text().strip()
        if version != str(self._major()):
            raise DatabaseUnusable(
                f"{self.data_dir} was made by PostgreSQL {version}, the installed one is "
                f"{self._major()}: dump it with the old release and load it with the new one."
            )
        self._stop_orphan()
        owner = self.data_dir.stat().st_uid
        uid = self._identity.owner[0]
        if owner == uid:
            return
        if os.geteuid() != 0:
            raise DatabaseUnusable(
                f"{self.data_dir} belongs to another user (uid {owner}): start Monodon as that user, "
                f"or set MONODON_HOME to a directory of your own."
            )
        self._give(self.data_dir)

    def _give(self, directory: Path) -> None:
        """Change the owner to the server's user, of the directory first: the old owner can then no
        longer enter it."""
        if directory.stat().st_uid != self._identity.owner[0]:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, *self._identity.owner, follow_symlinks=False)

    def _servers(self) -> list[int]:
        """Pids of servers of the data directory, which is the working directory of all PostgreSQL
        processes."""
        if Path("/proc/self/cwd").exists():
            return processes.working_in(self.data_dir)
        pid = self._recorded_pid()
        if pid is None:
            return []
        ps = subprocess.run(  # noqa: S603
            ["/bin/ps", "-p", str(pid), "-o", "command="],
            capture_output=True,
            text=True,
            check=False,
        )
        return [pid] if f"-D {self.data_dir}" in ps.stdout else []

    def _recorded_pid(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((self.data_dir / "postmaster.pid").read_text().splitlines()[0])
        return None

    def _stop_orphan(self) -> None:
        postmaster = self._recorded_pid()
        steps = [(signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)]
        for number, patience in steps:
            servers = self._servers()
            if not servers:
                break
            if postmaster in servers:
                self._sink(f"stopping the server of an earlier run (pid {postmaster})")
            # Backends of a dead server end by themselves; they are only signalled if they do not.
            targets = [postmaster] if postmaster in servers else servers
            deadline = time.monotonic() + (1.0 if postmaster not in servers else 0.0)
            while self._servers() and time.monotonic() < deadline:
                time.sleep(0.05)
            for pid in targets:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience
            while self._servers() and time.monotonic() < deadline:
                time.sleep(0.05)
        if remaining := self._servers():
            raise DatabaseUnusable(
                f"PostgreSQL processes {remaining} on {self.data_dir} do not stop."
            )
        # After a reboot, or in another container, another process may have the recorded pid. PostgreSQL
        # would then refuse to start, although no process uses the data, as was just checked.
        if postmaster is not None and processes.alive(postmaster) and _is_linux():
            (self.data_dir / "postmaster.pid").unlink(missing_ok=True)

    def _major(self) -> int:
        return programs.release(self._programs)


def stop(child: Child, *, patience: float) -> None:
    """Stop with a fast shutdown, then an immediate one (the next start recovers), then SIGKILL."""
    child.signal(signal.SIGINT)
    if not child.wait(patience):
        child.signal(signal.SIGQUIT)
        if not child.wait(1.0):
            child.kill_group()
            child.wait(1.0)
    child.drain()


def _is_linux() -> bool:
    return sys.platform.startswith("linux")
