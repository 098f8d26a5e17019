"""`python -m server up`: it starts, restarts dead processes, stops, and leaves no process behind."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from server.options import Options
from server.paths import Home
from server.postgres import Postgres
from tests.ports import free_port
from tests.server.running import PROJECT, Running, eventually

CHILDREN = {
    "postgres": ("bin/postgres", "-D"),
    "valkey": ("valkey-server",),
    "web": ("granian",),
    "worker": ("celery", "monodon.jobs"),
    "tasks": ("celery", "tasks@"),
    "beat": ("celery", "beat"),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that does not exist yet."""
    return tmp_path / "a home with spaces"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a stopped server, made once for all processes: its first start takes 15 s of a
    processor."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    home = base / "prepared home"
    with (base / "prepared.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            draft = base / "draft of a home"
            with Running(draft) as server:
                eventually(
                    lambda: server.has(*CHILDREN["web"]), within=60, description="the setup's end"
                )
                server.process.send_signal(signal.SIGINT)
                assert server.wait_exit(within=10) == 0, server.output
            draft.rename(home)
    return home


def copy_of(prepared: Path, home: Path) -> Path:
    """Copy a home with the owners of its files."""
    subprocess.run(["cp", "-a", str(prepared), str(home)], check=True)
    (home / "run.lock").unlink()  # its text is that of the stopped server
    return home


@pytest.fixture
def used_home(prepared: Path, home: Path) -> Path:
    """A home in which a server was started before."""
    return copy_of(prepared, home)


@pytest.fixture(scope="module")
def running(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = copy_of(prepared, tmp_path_factory.mktemp("running") / "a home with spaces")
    with Running(home) as running:
        running.wait_ready()
        eventually(lambda: running.has(*CHILDREN["beat"]), within=10, description="all started")
        yield running
        running.processes()
    eventually(lambda: not running.left_over(), within=3, description="nothing left over")


def database_of(running: Running) -> str:
    home = Home(running.home)
    return Postgres(home.postgres, home.socket_dir()).url


def warnings(running: Running) -> list[str]:
    """The warnings in the output, except those of slow requests, which a loaded machine causes."""
    return [
        line
        for line in running.output.splitlines()
        if "WARNING" in line and "status=200" not in line
    ]


def test_starts_stops_and_starts_again_quickly(home: Path) -> None:
    # SPT_NOENV: otherwise setproctitle would overwrite the memory that environ() reads.
    settings = {"MONODON_WEB_WORKERS": "2", "PYTHONDONTWRITEBYTECODE": "1", "SPT_NOENV": "1"}
    with Running(home, **settings) as first:
        first.wait_ready()
        environment = first.child(*CHILDREN["web"]).environ()
        assert environment["MONODON_PORT"] == str(first.port)
        assert "PYTHONDONTWRITEBYTECODE" not in environment, "modules are compiled at each start"
        eventually(lambda: "is ready at" in first.output, within=5, description="the banner")
        eventually(lambda: "Ctrl-C" in first.output, within=30, description="the banner's end")
        for path in ("/admin/", "/help/", "/docs"):
            assert f" http://127.0.0.1:{first.port}{path}\n" in first.output
        assert "`make demo` in another terminal" in first.output
        assert not warnings(first)
        servers = [line for line in first.lines if line.startswith(("postgres", "valkey"))]
        assert not servers, "a start needs no lines of PostgreSQL and Valkey"
        first.processes()
        first.process.send_signal(signal.SIGINT)
        assert first.wait_exit(within=10) == 0, first.output
        assert not first.left_over()
    with Running(home) as second:
        second.wait_ready(within=10)
        second.processes()
        second.process.send_signal(signal.SIGTERM)
        assert second.wait_exit(within=10) == 0, second.output
        assert not second.left_over()


@pytest.mark.xdist_group("running")  # the server starts once
def test_a_second_server_on_the_same_home_is_refused(running: Running) -> None:
    with Running(running.home) as second:
        assert second.wait_exit(within=10) == 1
        assert f"already running at http://127.0.0.1:{running.port}" in second.output
    assert running.is_ready()


def test_a_port_in_use_is_refused_before_anything_starts(home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with Running(home, port) as refused:
            assert refused.wait_exit(within=10) == 1
            assert f"Cannot listen on 127.0.0.1:{port}" in refused.output
    assert not (home / "postgres").exists()


@pytest.mark.xdist_group("running")
def test_killed_processes_are_restarted(running: Running) -> None:
    for name, words in CHILDREN.items():
        running.child(*words).kill()
        # First the message: until the supervisor has noticed the death, the dead process may look
        # alive.
        noticed = f"{name} was killed by SIGKILL"
        eventually(lambda words=noticed: words in running.output, within=5, description=noticed)
        eventually(
            lambda words=words: running.has(*words), within=10, description=f"{name} restarted"
        )
        running.wait_ready()

    web = running.child(*CHILDREN["web"])
    workers = {process.pid for process in web.children()}
    for process in web.children():
        process.kill()
    eventually(
        lambda: not workers & {p.pid for p in web.children()},
        within=20,
        description="web workers replaced",
    )
    running.wait_ready()
    # They are forks, which need not load the application.
    assert all(p.cpu_times().user < web.cpu_times().user / 2 for p in web.children())

    watchdog = running.child("watchdog.py")
    watchdog.kill()
    eventually(lambda: "the watchdog died" in running.output, within=5, description="noticed")
    eventually(lambda: running.has("watchdog.py"), within=5, description="another watchdog")
    assert running.child("watchdog.py").pid != watchdog.pid


def test_a_killed_supervisor_leaves_no_process(used_home: Path) -> None:
    """The supervisor is killed alone, and later, on the same home, just after its watchdog."""
    with Running(used_home) as first:
        first.wait_ready()
        with psycopg.connect(database_of(first)) as connection:
            connection.execute("CREATE TABLE acknowledged AS SELECT 1 AS number")
        first.processes()
        first.process.kill()
        first.process.wait()
        # Immediately, while the watchdog still stops the processes of the first server.
        with Running(used_home, first.port) as second:
            second.wait_ready()
            assert not first.left_over()
            with psycopg.connect(database_of(second)) as connection:
                query = "SELECT number FROM acknowledged"
                assert connection.execute(query).fetchall() == [(1,)]
            second.child("watchdog.py").kill()
            second.processes()
            second.process.kill()
            second.process.wait()
            with Running(used_home, first.port) as third:
                third.wait_ready()
                assert not second.left_over()


@pytest.mark.parametrize("moment", ["state in", "the database runs", "setup "])
def test_it_can_be_stopped_while_it_starts(home: Path, moment: str) -> None:
    with Running(home) as running:

        def is_reached() -> bool:
            if moment == "the database runs":
                return running.has(*CHILDREN["postgres"])
            return moment in running.output

        eventually(is_reached, within=60, description=moment)
        running.processes()
        running.process.send_signal(signal.SIGINT)
        assert running.wait_exit(within=10) == 0, running.output
    eventually(lambda: not running.left_over(), within=3, description="nothing left over")


def test_it_stops_when_its_parent_is_killed(used_home: Path) -> None:
    port = free_port()
    code = (
        "import subprocess, sys; "
        "subprocess.run([sys.executable, '-m', 'server', 'up', '--with-parent'])"
    )
    environment = os.environ | {"MONODON_HOME": str(used_home), "MONODON_PORT": str(port)}
    for name in ("DATABASE_URL", "REDIS_URL"):
        environment.pop(name, None)
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL
    )
    lock = used_home / "run.lock"
    eventually(
        lambda: lock.exists() and "running" in lock.read_text(), within=10, description="started"
    )
    parent.kill()
    parent.wait()
    with Running(used_home, port) as second:
        second.wait_ready()


def test_configured_servers_are_used(used_home: Path, tmp_path: Path) -> None:
    # The database of the home becomes one elsewhere, because the migrations take long.
    for name in ("postgres", "postgres.password"):
        (used_home / name).rename(tmp_path / name)
    shutil.rmtree(used_home / "valkey")
    database = Postgres(tmp_path / "postgres", tmp_path / "r")
    tmp_path.chmod(0o711)
    database.start()
    try:
        with Running(used_home, DATABASE_URL=database.url) as running:
            running.wait_ready()
            assert not (used_home / "postgres").exists()
            assert (used_home / "valkey").exists()
    finally:
        database.stop()


def test_an_invalid_setting_is_refused(home: Path) -> None:
    with Running(home, MONODON_WEB_WORKERS="many") as refused:
        assert refused.wait_exit(within=10) == 1
    assert "MONODON_WEB_WORKERS must be a number from 1 to 64, not 'many'." in refused.output


def test_a_wildcard_address_is_reached_through_loopback() -> None:
    options = Options.from_environment({"MONODON_HOST": "0.0.0.0", "MONODON_PORT": "99"})
    assert options.local_url == "http://127.0.0.1:99"
    options = Options.from_environment({"MONODON_HOST": "::", "MONODON_PORT": "99"})
    assert options.local_url == "http://[::1]:99"
