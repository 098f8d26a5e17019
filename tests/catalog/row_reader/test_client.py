"""Data files are decoded in another process, with limits, without secrets."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import ListType, LongType, NestedField

from catalog.errors import InvalidMetadata, ServiceUnavailable, Unsupported
from catalog.formats.iceberg.manifests import Entry
from catalog.formats.iceberg.rows.data_files import Layout
from catalog.formats.rows.previews import Request
from catalog.formats.rows.selection import Order
from catalog.row_reader import client, messages
from catalog.row_reader.messages import DataFileEntries, Job, Read
from tests.catalog.row_reader import bombs
from tests.catalog.row_reader.in_process import in_process

__all__ = ["in_process"]

_GIBIBYTE = 1024**3
_SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "numbers", ListType(3, LongType(), element_required=False), required=False),
)
_LAYOUT = Layout(_SCHEMA, {}, None, 2)
_COLUMNS = [pa.field("id", pa.int64()), pa.field("numbers", pa.large_list(pa.int64()))]
_ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field(
            "numbers", pa.list_(pa.field("element", pa.int64(), metadata={"PARQUET:field_id": "3"}))
        ).with_metadata({"PARQUET:field_id": "2"}),
    ]
)


class LocalFiles:
    """Data files in a directory."""

    def __init__(self, *paths: Path) -> None:
        self._left = [str(path) for path in paths]

    def next_file(self) -> DataFileEntries | None:
        return (entry(self._left.pop(0)), []) if self._left else None

    def open(self, location: str) -> tuple[int, int | None]:
        return Path(location).stat().st_size, os.open(location, os.O_RDONLY)

    def read(self, location: str, start: int, length: int) -> bytes:
        with Path(location).open("rb") as file:
            return os.pread(file.fileno(), length, start)


class RemoteFiles(LocalFiles):
    """The same in a store that is not local."""

    def open(self, location: str) -> tuple[int, int | None]:
        return Path(location).stat().st_size, None


def entry(path: str) -> Entry:
    size = Path(path).stat().st_size
    rows = pq.read_metadata(path).num_rows if size > 100 else 1
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size,
    )
    return Entry(file, 0, 1, 1, is_added=True, first_row_id=None)


def job(**changes: Any) -> Job:
    return replace(Job(_LAYOUT, _COLUMNS, Request(), 60.0, 32 * 1024**2), **changes)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.parquet"
    table = pa.table([range(1, 4), [[1], None, [2, 3]]], schema=_ARROW)
    pq.write_table(table, path)
    return path


def peak_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def texts(path: Path, **changes: Any) -> list[list[str]]:
    shown = client.preview(job(**changes), LocalFiles(path))
    return [[value.text for value in row] for row in shown.rows]


def test_rows_are_read_in_another_process(small):
    assert texts(small) == [["1", "[1]"], ["2", ""], ["3", "[2,3]"]]
    order = Request(order=Order("id", is_descending=True))
    assert texts(small, request=order)[0] == ["3", "[2,3]"]
    server = client.server_process()
    assert server is not None
    assert server != os.getpid()
    assert texts(small)  # the same server
    assert client.server_process() == server


def test_remote_files_are_read_by_this_process(tmp_path):
    path = tmp_path / "large.parquet"
    numbers = np.random.default_rng(1).integers(0, 2**62, 2_000_000)
    table = pa.table([numbers, pa.nulls(len(numbers), _ARROW.field(1).type)], schema=_ARROW)
    pq.write_table(table, path, compression="none", use_dictionary=False)
    assert path.stat().st_size > 3 * messages.MAX_READ
    order = job(request=Request(order=Order("id", is_descending=True), limit=2))
    for files in (RemoteFiles(path), LocalFiles(path)):
        shown = client.preview(order, files)
        expected = sorted(numbers.tolist())[-1:-3:-1]
        assert [int(row[0].text) for row in shown.rows] == expected


def test_a_column_is_profiled_in_another_process(small):
    profile = client.profile(job(columns=_COLUMNS[:1], request=None), LocalFiles(small))
    assert (profile.rows, profile.distinct) == (3, 3)
    assert profile.highest is not None
    assert profile.highest.text == "3"


@pytest.mark.xdist_group("bomb")  # not beside other tests that need gigabytes
@pytest.mark.parametrize("request_", [Request(), Request(order=Order("id")), None])
def test_a_file_that_expands_is_refused_and_takes_no_memory_here(small, request_):
    columns = _COLUMNS if request_ else _COLUMNS[1:]
    compute = client.preview if request_ else client.profile
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = peak_memory()
    with pytest.raises(Unsupported) as refusal:
        compute(job(request=request_, columns=columns), LocalFiles(bombs.PARQUET))
    assert peak_memory() - before < _GIBIBYTE // 4
    assert str(bombs.PARQUET) in refusal.value.message
    assert "MONODON_PREVIEW_MEMORY_BYTES is 512 MiB" in refusal.value.message
    assert len(texts(small)) == 3  # and nothing else is affected


@pytest.mark.xdist_group("bomb")
def test_the_memory_is_a_setting(settings):
    settings.MONODON_PREVIEW_MEMORY_BYTES = 16 * _GIBIBYTE
    columns = _COLUMNS[:1]  # without the large column
    assert len(client.preview(job(columns=columns), LocalFiles(bombs.PARQUET)).rows) == 1
    settings.MONODON_PREVIEW_MEMORY_BYTES = 1
    with pytest.raises(Unsupported, match="MONODON_PREVIEW_MEMORY_BYTES is 0 MiB"):
        client.preview(job(columns=columns), LocalFiles(bombs.PARQUET))


class Hanging:
    """Whoever unpickles it waits in a call that nothing but a signal ends."""

    def __reduce__(self) -> Any:
        return time.sleep, (3600,)


class Computing:
    """Whoever unpickles it computes in C, where Python notices nothing."""

    def __reduce__(self) -> Any:
        return sum, (count(1),)


class Dying:
    def __reduce__(self) -> Any:
        return os.abort, ()


@pytest.mark.parametrize("work", [Hanging(), Computing()])
def test_work_that_hangs_ends_at_its_deadline(small, work, monkeypatch):
    texts(small)  # the server runs
    monkeypatch.setattr(client, "GRACE_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(Unsupported, match="took longer than 1 seconds to decode"):
        client.preview(job(columns=work, seconds=0.5), LocalFiles(small))
    assert time.monotonic() - began < 60
    wait_for_workers()
    assert len(texts(small)) == 3


def wait_for_workers() -> None:
    """Wait until no worker runs."""
    server = client.server_process()
    ends_at = time.monotonic() + 60
    while Path(f"/proc/{server}/task/{server}/children").read_text():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_a_process_that_dies_is_an_error_of_its_request_only(small):
    with pytest.raises(Unsupported, match="ended without a result"):
        client.preview(job(columns=Dying()), LocalFiles(small))
    assert len(texts(small)) == 3


def test_requests_at_the_same_time_do_not_disturb_each_other(small):
    texts(small)
    rows: list[int] = []
    refusals: list[str] = []

    def read() -> None:
        rows.append(len(texts(small)))

    def die() -> None:
        try:
            client.preview(job(columns=Dying()), LocalFiles(small))
        except Unsupported as error:
            refusals.append(error.message)

    threads = [Thread(target=work) for work in (read, die) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (rows, len(refusals)) == ([3] * 4, 4)


def test_a_server_that_has_ended_is_started_again(small):
    texts(small)
    first = client.server_process()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert len(texts(small)) == 3
    client.stop()
    assert client.server_process() is None
    assert len(texts(small)) == 3


def test_the_process_has_no_secrets(small, monkeypatch):
    client.stop()
    monkeypatch.setenv("MONODON_SECRET_KEY", "k" * 50)
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:hunter2@127.0.0.1/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    texts(small)
    process = Path(f"/proc/{client.server_process()}")
    variables = process.joinpath("environ").read_bytes().decode().split("\0")
    names = {name.partition("=")[0] for name in variables if name}
    assert names <= {
        *("ARROW_DEFAULT_MEMORY_POOL", "MALLOC_ARENA_MAX", "OMP_NUM_THREADS"),
        *("OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE", "LC_ALL", "PYTHONPATH"),
        *("LD_LIBRARY_PATH",),
    }
    assert "hunter2" not in process.joinpath("cmdline").read_text()
    # Only its standard streams, and the socket from which it takes requests.
    targets = [str(handle.readlink()) for handle in process.joinpath("fd").iterdir()]
    assert sum(target.startswith("socket:") for target in targets) == 1
    maps = process.joinpath("maps").read_text()
    assert "libarrow" in maps
    assert "psycopg" not in maps
    assert "lance" not in maps


def test_the_modules_of_the_process_need_no_django():
    code = (
        "import sys, catalog.row_reader.server; print([m for m in sys.modules if 'django' in m"
        " or m.startswith(('catalog.models', 'catalog.services', 'config'))])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert output.stdout == "[]\n"


def test_limits_hold_for_good(small):
    """The worker's limits, which it cannot raise."""
    code = (
        "import resource\n"
        "from catalog.row_reader import limits\n"
        "limits.apply(memory_bytes=64 * 1024**2, seconds=2.5)\n"
        "print([resource.getrlimit(kind) for kind in"
        " (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)])\n"
        "print(open('/proc/self/oom_score_adj').read().strip())\n"
        "try:\n"
        "    bytearray(128 * 1024**2)\n"
        "except MemoryError:\n"
        "    print('no memory')\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert output.stdout == "[(3, 3), (0, 0), (0, 0)]\n1000\nno memory\n"


def test_files_outside_the_snapshot_are_not_sent(small, tmp_path, in_process, monkeypatch):
    other = tmp_path / "other.parquet"
    other.write_bytes(small.read_bytes())
    monkeypatch.setattr(
        messages.TypeAdapter, "dump_json", lambda _, message: _asking_for(message, str(other))
    )
    opened: list[str] = []

    class Watched(LocalFiles):
        def open(self, location: str) -> tuple[int, int | None]:
            opened.append(location)
            return super().open(location)

    with pytest.raises(Unsupported, match="cannot be shown"):
        client.preview(job(request=Request(order=Order("id"))), Watched(small))
    assert opened == []


def _asking_for(message: Any, location: str) -> bytes:
    if hasattr(message, "location"):
        message = replace(message, location=location)
    return orjson.dumps(message)


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"\xff",
        b'{"kind":"read","location":"x","start":-1,"length":1}',
        b'{"kind":"read","location":"x","start":0,"length":4194305}',
        b'{"kind":"next","more":1}',
        b'{"kind":"finished","preview":{"columns":[],"rows":[[1]]}}',
    ],
)
def test_messages_of_the_process_are_validated(content):
    with pytest.raises(ValidationError):
        messages.load(content)
    assert messages.load(b'{"kind":"read","location":"x","start":0,"length":4194304}') == Read(
        "x", 0, messages.MAX_READ
    )


def test_errors_of_the_files_are_raised(small):
    class Failing(LocalFiles):
        def next_file(self) -> DataFileEntries | None:
            raise ServiceUnavailable("the store is away")

        read = None  # type: ignore[assignment]

    with pytest.raises(ServiceUnavailable, match="the store is away"):
        client.preview(job(), Failing(small))
    assert len(texts(small)) == 3


def test_a_broken_file_is_named(tmp_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1" + b"\xff" * 20 + b"PAR1")
    with pytest.raises(InvalidMetadata, match=r"broken.parquet' cannot be read"):
        client.preview(job(), LocalFiles(broken))
