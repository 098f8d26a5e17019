"""The embedded cluster: its user, its socket, and clusters of earlier runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from server import identity
from server.errors import DatabaseUnusable, ServerError
from server.paths import Home, private_directory
from server.postgres import Postgres
from tests.server.running import PROJECT, eventually

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster in a path with spaces")
    path.chmod(0o711)
    return path


@pytest.fixture
def cluster(directory: Path) -> Iterator[Postgres]:
    cluster = Postgres(directory / "data", directory / "run", durable=False)
    cluster.start()
    yield cluster
    cluster.stop()


def answer(cluster: Postgres, query: str) -> object:
    with psycopg.connect(cluster.url) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0]


def test_it_listens_on_nothing_but_its_own_socket(cluster: Postgres) -> None:
    assert answer(cluster, "SHOW listen_addresses") == ""
    assert answer(cluster, "SHOW fsync") == "off"
    assert cluster.socket_dir.stat().st_mode & 0o777 == 0o700


def test_text_sorts_by_code_point_and_upper_case_knows_unicode(cluster: Postgres) -> None:
    assert answer(cluster, "SELECT 'B' < 'a' AND upper('ä') = 'Ä'") is True


def test_the_data_survives_a_kill(directory: Path) -> None:
    cluster = Postgres(directory / "data", directory / "run")
    cluster.start()
    with psycopg.connect(cluster.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
    pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    cluster.stop()
    cluster.start()
    assert answer(cluster, "SELECT number FROM kept") == 42
    assert answer(cluster, "SHOW fsync") == "on"
    cluster.stop()


def test_a_server_of_an_earlier_run_is_stopped_before_the_next_starts(directory: Path) -> None:
    # Started by a process that has ended, in a separate session: nothing connects it to this test.
    code = (
        "import os, pathlib, sys; from server.postgres import Postgres; "
        "place = pathlib.Path(sys.argv[1]); "
        "cluster = Postgres(place / 'data', place / 'run'); cluster.prepare(); "
        "child = cluster.child(); launch = child._identity.launch(child._command); "
        "os.setsid(); os.execv(launch[0], launch)"
    )
    orphan = subprocess.Popen([sys.executable, "-c", code, str(directory)], cwd=PROJECT)
    pid_file = directory / "data" / "postmaster.pid"

    def is_ready() -> bool:
        # While the cluster is prepared, the file names the server that sets up the roles.
        lines = pid_file.read_text().split() if pid_file.exists() else []
        return lines[:1] == [str(orphan.pid)] and "ready" in lines

    eventually(is_ready, within=30, description="orphan")
    reaper = psutil.Process(orphan.pid)
    lines: list[str] = []
    cluster = Postgres(directory / "data", directory / "run", sink=lines.append)
    cluster.start()
    orphan.wait(30)
    assert not reaper.is_running()
    assert lines[0] == f"stopping the server of an earlier run (pid {orphan.pid})"
    assert answer(cluster, "SELECT 1") == 1
    cluster.stop()


def test_a_reused_pid_is_not_killed(directory: Path) -> None:
    cluster = Postgres(directory / "data", directory / "run")
    cluster.prepare()
    bystander = subprocess.Popen(["/bin/sleep", "60"])
    try:
        pid_file = directory / "data" / "postmaster.pid"
        pid_file.write_text(
            f"{bystander.pid}\n{directory / 'data'}\n{int(time.time())}\n5432\n\n\n\n"
        )
        os.chown(pid_file, *cluster._identity.owner)
        cluster.start()
        assert answer(cluster, "SELECT 1") == 1
        cluster.stop()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_foreign_directory_is_not_changed(directory: Path) -> None:
    (directory / "data").mkdir()
    (directory / "data" / "thesis.txt").write_text("mine")
    with pytest.raises(DatabaseUnusable, match="not empty but holds no PostgreSQL cluster"):
        Postgres(directory / "data", directory / "run").start()
    assert (directory / "data" / "thesis.txt").read_text() == "mine"


def test_data_of_another_release_is_refused(directory: Path) -> None:
    (directory / "data").mkdir()
    (directory / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(DatabaseUnusable, match="was made by PostgreSQL 9"):
        Postgres(directory / "data", directory / "run").start()


@as_root
def test_root_uses_another_user_or_a_user_namespace(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    base = Path("/tmp/monodon-identity-test")
    closed = tmp_path_factory.mktemp("closed")
    base.mkdir(mode=0o755, exist_ok=True)
    try:
        program = Path("/bin/true")
        assert identity.choose(program, [base]).arguments[0] == "--user"
        closed.chmod(0o700)
        assert identity.choose(program, [closed]).arguments[0] == "--namespace"
    finally:
        base.rmdir()


@as_root
def test_the_owner_of_the_data_directory_follows_the_identity(directory: Path) -> None:
    cluster = Postgres(directory / "data", directory / "run")
    cluster.start()
    cluster.stop()
    owner = cluster._identity.owner
    other = (12345, 12345)
    for path in (directory / "data", *(directory / "data").rglob("*")):
        os.chown(path, *other, follow_symlinks=False)
    cluster.start()
    assert answer(cluster, "SELECT 1") == 1
    assert (directory / "data").stat().st_uid == owner[0]
    cluster.stop()


def test_a_long_home_gets_a_short_socket_directory(tmp_path: Path) -> None:
    home = Home(tmp_path / ("x" * 100))
    home.create()
    sockets = home.socket_dir()
    assert not sockets.is_relative_to(home.root)
    assert sockets == home.socket_dir()
    home.remove_sockets()
    assert not sockets.exists()


def test_a_socket_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ServerError, match="not a directory of ours"):
        private_directory(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ServerError, match="not a directory of ours"):
        private_directory(tmp_path / "link")
