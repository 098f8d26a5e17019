"""Object stores that hang or fail: what calls cost then, and that other requests continue."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import pytest

from api.front.threads import Results, Threads
from catalog.storage import lance_options, object_clients, stores
from catalog.storage.configuration import ServerIdentity
from catalog.storage.object_store import ObjectStore
from catalog.storage.outages import availability, pools
from catalog.storage.stores import StorageUnavailable
from tests.catalog.storage import configurations
from tests.catalog.storage.answering_server import Answer, AnsweringServer, Request, missing
from tests.catalog.storage.outages.test_availability import eventually

PATH = "s3://lake/root/t/1"


class HangingServer(AnsweringServer):
    """A store that gives no answer until it recovers."""

    def __init__(self) -> None:
        super().__init__()
        self.recovered = threading.Event()
        self.answer = self._hang

    def _hang(self, request: Request) -> Answer:
        self.recovered.wait(30)
        return missing(request)

    @property
    def calls(self) -> int:
        """The number of requests that are no probes."""
        return sum(not each.path.endswith(object_clients.PROBE_KEY) for each in self.requests)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingServer]:
    monkeypatch.setattr(object_clients, "READ_SECONDS", 1)
    monkeypatch.setattr(object_clients, "RETRIES", 0)
    monkeypatch.setattr(object_clients, "_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(availability, "PAUSES", (0.1,))
    monkeypatch.setattr(availability, "STALL_SECONDS", 0.3)
    with HangingServer() as server:
        yield server
        server.recovered.set()


@pytest.fixture
def answering() -> Iterator[AnsweringServer]:
    """Another store, in which every object is missing."""
    with AnsweringServer() as answering:
        yield answering


@pytest.fixture
def store(server: HangingServer) -> Iterator[ObjectStore]:
    configuration = configurations.of_endpoint(server.url)
    yield ObjectStore(configuration, "s3://lake")
    server.recovered.set()
    breaker = object_clients.availability_of(configuration)
    eventually(lambda: "answers" in repr(breaker))


def read(store: ObjectStore) -> str:
    try:
        store.read(PATH, 100)
    except OSError as error:
        return type(error).__name__
    return "content"


def test_a_hanging_store_does_not_delay_reads_of_another_one(server, monkeypatch, answering):
    monkeypatch.setattr(object_clients, "READ_SECONDS", 60)
    hanging = ObjectStore(configurations.of_endpoint(server.url), "s3://lake")
    other = ObjectStore(configurations.of_endpoint(answering.url), "s3://lake")
    paths = [f"s3://lake/root/t/{number}" for number in range(40)]
    waiting = [hanging.read_ahead(paths[start : start + 8], 100, {}) for start in range(0, 40, 8)]
    eventually(lambda: server.calls == 40)
    (result,) = other.read_ahead([PATH], 100, {}).results()
    assert isinstance(result, FileNotFoundError)
    for pending in waiting:
        pending.cancel()


def test_a_lost_answer_of_many_reads_is_requested_again(server, store):
    pending = store.read_ahead([PATH], 100, {})
    eventually(lambda: server.calls == 1)
    server.answer = missing
    (result,) = pending.results()
    assert isinstance(result, FileNotFoundError)
    assert server.calls == 2


def test_calls_of_a_hanging_store_are_refused_without_a_request(server, store):
    with pytest.raises(StorageUnavailable):
        store.read(PATH, 100)
    breaker = store._client.availability
    eventually(lambda: "answers" not in repr(breaker))
    before = server.calls
    for _ in range(50):
        with pytest.raises(StorageUnavailable, match="does not answer in time") as refused:
            store.read(PATH, 100)
    assert refused.value.retry_seconds >= 1
    assert server.calls == before
    server.recovered.set()
    eventually(lambda: read(store) == "FileNotFoundError")
    assert server.calls > before


@pytest.mark.parametrize(
    "status", [HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_IMPLEMENTED]
)
def test_answers_about_one_request_do_not_count_against_the_store(server, store, status):
    server.answer = lambda request: Answer(status)
    for _ in range(3):
        assert read(store) in {"StorageUnavailable", "AccessDenied"}
    assert not any(each.path.endswith(object_clients.PROBE_KEY) for each in server.requests)


@pytest.mark.parametrize(
    "status", [HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE]
)
def test_a_store_that_fails_every_request_is_not_called(server, store, status):
    server.answer = lambda request: Answer(status)
    assert read(store) == "StorageUnavailable"
    eventually(lambda: "answers" not in repr(store._client.availability))
    before = server.calls
    with pytest.raises(StorageUnavailable, match=f"HTTP {status}"):
        store.read(PATH, 100)
    assert server.calls == before
    server.answer = missing


def test_a_token_service_that_does_not_answer_stops_the_profile(server):
    server.answer = missing
    configuration = configurations.of_endpoint(
        server.url,
        identity=ServerIdentity.ROLE,
        role="arn:aws:iam::123456789012:role/lake",
        sts_endpoint="http://127.0.0.1:9",
    )
    store = ObjectStore(configuration, "s3://lake")
    assert read(store) == "StorageUnavailable"
    eventually(lambda: "cannot be assumed" in repr(store._client.availability))
    assert server.calls == 0


def run(loop: asyncio.AbstractEventLoop, work: Callable[[], Any]) -> Any:
    """Run the loop in a thread: Playwright, which other tests use, leaves one in the main thread."""

    async def limited() -> Any:
        return await asyncio.wait_for(work(), 20)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: loop.run_until_complete(limited())).result()


def test_local_requests_continue_while_a_store_hangs(server, store):
    """One of four threads stays free from the beginning, and the others are replaced."""
    threads = Threads("outage", 4, max_waiting=100, stores=3)
    threads.start()
    loop = asyncio.new_event_loop()
    results = Results(loop)
    hanging = [threads.submit(lambda: read(store), results) for _ in range(12)]
    local = [threads.submit(threading.get_ident, results) for _ in range(40)]
    run(loop, lambda: asyncio.gather(*local))
    assert sum(not each.done() for each in hanging) <= 3
    # With the breaker open, requests for the store take no time either.
    eventually(lambda: "answers" not in repr(store._client.availability))
    begun = server.calls
    refused = [threads.submit(lambda: read(store), results) for _ in range(40)]
    outcomes = run(loop, lambda: asyncio.gather(*refused))
    assert set(outcomes) == {"StorageUnavailable"}
    assert server.calls == begun
    run(loop, lambda: asyncio.gather(*hanging))
    loop.close()


def test_places_of_a_library_are_left_with_the_request(server, store):
    server.answer = missing
    threads = Threads("library", 2, max_waiting=10, stores=1)
    threads.start()
    loop = asyncio.new_event_loop()
    results = Results(loop)

    def use() -> int:
        store.occupy()
        pool = pools.current()
        assert pool is not None
        return len(pool.slots)

    async def twice() -> list[int]:
        return [await threads.submit(use, results) for _ in range(2)]

    assert run(loop, twice) == [1, 1]
    loop.close()


def test_requests_wait_less_than_jobs(monkeypatch):
    monkeypatch.undo()
    configuration = configurations.of_endpoint("http://127.0.0.1:9")
    monkeypatch.setattr(stores, "configuration_of", lambda path: configuration)
    names = ("timeout", "client_retry_timeout")
    jobs = lance_options.storage_options(PATH) or {}
    assert [jobs[name] for name in names] == ["300s", "20"]
    availability.serve_requests()
    requests = lance_options.storage_options(PATH) or {}
    assert [requests[name] for name in names] == ["60s", "6"]
    assert object_clients.read_seconds() == object_clients.READ_SECONDS / 2
