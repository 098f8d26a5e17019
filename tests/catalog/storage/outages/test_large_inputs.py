"""Turns of requests that read large files."""

import gzip
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest

from catalog.access import SYSTEM, Progress
from catalog.errors import Busy, InvalidMetadata
from catalog.formats.iceberg import avro
from catalog.formats.iceberg import files as metadata_files
from catalog.formats.lance import manifest as lance_manifest
from catalog.formats.lance.manifest import NotAManifest
from catalog.services.engine import transactions
from catalog.services.engine.commit import commit
from catalog.services.tables.namespace_operations import CreateNamespace
from catalog.storage.local_store import LocalStore
from catalog.storage.outages import large_inputs, pools
from catalog.storage.outages.pools import Pool
from tests.factories import make_namespace

LARGE = large_inputs.FREE_BYTES + 1


class Thread:
    """A thread of a pool, which runs one call after undone."""

    def __init__(self, pool: Pool) -> None:
        self._executor = ThreadPoolExecutor(1)
        self.run(pools.enter, pool)

    def begin(self, call: Callable[..., object], *arguments: object) -> "Future[object]":
        return self._executor.submit(call, *arguments)

    def run(self, call: Callable[..., object], *arguments: object) -> object:
        return self.begin(call, *arguments).result(20)

    def end(self) -> None:
        self.run(large_inputs.release)
        self._executor.shutdown()


Pending = "object"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Thread]]:
    """Four threads of a pool whose last one never waits."""
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 0.1)
    pool = Pool(3)
    made = [Thread(pool) for _ in range(4)]
    yield made
    for thread in made:
        thread.end()


def test_one_request_has_the_turn_until_it_ends(threads, monkeypatch):
    first, second, third, last = threads
    first.run(large_inputs.count, LARGE)
    first.run(large_inputs.count, LARGE)
    for thread in threads[1:]:
        thread.run(large_inputs.count, large_inputs.FREE_BYTES)  # nobody waits for less
    with pytest.raises(Busy, match="reading large files"):
        second.run(large_inputs.count, 1)
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 20.0)
    waiting = {thread.begin(large_inputs.count, 1): thread for thread in (second, third)}
    wait_until(lambda: [*large_inputs._occupied.values()] == [3])
    with pytest.raises(Busy):
        last.run(large_inputs.count, 1)  # it never waits
    first.run(large_inputs.release)
    (done,), (undone,) = wait(waiting, 20, FIRST_COMPLETED)
    waiting[done].run(large_inputs.release)
    assert undone.result(20) is None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_waiting_request_gets_the_turn(threads, monkeypatch):
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 20.0)
    first, second, *_ = threads
    first.run(large_inputs.count, LARGE)
    pending = second.begin(large_inputs.count, LARGE)
    first.run(large_inputs.release)
    assert pending.result(20) is None
    second.run(large_inputs.release)
    second.run(large_inputs.count, large_inputs.FREE_BYTES)  # what it read before no longer counts
    first.run(large_inputs.count, LARGE)


def test_a_slow_request_loses_the_turn(threads, monkeypatch):
    """A client that sends or reads slowly, or a store that answers slowly, would refuse all others."""
    monkeypatch.setattr(large_inputs, "LONGEST_SECONDS", 0.2)
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 20.0)
    slow, second, *_ = threads
    slow.run(large_inputs.count, LARGE)
    pending = second.begin(large_inputs.count, LARGE)
    assert pending.result(10) is None
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(large_inputs, "LONGEST_SECONDS", 60.0)
    second.run(large_inputs.release)
    second.run(large_inputs.count, LARGE)
    with pytest.raises(Busy):
        slow.run(large_inputs.count, 1)  # it needs the turn again
    slow.run(large_inputs.release)
    with pytest.raises(Busy):
        slow.run(large_inputs.count, LARGE)  # it has not ended the turn of the other
    second.run(large_inputs.release)
    assert not large_inputs._occupied


def read_for(principal: str) -> None:
    large_inputs.attribute(principal)
    large_inputs.count(LARGE)


def test_principals_alternate(threads, monkeypatch):
    """Somebody who sends many requests delays those of others by one turn."""
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 20.0)
    first, second, third, other = threads
    first.run(read_for, "many")
    oldest = second.begin(read_for, "many")
    wait_until(lambda: len(large_inputs._turns.waiters) == 1)
    newest = third.begin(read_for, "many")
    wait_until(lambda: len(large_inputs._turns.waiters) == 2)
    single = other.begin(read_for, "single")
    with pytest.raises(Busy):
        newest.result(20)  # it gives its place
    with pytest.raises(Busy):
        third.run(read_for, "many")
    first.run(large_inputs.release)
    assert single.result(20) is None
    assert not oldest.done()
    again = first.begin(read_for, "many")
    wait_until(lambda: len(large_inputs._turns.waiters) == 2)
    other.run(large_inputs.release)
    assert oldest.result(20) is None
    second.run(large_inputs.release)
    assert again.result(20) is None


