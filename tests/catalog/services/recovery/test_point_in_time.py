"""Point-in-time recovery with the commands of docs/operations.md: PostgreSQL returns to the moment before a mistake."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from server.options import PROJECT
from server.postgres import DATABASE, Postgres, stop
from server.roles import SUPERUSER

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

_CREATE = """\
import django; django.setup()
from catalog.access import SYSTEM
from catalog.services.engine.commit import commit
from catalog.services.tables.namespace_operations import CreateNamespace
commit([CreateNamespace(namespace=("prod",)), CreateNamespace(namespace=("prod", "sales"))], actor=SYSTEM)
"""
_DROP = """\
import django; django.setup()
from catalog.access import SYSTEM
from catalog.services.engine.commit import commit
from catalog.services.tables.namespace_operations import DropNamespace
commit([DropNamespace(namespace=("prod", "sales"))], actor=SYSTEM)
"""


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that the user of PostgreSQL can enter."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running(database: Postgres) -> Iterator[None]:
    child = database.child()
    child.start()
    try:
        database.wait_ready(child)
        yield
    finally:
        stop(child, patience=60.0)


def as_superuser(database: Postgres, query: str) -> str:
    with psycopg.connect(
        host=str(database.socket_dir), user=SUPERUSER, dbname="postgres", autocommit=True
    ) as connection:
        (value,) = connection.execute(query).fetchone()
        return str(value)


def namespaces(database: Postgres) -> list[str]:
    query = (
        "SELECT array_to_string(path, '.') FROM catalog_namespace"
        " WHERE dropped_at IS NULL AND cardinality(path) > 0 ORDER BY 1"
    )
    with psycopg.connect(database.url_of(DATABASE)) as connection:
        return [path for (path,) in connection.execute(query)]


def configure(database: Postgres, text: str) -> None:
    with (database.data_dir / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write(text)


def test_the_database_returns_to_the_moment_before_a_drop(root: Path) -> None:
    first, archive = Postgres(root / "a", root / "run-a"), root / "archive"
    first.prepare()
    owner = first.data_dir.stat()
    archive.mkdir()
    os.chown(archive, owner.st_uid, owner.st_gid)
    configure(
        first,
        f"archive_mode = on\narchive_command = 'test ! -f {archive}/%f && cp %p {archive}/%f'\n",
    )
    access = first.data_dir / "pg_hba.conf"
    operator = f"local all {SUPERUSER} trust\nlocal replication {SUPERUSER} trust\n"
    access.write_text(operator + access.read_text("utf-8"), "utf-8")  # the first match decides
    environment = {
        **os.environ,
        "DATABASE_URL": first.url,
        "MONODON_HOME": str(root / "home"),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }

    def python(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    with running(first):
        first.ensure_database()
        python("manage.py", "migrate")
        subprocess.run(
            [
                *(first.program("pg_basebackup"), "-h", first.socket_dir, "-U", SUPERUSER),
                *("-D", root / "b", "--checkpoint=fast"),
            ],
            check=True,
            capture_output=True,
            timeout=300,
        )
        python("-c", _CREATE)
        moment = as_superuser(first, "SELECT clock_timestamp()")
        python("-c", _DROP)
        assert namespaces(first) == ["prod"]
        segment = as_superuser(first, "SELECT pg_walfile_name(pg_switch_wal())")
        deadline = time.monotonic() + 120
        while not (archive / segment).exists():
            assert time.monotonic() < deadline, "the log was not archived"
            time.sleep(0.1)

    # The password of the application belongs to the cluster.
    shutil.copy(first.password_file, root / "b.password")
    second = Postgres(root / "b", root / "run-b")
    configure(
        second,
        f"archive_mode = off\nrestore_command = 'cp {archive}/%f %p'\n"
        f"recovery_target_time = '{moment}'\nrecovery_target_action = 'promote'\n",
    )
    (second.data_dir / "recovery.signal").touch()
    for path in (second.data_dir, *second.data_dir.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    second.socket_dir.parent.mkdir(mode=0o711, exist_ok=True)
    second.socket_dir.mkdir(mode=0o700)
    os.chown(second.socket_dir, owner.st_uid, owner.st_gid)
    with running(second):
        assert namespaces(second) == ["prod", "prod.sales"]
        environment["DATABASE_URL"] = second.url
        python("manage.py", "migrate", "--check")
        python("-c", _DROP)  # the recovered database accepts commits
        assert namespaces(second) == ["prod"]
