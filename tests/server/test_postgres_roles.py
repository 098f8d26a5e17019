"""Access to the embedded cluster, and privileges of the application's role."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from server import postgres
from server.errors import DatabaseUnusable
from server.identity import Identity
from server.postgres import Postgres
from server.processes import Child
from server.roles import SUPERUSER, scram_verifier
from tests.server.running import PROJECT, eventually

pytestmark = pytest.mark.xdist_group("roles")  # the cluster starts once

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")

OLD = """
CREATE TABLE kept (id bigserial PRIMARY KEY, number int GENERATED ALWAYS AS IDENTITY, text text);
INSERT INTO kept (text) VALUES ('one'), ('two');
CREATE SEQUENCE alone;
CREATE TYPE mood AS ENUM ('fine');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b int);
CREATE VIEW shown AS SELECT text FROM kept;
CREATE SCHEMA other;
CREATE TABLE other.months (at date) PARTITION BY RANGE (at);
CREATE TABLE other.january PARTITION OF other.months FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE FUNCTION other.add(a int, b int) RETURNS int LANGUAGE sql SECURITY DEFINER RETURN a + b;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'append-only'; END $$;
CREATE TRIGGER append_only BEFORE DELETE ON kept EXECUTE FUNCTION refuse();
"""


@contextlib.contextmanager
def reachable() -> Iterator[Path]:
    """A directory that other users may enter, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="monodon-roles-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def directory() -> Iterator[Path]:
    with reachable() as path:
        yield path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    """A durable cluster without extra privileges, as in `make up`."""
    with reachable() as path:
        cluster = Postgres(path / "data", path / "run")
        cluster.start()
        yield cluster
        cluster.stop()


def connect(cluster: Postgres, **parameters: str) -> psycopg.Connection:
    options = {"host": str(cluster.socket_dir), "dbname": "monodon", "passfile": "/nonexistent"}
    return psycopg.connect(autocommit=True, **(options | parameters))


def password(cluster: Postgres) -> str:
    return cluster.password_file.read_text().strip().rpartition(":")[2]


@pytest.mark.parametrize(
    "login",
    [
        {"user": "monodon"},
        {"user": "monodon", "password": ""},
        {"user": "monodon", "password": "monodon"},
        {"user": "monodon", "dbname": "postgres"},
        {"user": "monodon", "dbname": "template1"},
        {"user": SUPERUSER},
        {"user": SUPERUSER, "dbname": "postgres"},
        {"user": "postgres", "dbname": "postgres"},
        {"user": "root", "dbname": "postgres"},
    ],
    ids=lambda login: "-".join(login.values()) or "empty",
)
def test_connections_require_the_password(cluster: Postgres, login: dict[str, str]) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"password|rejects connection"):
        connect(cluster, **login)


def test_the_password_is_only_for_the_application_role(cluster: Postgres) -> None:
    assert len(password(cluster)) >= 40
    with connect(cluster, user="monodon", password=password(cluster)) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("monodon",)
    with pytest.raises(psycopg.OperationalError, match="rejects connection"):
        connect(cluster, user=SUPERUSER, password=password(cluster))


