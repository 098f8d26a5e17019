"""Threads that wait for a token service are counted as those that wait for an object store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from catalog.access import Principal
from catalog.errors import ServiceUnavailable
from catalog.identifiers import Identifier
from catalog.models import TableFormat
from catalog.services.engine.expiring_cache import ExpiringCache
from catalog.services.storage import credentials
from catalog.services.storage.client_sessions import token_services
from catalog.services.storage.credentials import Credentials, TableAccess
from catalog.services.storage.file_owners import FutureTable
from catalog.storage.configuration import ClientAccess, StoreConfiguration, StoreKind
from catalog.storage.outages import availability, pools
from catalog.storage.outages.pools import Pool

LOCATION = "s3://lake/root/orders"
TABLE = FutureTable(Identifier(("ns", "orders")), LOCATION, TableFormat.LANCE, 1)
CONFIGURATION = StoreConfiguration(
    "lake", 1, StoreKind.S3, ("s3://lake/root",), client_access=ClientAccess.STS
)
OPENS = TableAccess(CONFIGURATION, 1, LOCATION, (LOCATION,), True, "user:alice", True)


def test_requests_for_the_same_credentials_do_not_occupy_all_threads(monkeypatch):
    monkeypatch.setattr(availability, "STALL_SECONDS", 0.2)
    cache: ExpiringCache[TableAccess, Credentials] = ExpiringCache(10)
    monkeypatch.setattr(credentials, "_cache", cache)
    is_asked, answers = threading.Event(), threading.Event()
    issued = Credentials(CONFIGURATION, LOCATION)

    def issue_slowly(*_args: Any) -> Credentials:
        with token_services.waiting(CONFIGURATION):
            is_asked.set()
            assert answers.wait(60)
        return issued

    monkeypatch.setattr(credentials, "_issue", issue_slowly)

    def issue() -> Credentials:
        return credentials.issue(Principal("user:alice"), TABLE, OPENS)

    pool = Pool(limit=1)
    with ThreadPoolExecutor(3, initializer=pools.enter, initargs=(pool,)) as threads:
        try:
            first = threads.submit(issue)
            assert is_asked.wait(60)
            others = [threads.submit(issue) for _ in range(2)]
            for other in others:
                refusal = other.exception(timeout=30)
                assert isinstance(refusal, ServiceUnavailable)
                assert "too many requests wait for object stores" in refusal.message
            assert not first.done()
        finally:
            answers.set()
        assert first.result(timeout=30) is issued
    assert not pool.slots


def test_the_refusal_of_shared_credentials_tells_everybody_when_to_try_again():
    cache: ExpiringCache[str, Credentials] = ExpiringCache(10)
    is_making, fails = threading.Event(), threading.Event()

    def make() -> Credentials:
        is_making.set()
        assert fails.wait(60)
        raise ServiceUnavailable("The token service does not answer", retry_seconds=7)

    with ThreadPoolExecutor(2) as threads:
        try:
            first = threads.submit(cache.get, "key", make)
            assert is_making.wait(60)
            is_waiting = threading.Event()
            second = threads.submit(cache.get, "key", pytest.fail, waiting=_noting(is_waiting))
            assert is_waiting.wait(60)
        finally:
            fails.set()
        for future in (first, second):
            refusal = future.exception(timeout=30)
            assert isinstance(refusal, ServiceUnavailable)
            assert refusal.retry_seconds == 7


def _noting(event: threading.Event) -> Any:
    def waiting() -> Any:
        event.set()
        return nullcontext()

    return waiting
