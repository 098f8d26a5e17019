"""`manage.py register` with a thousand tables below one location, killed in between."""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from catalog.formats.iceberg.metadata import documents
from server.options import PROJECT
from tests.factories import ICEBERG_SCHEMA
from tests.live import LiveServer
from tests.stores.fixtures import MakeLiveProfile, Storage
from tests.stores.s3 import S3Store

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]
EACH = 500
KILLED_AFTER = 300


@pytest.fixture
def server(live_template: None) -> Iterator[LiveServer]:
    """A database; no server runs."""
    server = LiveServer()
    yield server
    server.close()


@pytest.fixture(params=["local", "s3"])
def lake(
    request: pytest.FixtureRequest, server: LiveServer, make_live_profile: MakeLiveProfile
) -> Storage:
    """Five hundred tables of each format, which no catalog knows."""
    if request.param == "local":
        storage = Storage("local", str(server.warehouse))
    else:
        store: S3Store = request.getfixturevalue("s3")
        profile, root = make_live_profile(server, store)
        storage = Storage("s3", root, profile, store)
    _write_tables(storage, request.getfixturevalue("tmp_path"))
    return storage


def _write_tables(storage: Storage, directory: Path) -> None:
    template = directory / "template"
    lance.write_dataset(pa.table({"id": [1, 2, 3]}), str(template))
    files = {
        str(path.relative_to(template)): path.read_bytes()
        for path in template.rglob("*")
        if path.is_file()
    }
    for number in range(EACH):
        location = storage.location(f"lake/team {number % 10}/lance{number}.lance")
        for name, content in files.items():
            storage.write(f"{location}/{name}", content)
        location = storage.location(f"lake/sales.db/orders{number}-{uuid.uuid4()}")
        document = documents.new_table(
            schema=ICEBERG_SCHEMA,
            partition_spec=None,
            write_order=None,
            location=location if storage.kind == "s3" else f"file://{location}",
            properties=None,
            now_ms=1,
        )
        metadata = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        storage.write(metadata, documents.dump(document))
    shutil.rmtree(template)


def start(server: LiveServer, storage: Storage) -> subprocess.Popen[str]:
    location = storage.location("lake")
    return subprocess.Popen(
        [sys.executable, "manage.py", "register", location, "--into", "prod", "--yes"],
        cwd=PROJECT,
        env=server._environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def registered(server: LiveServer) -> dict[str, int]:
    with server.database() as database:
        return dict(
            database.execute("SELECT format, count(*) FROM catalog_table GROUP BY 1").fetchall()
        )


def test_a_killed_registration_continues(server: LiveServer, lake: Storage) -> None:
    before = lake.files()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    first = start(server, lake)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith(f"[{KILLED_AFTER}/"):
            break
    first.send_signal(signal.SIGKILL)
    first.communicate()
    count = sum(registered(server).values())
    assert KILLED_AFTER <= count < 2 * EACH
    second = start(server, lake)
    output, _ = second.communicate()
    assert second.returncode == 0, output[-2000:]
    assert f"{2 * EACH} tables: {2 * EACH - count} new, {count} registered" in output
    numbers = re.findall(r"^\[(\d+)/(\d+)\] .*: registered$", output, re.MULTILINE)
    assert len(numbers) == 2 * EACH - count
    assert registered(server) == {"lance": EACH, "iceberg": EACH}
    assert lake.files() == before
    third = start(server, lake)
    output, _ = third.communicate()
    assert output.endswith(f"{2 * EACH} tables: {2 * EACH} registered\n")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    print(json.dumps({"storage": lake.kind, "cpu_seconds": round(cpu, 1)}))
    assert cpu < 120