def test_hba_has_no_trust_and_the_password_file_is_private(cluster: Postgres) -> None:
    rules = [
        line.split()
        for line in (cluster.data_dir / "pg_hba.conf").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert rules == [
        ["local", "all", "monodon", "scram-sha-256"],
        ["local", "all", "all", "reject"],
    ]
    assert (cluster.data_dir / "pg_ident.conf").read_text() == ""
    facts = cluster.password_file.stat()
    assert (facts.st_mode & 0o777, facts.st_uid) == (0o600, os.geteuid())
    assert cluster.socket_dir.stat().st_mode & 0o777 == 0o700
    assert password(cluster) not in cluster.url


FORBIDDEN = [
    f"SET ROLE {SUPERUSER}",
    f"SET SESSION AUTHORIZATION {SUPERUSER}",
    f"GRANT {SUPERUSER} TO monodon",
    "ALTER ROLE monodon SUPERUSER",
    f"ALTER ROLE {SUPERUSER} PASSWORD 'x'",
    "CREATE ROLE other SUPERUSER",
    "CREATE ROLE other",
    "GRANT pg_execute_server_program TO monodon",
    "GRANT pg_read_server_files TO monodon",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "COPY (SELECT 1) TO '/tmp/monodon-test-written-by-the-database'",
    "SELECT pg_read_file('pg_hba.conf')",
    "SELECT lo_export(lo_create(0), '/tmp/monodon-test-written-by-the-database')",
    "ALTER SYSTEM SET listen_addresses = '*'",
    "SET session_replication_role = replica",
    "UPDATE pg_authid SET rolsuper = true WHERE rolname = 'monodon'",
    "SELECT rolpassword FROM pg_authid",
    "CREATE LANGUAGE plpython3u",
    "CREATE FUNCTION system(cstring) RETURNS int AS 'libc.so.6', 'system' LANGUAGE c",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_the_application_is_no_superuser_and_cannot_become_one(
    cluster: Postgres, statement: str
) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        with pytest.raises(
            (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported)
        ):
            connection.execute(statement.encode())
        facts = connection.execute(
            "SELECT rolsuper, rolcreaterole, rolreplication, rolbypassrls FROM pg_roles"
            " WHERE rolname = 'monodon'"
        ).fetchone()
        assert facts == (False, False, False, False)
        members = connection.execute(
            "SELECT count(*) FROM pg_auth_members WHERE member = 'monodon'::regrole"
        ).fetchone()
        assert members == (0,)


def test_a_lost_password_is_created_again(cluster: Postgres) -> None:
    before = password(cluster)
    cluster.stop()
    cluster.password_file.unlink()
    cluster.start()
    assert password(cluster) != before
    with psycopg.connect(cluster.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect(cluster, user="monodon", password=before)


def test_added_hba_rules_are_removed_at_the_next_start(cluster: Postgres) -> None:
    cluster.stop()
    with (cluster.data_dir / "pg_hba.conf").open("a") as file:
        file.write("local all all trust\n")
    cluster.start()
    with pytest.raises(psycopg.OperationalError, match="rejects connection"):
        connect(cluster, user=SUPERUSER)


def test_the_verifier_agrees_with_postgresql() -> None:
    verifier = scram_verifier("secret", iterations=4096)
    method, iterations, _ = verifier.split("$", 2)
    assert (method, iterations.partition(":")[0]) == ("SCRAM-SHA-256", "4096")


# --- clusters of older releases


def make_old_cluster(directory: Path) -> None:
    """Create a cluster as former releases did: a superuser application role and trust
    authentication."""
    new = Postgres(directory / "unused", directory / "unused-run")
    old = Identity(owner=(os.geteuid(), os.getegid()))
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        ids = nobody.pw_uid, nobody.pw_gid
        old = Identity(owner=ids, arguments=("--user", f"{ids[0]}:{ids[1]}"))
    for folder in (directory / "data", directory / "sockets"):
        folder.mkdir(mode=0o700)
        os.chown(folder, *old.owner)
    make = [str(new.program("initdb")), f"--pgdata={directory / 'data'}", "--username=monodon"]
    subprocess.run(
        old.launch([*make, "--auth=trust"]), check=True, capture_output=True, cwd=directory
    )
    server = Child(
        "postgres",
        [
            *(
                str(new.program("postgres")),
                "-D",
                str(directory / "data"),
                "-c",
                "listen_addresses=",
            ),
            *("-c", f"unix_socket_directories={directory / 'sockets'}"),
        ],
        sink=lambda line: None,
        environment={"LC_ALL": "C"},
        directory=directory,
        identity=old,
        polite=signal.SIGINT,
    )
    server.start()
    try:
        pid_file = directory / "data" / "postmaster.pid"
        eventually(
            lambda: pid_file.exists() and "ready" in pid_file.read_text(),
            within=30,
            description="old",
        )
        door = {"host": str(directory / "sockets"), "user": "monodon"}
        with psycopg.connect(**door, dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE monodon")
        with psycopg.connect(**door, dbname="monodon", autocommit=True) as connection:
            connection.execute(OLD)
    finally:
        postgres.stop(server, patience=10.0)


def test_an_old_cluster_is_upgraded_without_losing_anything(directory: Path) -> None:
    make_old_cluster(directory)
    for _ in range(2):  # the second start has nothing to do
        cluster = Postgres(directory / "data", directory / "run")
        cluster.start()
        with psycopg.connect(cluster.url, autocommit=True) as connection:

            def rows(query: str, connection: psycopg.Connection = connection) -> list[tuple]:
                return connection.execute(query.encode()).fetchall()

            assert rows("SELECT id, number, text FROM kept ORDER BY id") == [
                (1, 1, "one"),
                (2, 2, "two"),
            ]
            assert rows(
                "SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user"
            ) == [("monodon", False)]
            assert rows("SELECT rolname FROM pg_roles WHERE rolsuper") == [(SUPERUSER,)]
            owners = """
                SELECT relname, pg_get_userbyid(relowner) FROM pg_class
                WHERE relnamespace IN ('public'::regnamespace, 'other'::regnamespace)
                UNION ALL SELECT proname, pg_get_userbyid(proowner) FROM pg_proc
                WHERE pronamespace IN ('public'::regnamespace, 'other'::regnamespace)
                UNION ALL SELECT typname, pg_get_userbyid(typowner) FROM pg_type
                WHERE typnamespace IN ('public'::regnamespace, 'other'::regnamespace)
                UNION ALL SELECT nspname, pg_get_userbyid(nspowner) FROM pg_namespace
                WHERE nspname = 'other'
                UNION ALL SELECT datname, pg_get_userbyid(datdba) FROM pg_database
                WHERE datname = 'monodon'
            """
            roles = rows(owners)
            assert {owner for _, owner in roles} == {"monodon"}
            names = {name for name, _ in roles}
            assert {"kept", "alone", "mood", "positive", "pair", "shown", "january", "add"} <= names
            # Statements that migrations execute on such tables.
            connection.execute("ALTER TABLE kept ADD COLUMN more text")
            connection.execute("ALTER TABLE kept DROP COLUMN more")
            with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                connection.execute("DELETE FROM kept")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("ALTER ROLE monodon SUPERUSER")
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            connect(cluster, user="monodon")
        cluster.stop()


def test_a_killed_upgrade_is_resumed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_old_cluster(directory)
    monkeypatch.setattr("server.roles._OWNERSHIP", "SELECT 1 / 0")
    cluster = Postgres(directory / "data", directory / "run")
    with pytest.raises(DatabaseUnusable, match=r"roles of the cluster .* could not be made"):
        cluster.start()
    monkeypatch.undo()
    cluster = Postgres(directory / "data", directory / "run")
    cluster.start()
    with psycopg.connect(cluster.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (2,)
        owner = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 'kept'"
        assert connection.execute(owner).fetchone() == ("monodon",)
    cluster.stop()


# --- clusters that root starts


_INTRUDER = """
import os, signal, sys
import psycopg
sys.path.insert(0, sys.argv[1])
data, sockets, password_file, postmaster = sys.argv[2:]
os.setgroups([]); os.setgid(int(os.environ["GID"])); os.setuid(int(os.environ["UID"]))
refused = []
def attempt(name, action):
    try:
        action()
    except (OSError, psycopg.OperationalError) as error:
        refused.append(name)
attempt("connect", lambda: psycopg.connect(host=sockets, user="monodon", dbname="monodon"))
attempt("superuser", lambda: psycopg.connect(host=sockets, user="monodon_superuser", dbname="postgres"))
attempt("socket", lambda: os.listdir(sockets))
attempt("data", lambda: os.listdir(data))
attempt("rules", lambda: open(data + "/pg_hba.conf", "a"))
attempt("password", lambda: open(password_file))
attempt("signal", lambda: os.kill(int(postmaster), 0))
attempt("environment", lambda: open(f"/proc/{postmaster}/environ").read())
attempt("memory", lambda: open(f"/proc/{postmaster}/mem", "rb"))
print(" ".join(refused))
"""


@as_root
def test_other_programs_of_the_same_user_cannot_connect(cluster: Postgres) -> None:
    postmaster = (cluster.data_dir / "postmaster.pid").read_text().split()[0]
    nobody = pwd.getpwnam("nobody")
    completed = subprocess.run(
        [
            *(sys.executable, "-c", _INTRUDER, str(PROJECT), str(cluster.data_dir)),
            *(str(cluster.socket_dir), str(cluster.password_file), postmaster),
        ],
        env={"UID": str(nobody.pw_uid), "GID": str(nobody.pw_gid), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.stdout.split() == [
        *("connect", "superuser", "socket", "data", "rules"),
        *("password", "signal", "environment", "memory"),
    ], completed.stderr


@as_root
def test_the_user_of_the_server_has_no_account(cluster: Postgres) -> None:
    postmaster = int((cluster.data_dir / "postmaster.pid").read_text().split()[0])
    owner = Path(f"/proc/{postmaster}").stat().st_uid
    assert owner not in {0, pwd.getpwnam("nobody").pw_uid}
    with pytest.raises(KeyError):
        pwd.getpwuid(owner)
    assert {path.lstat().st_uid for path in cluster.data_dir.rglob("*")} == {owner}