def test_nobody_displaces_the_only_request_of_another(threads, monkeypatch):
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 20.0)
    waiting = []
    for number, thread in enumerate(threads[:3]):
        waiting.append(thread.begin(read_for, f"principal {number}"))
        wait_until(lambda: sum(large_inputs._turns.places().values()) == len(waiting))
    with pytest.raises(Busy):
        threads[3].run(read_for, "principal 3")
    for thread, pending in zip(threads, waiting, strict=False):
        assert pending.result(20) is None
        thread.run(large_inputs.release)


def test_the_first_request_of_a_principal_waits_for_a_whole_turn(threads, monkeypatch):
    monkeypatch.setattr(large_inputs, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(large_inputs, "LONGEST_SECONDS", 0.5)
    first, second, third, _ = threads
    first.run(read_for, "many")
    pending = third.begin(read_for, "single")
    with pytest.raises(Busy):
        second.run(read_for, "many")
    assert pending.result(20) is None


@pytest.mark.django_db
def test_a_rehearsed_commit_exempts_nothing(threads, monkeypatch):
    """Its change is rolled back, so the request may be refused."""
    first, second, *_ = threads
    exempt = large_inputs.exempt
    monkeypatch.setattr(large_inputs, "exempt", lambda: second.run(exempt))
    first.run(large_inputs.count, LARGE)
    actor = replace(SYSTEM, progress=Progress())
    with transactions.rehearsal(actor, is_dry_run=True):
        commit([CreateNamespace(namespace=("ws",))], actor=actor)
    with pytest.raises(Busy):
        second.run(large_inputs.count, LARGE)


@pytest.mark.django_db
def test_a_request_is_not_refused_after_its_commit(threads, monkeypatch):
    first, second, *_ = threads
    exempt = large_inputs.exempt
    monkeypatch.setattr(large_inputs, "exempt", lambda: second.run(exempt))
    first.run(large_inputs.count, LARGE)
    make_namespace("ws")
    second.run(large_inputs.count, LARGE)
    second.run(large_inputs.release)
    with pytest.raises(Busy):
        second.run(large_inputs.count, LARGE)


def test_jobs_have_no_turns():
    held = threading.Barrier(2)

    def read() -> None:
        large_inputs.count(LARGE)
        held.wait(20)

    with ThreadPoolExecutor(2) as executor:
        for pending in [executor.submit(read) for _ in range(2)]:
            pending.result(20)


def _sparse(path: Path, size: int = LARGE) -> str:
    with path.open("wb") as file:
        file.truncate(size)
    return str(path)


def _block(content: bytes) -> bytes:
    """An Avro file with one block of a record."""
    header = b"Obj\x01\x04\x14avro.codec\x0edeflate\x16avro.schema" + _text(_SCHEMA) + b"\0"
    sync = b"\0" * 16
    data = zlib.compress(content)[2:-4]
    return header + sync + b"\x02" + _number(len(data)) + data + sync


_SCHEMA = b'{"type":"record","name":"r","fields":[{"name":"a","type":"bytes","field-id":500}]}'


def _number(value: int) -> bytes:
    value <<= 1
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def _text(content: bytes) -> bytes:
    return _number(len(content)) + content


def _lance() -> bytes:
    message = b"\x18\x01" + b"\x12\x00" * (LARGE // 16)
    return len(message).to_bytes(4, "little") + message + bytes(8) + b"\0\0\2\0LANC"


READS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: LocalStore().read(_sparse(path), LARGE),
    "end of a file": lambda path: LocalStore().read_end(_sparse(path), lambda *_: 0, LARGE),
    "block of a manifest": lambda _: list(avro.read_fields(_block(_text(bytes(LARGE))), (500,))),
    "metadata": lambda _: metadata_files.load(b'{"a": "%s"}' % (b"a" * LARGE)),
    "compressed metadata": lambda _: metadata_files.load(gzip.compress(bytes(LARGE), 1)),
    "head of a Lance manifest": lambda _: lance_manifest.read_head(_lance()),
    "Lance manifest": lambda _: lance_manifest.read(_lance()),
}


@pytest.mark.parametrize("name", READS)
def test_large_files_are_read_in_turn(threads, tmp_path, name):
    def read() -> None:
        try:
            READS[name](tmp_path / "large")
        except (InvalidMetadata, NotAManifest):  # after it was expanded
            return

    first, second, *_ = threads
    first.run(large_inputs.count, LARGE)
    with pytest.raises(Busy):
        second.run(read)
    first.run(large_inputs.release)
    second.run(large_inputs.release)
    second.run(read)
