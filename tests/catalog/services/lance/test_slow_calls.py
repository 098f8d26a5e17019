"""Slow calls of Lance occupy at most a share of the threads that serve requests."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from lance.dataset import LanceDataset
from lance_namespace_urllib3_client import models as m

from catalog.access import SYSTEM
from catalog.errors import CatalogError, InvalidInput, ServiceUnavailable
from catalog.services.lance import data, queries, rehearsals, schemas, slow_calls, time_limits
from catalog.services.lance.materialized_views import materialized_views
from catalog.services.lance.schemas import NewColumn
from catalog.storage.outages import availability, pools
from tests.api.client import encoded_schema
from tests.catalog.storage.outages.test_availability import eventually
from tests.factories import make_lance_table, unchanged


class Requests:
    """A pool of four threads for requests, of which three may wait."""

    def __init__(self) -> None:
        self.added = 0
        self.errors: list[CatalogError] = []
        self.pool = pools.Pool(3, self._add, self._remove, max_replaced=4)
        self._threads = ThreadPoolExecutor(32)

    def _add(self) -> None:
        self.added += 1

    def _remove(self) -> None:
        self.added -= 1

    def start(self, principal: str, work) -> threading.Event:
        """Run a call of a principal; the event is set when its request has ended."""
        ended = threading.Event()

        def request() -> None:
            pools.enter(self.pool)
            try:
                time_limits.run(work, principal=principal)
            except CatalogError as error:
                self.errors.append(error)
            finally:
                ended.set()

        self._threads.submit(request)
        return ended


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()
    eventually(lambda: not (time_limits._abandoned or slow_calls._calls))


@pytest.fixture
def requests(monkeypatch) -> Requests:
    monkeypatch.setattr(slow_calls, "GRACE_SECONDS", 0.05)
    return Requests()


def waiting(principal: str) -> list[bool]:
    return [call.is_replaced for call in slow_calls._calls if call.principal == principal]


def test_a_principal_gets_half_of_the_places(requests, release):
    for number in range(4):
        requests.start("user:ada", release.wait)
        eventually(lambda count=number + 1: len(waiting("user:ada")) == count)
    assert sorted(waiting("user:ada")) == [False, False, True, True]
    assert requests.added == 2
    calls: list[int] = []
    assert requests.start("user:ada", lambda: calls.append(1)).wait(10)
    assert calls == []  # it is refused, and not begun
    assert requests.start("user:bob", lambda: calls.append(1)).wait(10)
    assert calls == [1]


def test_a_thread_stays_for_others(requests, release):
    ended = []
    for name in ("user:ada", "user:bob", "user:eve"):
        ended += [requests.start(name, release.wait) for _ in range(4)]
        time.sleep(0.2)
    assert requests.added == 4
    occupied = [call for call in slow_calls._calls if not call.is_replaced]
    assert len(occupied) == 3
    assert sum(event.is_set() for event in ended) == 5
    release.set()
    eventually(lambda: requests.added == 0)
    eventually(lambda: not slow_calls._calls)


def test_fast_calls_need_no_place(requests):
    assert requests.start("user:ada", lambda: 5).wait(10)
    assert not slow_calls._calls


def test_a_slow_call_without_a_place_is_given_up(requests, release):
    """Calls that begin at the same time are all admitted."""
    places = [slow_calls._Call(requests.pool, "user:ada", number % 2 == 0) for number in range(4)]

    def work() -> None:
        slow_calls._calls.extend(places)
        release.wait()

    assert requests.start("user:ada", work).wait(10)
    assert isinstance(requests.errors.pop(), ServiceUnavailable)
    assert list(time_limits._abandoned.values()) == ["user:ada"]
    slow_calls._calls.clear()


@pytest.fixture
def table(db, warehouse, monkeypatch):
    monkeypatch.setattr(availability, "does_serve_requests", True)
    text = "x" * 20_000
    return make_lance_table(("ns", "t"), pa.table({"id": [1, 2], "s": [text, text]}))


SLOW = f"levenshtein('{'x' * 40_000}', '{'y' * 40_000}') > id"
"""It takes more than a second when it is planned."""


@pytest.fixture
def short(settings) -> Iterator[None]:
    settings.MONODON_LANCE_SECONDS = 0.1
    yield
    eventually(lambda: not time_limits._abandoned)


def of_query(**fields):
    return m.QueryTableRequest(vector=m.QueryTableRequestVector(), k=5, **fields)


def query(**fields) -> None:
    request = of_query(**fields)
    snapshot = queries.find(actor=SYSTEM, table=("ns", "t"), query=request)
    list(queries.query(actor=SYSTEM, snapshot=snapshot, query=request).batches)


SLOW_REQUESTS = {
    "count": lambda: queries.count_rows(actor=SYSTEM, table=("ns", "t"), predicate=SLOW),
    "query": lambda: query(filter=SLOW),
    "explain": lambda: queries.explain(
        actor=SYSTEM, table=("ns", "t"), query=of_query(filter=SLOW)
    ),
    "update": lambda: data.update(
        actor=SYSTEM, table=("ns", "t"), updates=[["s", "'a'"]], predicate=SLOW
    ),
    "updated value": lambda: data.update(
        actor=SYSTEM, table=("ns", "t"), updates=[["id", f"cast({SLOW} as bigint)"]]
    ),
    "delete": lambda: data.delete(actor=SYSTEM, table=("ns", "t"), predicate=SLOW),
    "column": lambda: schemas.add_columns(
        actor=SYSTEM, table=("ns", "t"), columns=[NewColumn("c", expression=SLOW)]
    ),
}


@pytest.mark.usefixtures("table", "short")
@pytest.mark.parametrize("name", SLOW_REQUESTS)
def test_a_slow_function_is_given_up_on_a_small_table(name):
    with unchanged(), pytest.raises(ServiceUnavailable, match="was given up; it changed nothing"):
        SLOW_REQUESTS[name]()


@pytest.mark.usefixtures("table", "short")
def test_writes_without_functions_have_no_limit(monkeypatch):
    def delete(dataset, predicate, **_options):
        time.sleep(0.5)
        return {"num_deleted_rows": 1}

    monkeypatch.setattr(LanceDataset, "delete", delete)
    assert data.delete(actor=SYSTEM, table=("ns", "t"), predicate="id > 1").result == 1


COSTLY = f"levenshtein('{'x' * 10_000}', '{'y' * 10_000}')"
"""It takes some hundredths of a second to plan."""
LOCKING_REQUESTS = {
    "update": lambda: data.update(
        actor=SYSTEM, table=("ns", "t"), updates=[["s", "'a'"]], predicate=f"{COSTLY} > id"
    ),
    "updated value": lambda: data.update(actor=SYSTEM, table=("ns", "t"), updates=[["id", COSTLY]]),
    "merge": lambda: data.merge_insert(
        actor=SYSTEM,
        table=("ns", "t"),
        data=pa.table({"id": [1], "s": ["a"]}),
        clauses=data.MergeClauses(
            on=["id"], when_not_matched_by_source_delete_filt=f"{COSTLY} > id"
        ),
    ),
    "column": lambda: query(
        columns=m.QueryTableRequestColumns(column_aliases={"a": f"{COSTLY} + id"})
    ),
    "score": lambda: query(
        columns=m.QueryTableRequestColumns(column_aliases={"a": f"round(_distance) + {COSTLY}"})
    ),
    "computed column": lambda: schemas.add_columns(
        actor=SYSTEM, table=("ns", "t"), columns=[NewColumn("c", computed=f"{COSTLY} + id")]
    ),
    "view": lambda: materialized_views.create_view(
        actor=SYSTEM,
        table=("ns", "v"),
        kind="query",
        source_query=f"SELECT {COSTLY} + id AS a FROM ns.t",
        output_schema=encoded_schema(pa.schema([("a", pa.int64())])),
    ),
}


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("name", LOCKING_REQUESTS)
def test_costly_constants_are_refused_before_python_is_locked(name, monkeypatch):
    monkeypatch.setattr(rehearsals, "MAX_SECONDS", 0.02)
    with (
        unchanged(),
        pytest.raises(InvalidInput, match=r"The constants of '(levenshtein|round)"),
    ):
        LOCKING_REQUESTS[name]()


@pytest.mark.usefixtures("table")
def test_other_threads_run_while_constants_are_computed():
    """They stopped for as long as pylance planned the expression."""
    longest = 0.0
    ended = threading.Event()

    def watch() -> None:
        nonlocal longest
        while not ended.is_set():
            began = time.monotonic()
            time.sleep(0.01)
            longest = max(longest, time.monotonic() - began)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with pytest.raises(InvalidInput, match="take more than 1 second"):
            data.update(actor=SYSTEM, table=("ns", "t"), updates=[["s", "'a'"]], predicate=SLOW)
    finally:
        ended.set()
        thread.join()
    assert longest < 1
