"""Requests with the same Idempotency-Key get the same answer, and make no second change."""

import gzip
import json
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, transaction
from django.db.models import F
from django.http import HttpResponse

from api.iceberg import urls
from api.iceberg.views import namespaces as views
from catalog.access import SYSTEM, Principal
from catalog.errors import CommitConflict, OutcomeUnknown, ServiceUnavailable
from catalog.models import (
    AuditEvent,
    IdempotencyRecord,
    Namespace,
    StagedFile,
    Table,
    TableVersion,
)
from catalog.services.access import api_keys, authentication
from catalog.services.engine import idempotency
from catalog.services.iceberg import commits as iceberg_commits
from catalog.storage import locations
from tasks import maintenance
from tests.api.iceberg.client import Iceberg, own
from tests.cases import shared_cases
from tests.factories import (
    ICEBERG_SCHEMA,
    files,
    make_iceberg_table,
    make_namespace,
    make_root,
    unchanged,
)
from tests.rivals import commit_without_turns

HAS_NONE = {
    *("ListNamespaces", "LoadNamespaceMetadata", "NamespaceExists", "GetConfig", "GetToken"),
    *("CreateView", "ReportMetrics", "ListTables", "LoadTable", "TableExists", "LoadCredentials"),
    *("ListViews", "LoadView", "ViewExists", "ListFunctions", "LoadFunction"),
    *("FetchPlanningResult", "SignRequest"),
}


def new_key() -> str:
    """A UUID of version 7 (RFC 9562)."""
    return str(uuid.UUID(int=(uuid.uuid4().int & ~(0xF << 76)) | (7 << 76)))


def once(key: str) -> dict[str, dict[str, str]]:
    return {"headers": {"idempotency-key": key}}


def same(first: HttpResponse, second: HttpResponse) -> bool:
    names = {"content-type", "etag"}
    return (
        first.status_code == second.status_code
        and first.content == second.content
        and [first.get(name) for name in names] == [second.get(name) for name in names]
    )


def test_operations_that_support_idempotency_keys():
    heeding = {
        operation.__name__: operation.is_idempotent
        for operations in urls.ROUTES.values()
        for operation in operations.values()
    }
    assert {name for name, heeds in heeding.items() if not heeds} == HAS_NONE & set(heeding)


def test_a_repeated_change_is_made_once(iceberg: Iceberg):
    key, body = new_key(), {"namespace": ["a"], "properties": {"k": "v"}}
    first = iceberg.call("POST", "namespaces", body, **once(key))
    assert (first.status_code, own(first.json())) == (200, body)
    record = IdempotencyRecord.objects.get()
    assert (str(record.key), record.actor, record.status) == (key, "tester", 200)
    with unchanged():
        again = iceberg.call("POST", "namespaces", body, **once(key))
        upper = iceberg.call("POST", "namespaces", body, **once(key.upper()))
    assert same(first, again)
    assert same(first, upper)


def test_a_204_is_repeated(iceberg: Iceberg):
    make_namespace("a")
    key = new_key()
    first = iceberg.call("DELETE", "namespaces/a", **once(key))
    assert (first.status_code, first.content) == (204, b"")
    with unchanged():
        again = iceberg.call("DELETE", "namespaces/a", **once(key))
    assert same(first, again)
    assert "content-type" not in again


def test_the_answer_of_a_no_op_is_repeated(iceberg: Iceberg):
    make_namespace("a", properties={"k": "v"})
    key, body = new_key(), {"removals": ["x"]}
    first = iceberg.call("POST", "namespaces/a/properties", body, **once(key))
    iceberg.post("namespaces/a/properties", {"updates": {"x": "y"}})
    again = iceberg.call("POST", "namespaces/a/properties", body, **once(key))
    assert same(first, again)
    assert Namespace.objects.get(name="a").properties == {"k": "v", "x": "y"}


def test_a_refusal_is_repeated(iceberg: Iceberg):
    for request, body, status in (
        ("POST namespaces", {"namespace": ["a", "b"]}, 404),
        ("POST namespaces", {"namespace": []}, 400),
        ("POST namespaces", {"namespace": ["x"]}, 409),
        ("POST namespaces/x/properties", {"removals": ["k"], "updates": {"k": "v"}}, 422),
        ("DELETE namespaces/x", None, 409),
    ):
        make_namespace("x", "y")
        key = new_key()
        method, _, path = request.partition(" ")
        first = iceberg.call(method, path, body, **once(key))
        assert first.status_code == status
        make_namespace("a")  # now it would succeed
        Namespace.objects.live().filter(name__in=["x", "y"]).update(dropped_at="2020-01-01T00:00Z")
        with unchanged():
            again = iceberg.call(method, path, body, **once(key))
        assert same(first, again)


def test_equivalent_bodies_count_as_the_same_request(iceberg: Iceberg):
    key = new_key()
    body = {"namespace": ["a"], "properties": {"x": "1", "y": "2"}}
    first = iceberg.call("POST", "namespaces", body, **once(key))
    raw = b'{"properties" : {"y":"2", "x":"\\u0031"}, "namespace":["a"]}'
    assert same(first, iceberg.call("POST", "namespaces", raw=raw, **once(key)))


def test_another_request_with_the_key_is_refused(iceberg: Iceberg):
    make_namespace("b")
    key, body = new_key(), {"namespace": ["a"]}
    iceberg.call("POST", "namespaces", body, **once(key))
    for request, other in (
        ("POST namespaces", {"namespace": ["a"], "properties": {"k": "v"}}),
        ("POST namespaces?x=y", body),
        ("POST /v1/b/namespaces", body),
        ("POST namespaces/b/properties", body),
        ("DELETE namespaces/b", None),
    ):
        error = f"Idempotency-Key {key} was used for another request"
        iceberg.refused(422, "UnprocessableEntityException", error, request, other, **once(key))


def test_keys_are_bound_to_their_principal(iceberg: Iceberg):
    _, other = api_keys.create_api_key(actor=SYSTEM, name="other")
    key, body = new_key(), {"namespace": ["a"]}
    assert iceberg.call("POST", "namespaces", body, **once(key)).status_code == 200
    assert Iceberg(other).call("POST", "namespaces", body, **once(key)).status_code == 409


@shared_cases(
    "key",
    [
        "",
        "x",
        "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",  # version 4
        "017f22e2-79b0-1cc3-98c4-dc0c0c07398f",  # version 1
        "017f22e2-79b0-7cc3-18c4-dc0c0c07398f",  # another variant
        "017f22e279b07cc398c4dc0c0c07398f",
        "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f\n",
    ],
)
def test_invalid_keys_are_refused(iceberg: Iceberg, key):
    error = "is not a UUID of version 7"
    body = {"namespace": ["a"]}
    iceberg.refused(400, "BadRequestException", error, "POST namespaces", body, **once(key))


def test_reads_ignore_the_key(iceberg: Iceberg):
    with unchanged():
        iceberg.get("namespaces", **once("x"))
        iceberg.get("config", **once(new_key()))


def test_transient_errors_are_not_recorded(iceberg: Iceberg, reader: Iceberg, monkeypatch):
    body = {"namespace": ["a"]}
    key = new_key()
    for client, status in ((Iceberg(), 401), (reader, 403)):
        with unchanged():
            response = client.call("POST", "namespaces", body, **once(key))
        assert response.status_code == status
    for error, status in (
        (ServiceUnavailable("busy"), 503),
        (CommitConflict("busy"), 409),
        (OperationalError("away"), 503),
        (ZeroDivisionError(), 500),
    ):

        def busy(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch, unchanged():
            patch.setattr(views, "commit", busy)
            response = iceberg.call("POST", "namespaces", body, **once(key))
        assert response.status_code == status
    assert iceberg.call("POST", "namespaces", body, **once(key)).status_code == 200


# --- lost answers ---------------------------------------------------------------------------------


@pytest.fixture
def lost(monkeypatch):
    """Lose the answers of the following requests, as when a server is killed after the commit."""

    def lose_answers(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(idempotency, "keep_answer", lose_answers)
    return monkeypatch


@pytest.mark.parametrize(
    ("request_", "body", "answer"),
    [
        (
            "POST namespaces",
            {"namespace": ["x"], "properties": {"k": "v"}},
            {"namespace": ["x"], "properties": {"k": "v"}},
        ),
        (
            "POST namespaces/a/properties",
            {"removals": ["k"], "updates": {"n": "v"}},
            {"updated": ["n"], "removed": ["k"], "missing": []},
        ),
        ("DELETE namespaces/a", None, None),
    ],
)
def test_a_lost_answer_is_rebuilt(iceberg: Iceberg, lost, request_, body, answer):
    make_namespace("a", properties={"k": "v"})
    status = 200 if answer else 204
    method, _, path = request_.partition(" ")
    key = new_key()
    assert iceberg.call(method, path, body, **once(key)).status_code == status
    assert IdempotencyRecord.objects.get().status is None
    events = AuditEvent.objects.count()
    lost.undo()
    for _ in range(2):
        again = iceberg.call(method, path, body, **once(key))
        assert again.status_code == status
        repeated = json.loads(again.content) if again.content else None
        assert (own(repeated) if path == "namespaces" else repeated) == answer
    assert IdempotencyRecord.objects.get().status == status
    assert AuditEvent.objects.count() == events


def test_a_large_answer_is_rebuilt(iceberg: Iceberg, monkeypatch):
    monkeypatch.setattr(idempotency, "MAX_KEPT_BYTES", 20)
    key, body = new_key(), {"namespace": ["a"]}
    first = iceberg.call("POST", "namespaces", body, **once(key))
    assert IdempotencyRecord.objects.get().status is None
    iceberg.post("namespaces/a/properties", {"updates": {"k": "v"}})
    again = iceberg.call("POST", "namespaces", body, **once(key))
    assert (first.status_code, again.status_code) == (200, 200)
    assert own(again.json()) == {"namespace": ["a"], "properties": {"k": "v"}}


def zipped(key: str) -> dict[str, dict[str, str]]:
    """Accept gzip, as all real clients do: a compressed answer is not recorded."""
    return {"headers": {"idempotency-key": key, "accept-encoding": "gzip"}}


def test_a_table_is_unregistered_once(iceberg: Iceberg, warehouse):
    make_iceberg_table("a", "t")
    key = new_key()
    first = iceberg.call("POST", "namespaces/a/tables/t/unregister", **zipped(key))
    with unchanged():
        again = iceberg.call("POST", "namespaces/a/tables/t/unregister", **zipped(key))
    assert first.status_code == 200
    assert same(first, again)


def test_a_table_of_a_former_namespace_is_not_shown_again(iceberg: Iceberg, warehouse):
    """The present namespace of that name may be somebody else's."""
    make_iceberg_table("a", "t")
    key = new_key()
    first = iceberg.call("POST", "namespaces/a/tables/t/unregister", **zipped(key))
    assert first.status_code == 200
    assert iceberg.call("DELETE", "namespaces/a").status_code == 204
    make_namespace("a")
    again = iceberg.call("POST", "namespaces/a/tables/t/unregister", **zipped(key))
    assert again.status_code == 404


def test_a_table_is_staged_again(iceberg: Iceberg, warehouse):
    make_namespace("a")
    key, body = new_key(), {"name": "t", "schema": ICEBERG_SCHEMA, "stage-create": True}
    for _ in range(2):
        answer = iceberg.call("POST", "namespaces/a/tables", body, **zipped(key))
        assert answer.status_code == 200
        assert json.loads(gzip.decompress(answer.content))["metadata-location"] is None


COMMIT = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}


@pytest.mark.parametrize("error", [OperationalError("away"), ZeroDivisionError("bug")])
def test_a_repeated_commit_is_not_reported_as_failed(
    iceberg: Iceberg, warehouse, monkeypatch, caplog, error
):
    """After a 409, a client would remove the files of its commit, which succeeded."""
    caplog.set_level(logging.CRITICAL)
    make_iceberg_table("a", "t")
    key, path = new_key(), "namespaces/a/tables/t"
    assert iceberg.call("POST", path, COMMIT, **once(key)).status_code == 200

    def unreachable(*_: object, **__: object) -> None:
        raise error

    for module, function in ((authentication, "authenticate"), (idempotency, "find")):
        with monkeypatch.context() as patch, unchanged():
            patch.setattr(module, function, unreachable)
            again = iceberg.call("POST", path, COMMIT, **once(key))
        form = again.json()["error"]
        assert (again.status_code, form["type"]) == (500, "CommitStateUnknownException")
    assert iceberg.call("POST", path, COMMIT, **once(key)).status_code == 200


def test_a_commit_to_a_dropped_table_is_not_reported_as_failed(iceberg: Iceberg, warehouse):
    make_iceberg_table("a", "t")
    key, path = new_key(), "namespaces/a/tables/t"
    assert iceberg.call("POST", path, COMMIT, **zipped(key)).status_code == 200
    names = {name: {"namespace": ["a"], "name": name} for name in ("t", "u")}
    iceberg.post("tables/rename", {"source": names["t"], "destination": names["u"]})
    with unchanged():
        again = iceberg.call("POST", path, COMMIT, **zipped(key))
    form = again.json()["error"]
    assert (again.status_code, form["type"]) == (500, "CommitStateUnknownException")


# Definite refusals of a commit that may succeed at another time.
TRANSIENT = [
    (CommitConflict("busy"), 409),
    (ServiceUnavailable("busy"), 409),
    (OperationalError("lock timeout"), 409),
    (ZeroDivisionError("bug"), 409),
    (DataError("no such value"), 400),
]


@pytest.fixture
def quiet(caplog) -> None:
    caplog.set_level(logging.CRITICAL)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(("error", "status"), TRANSIENT)
@pytest.mark.usefixtures("warehouse", "quiet")
def test_a_commit_reported_as_failed_stays_failed(iceberg: Iceberg, monkeypatch, error, status):
    """The client has removed the files of this attempt; the next attempt has another key."""
    make_iceberg_table("a", "t")
    key, path = new_key(), "namespaces/a/tables/t"
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_commits, "commit", raising(error))
        first = iceberg.call("POST", path, COMMIT, **once(key))
    assert first.status_code == status
    assert IdempotencyRecord.objects.get().status == status
    with unchanged():
        again = iceberg.call("POST", path, COMMIT, **once(key))
    assert same(first, again)
    assert iceberg.call("POST", path, COMMIT, **once(new_key())).status_code == 200


def test_a_transaction_reported_as_failed_stays_failed(iceberg: Iceberg, warehouse, monkeypatch):
    make_iceberg_table("a", "t")
    key = new_key()
    body = {"table-changes": [{"identifier": {"namespace": ["a"], "name": "t"}, **COMMIT}]}
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_commits, "commit", raising(CommitConflict("busy")))
        first = iceberg.call("POST", "transactions/commit", body, **once(key))
    assert first.status_code == 409
    with unchanged():
        assert same(first, iceberg.call("POST", "transactions/commit", body, **once(key)))
    assert iceberg.call("POST", "transactions/commit", body, **once(new_key())).status_code == 204


@pytest.mark.parametrize(("error", "status"), TRANSIENT)
@pytest.mark.usefixtures("warehouse", "quiet")
def test_a_commit_is_reported_as_failed_only_if_recorded(
    iceberg: Iceberg, monkeypatch, error, status
):
    make_iceberg_table("a", "t")
    key, path = new_key(), "namespaces/a/tables/t"
    with monkeypatch.context() as patch, unchanged():
        patch.setattr(iceberg_commits, "commit", raising(error))
        patch.setattr(idempotency, "keep_refusal", raising(OperationalError("away")))
        response = iceberg.call("POST", path, COMMIT, **once(key))
    form = response.json()["error"]
    assert (response.status_code, form["type"]) == (500, "CommitStateUnknownException")
    assert iceberg.call("POST", path, COMMIT, **once(key)).status_code == 200


def test_inconclusive_commit_errors_are_not_recorded(
    iceberg: Iceberg, reader: Iceberg, warehouse, monkeypatch
):
    make_iceberg_table("a", "t")
    key, path = new_key(), "namespaces/a/tables/t"
    for client, status in ((Iceberg(), 401), (reader, 403)):
        with unchanged():
            assert client.call("POST", path, COMMIT, **once(key)).status_code == status
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_commits, "commit", raising(OutcomeUnknown("lost")))
        assert iceberg.call("POST", path, COMMIT, **once(key)).status_code == 500
    assert not IdempotencyRecord.objects.exists()
    assert iceberg.call("POST", path, COMMIT, **once(key)).status_code == 200


def test_the_answer_of_a_commit_is_repeated(iceberg: Iceberg, warehouse):
    make_iceberg_table("a", "t")
    path = "namespaces/a/tables/t"
    uuid_ = iceberg.get(path)["metadata"]["table-uuid"]
    for kind in (once, zipped):
        key = new_key()
        body = {
            "requirements": [{"type": "assert-table-uuid", "uuid": uuid_}],
            "updates": [{"action": "set-properties", "updates": {"k": key}}],
        }
        first = iceberg.call("POST", path, body, **kind(key))
        assert first.status_code == 200
        for _ in range(2):
            again = iceberg.call("POST", path, body, **kind(key))
            assert same(first, again)
    assert AuditEvent.objects.filter(action="table.commit").count() == 2


def test_an_answer_that_cannot_be_recorded_is_still_sent(iceberg: Iceberg, monkeypatch):
    def unreachable(self: object, *_: object, **__: object) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(idempotency, "_of", unreachable)
    monkeypatch.setattr(idempotency, "find", lambda actor: None)
    response = iceberg.call("POST", "namespaces", {"namespace": ["a"]}, **once(new_key()))
    assert response.status_code == 200


# --- concurrent requests --------------------------------------------------------------------------


@pytest.fixture
def secret(transactional_db, warehouse, monkeypatch) -> str:
    """A client's token. There are a namespace ``a`` and a table ``b.t``."""
    commit_without_turns(monkeypatch)
    make_root()
    make_namespace("a", properties={"k": "v"})
    make_iceberg_table("b", "t")
    _, key = api_keys.create_api_key(actor=SYSTEM, name="rivals")
    return key


def agrees(warehouse: Path) -> None:
    """Every metadata file was current once, and no other file is recorded."""
    assert not StagedFile.objects.exists()
    paths = TableVersion.objects.values_list("manifest_path", flat=True)
    stored_paths = {locations.iceberg_path(path) for path in paths}
    assert {str(warehouse / name) for name in files(warehouse)} == stored_paths


def named(*identifier: str) -> dict[str, Any]:
    return {"namespace": list(identifier[:-1]), "name": identifier[-1]}


@pytest.mark.parametrize(
    ("request_", "body", "status"),
    [
        ("POST namespaces", {"namespace": ["x"]}, 200),
        ("POST namespaces", {"namespace": ["a"]}, 409),
        ("POST namespaces/a/properties", {"updates": {"n": "v"}}, 200),
        ("POST namespaces/a/properties", {"updates": {"k": "v"}}, 200),
        ("DELETE namespaces/a", None, 204),
        ("POST namespaces/b/tables", {"name": "new", "schema": ICEBERG_SCHEMA}, 200),
        ("POST namespaces/b/tables/t", COMMIT, 200),
        (
            "POST transactions/commit",
            {"table-changes": [{"identifier": named("b", "t"), **COMMIT}]},
            204,
        ),
        (
            "POST tables/rename",
            {"source": named("b", "t"), "destination": named("a", "t")},
            204,
        ),
    ],
)
def test_concurrent_requests_with_one_key(secret, warehouse, request_, body, status):
    method, _, path = request_.partition(" ")
    key, barrier = new_key(), Barrier(6)
    events = AuditEvent.objects.count()

    def run(_: int) -> HttpResponse:
        try:
            client = Iceberg(secret)
            client.get("namespaces")  # connect first
            barrier.wait(timeout=120)
            return client.call(method, path, body, **once(key))
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(run, range(6)))
    assert [answer.status_code for answer in answers] == [status] * 6, answers
    assert len({answer.content for answer in answers}) == 1
    assert AuditEvent.objects.count() - events == (0 if body in _CHANGE_NOTHING else 1)
    assert IdempotencyRecord.objects.get().status == status
    agrees(warehouse)


_CHANGE_NOTHING = [{"namespace": ["a"]}, {"updates": {"k": "v"}}]


class Held:
    """Blocks the first of two calls of a commit until it is released."""

    def __init__(self, real: Callable[..., Any], *, is_inside: bool) -> None:
        self.real, self.is_inside = real, is_inside
        self.is_there, self.go_on = Event(), Event()

    def __call__(self, operations: Any, *, actor: Principal) -> Any:
        """Commit, blocked before it begins, or after all writes and before the COMMIT."""
        if not self.is_inside:
            self._wait()
        with transaction.atomic():
            result = self.real(operations, actor=actor)
            if self.is_inside:
                self._wait()
        return result

    def _wait(self) -> None:
        self.is_there.set()
        self.go_on.wait()


def wait_for_a_lock(waiting: "Future[HttpResponse]") -> None:
    """Return as soon as a session of this database waits for a lock of another."""
    text = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
            AND backend_type = 'client backend'
    """
    waits = False
    while not waits:
        assert not waiting.done(), waiting.result()
        with connection.cursor() as cursor:
            cursor.execute(text)
            waits = bool(cursor.fetchone()[0])


def twice(
    held: Held, ask: Callable[[], HttpResponse], until: Callable[["Future[HttpResponse]"], object]
) -> list[HttpResponse]:
    """Send a second request while the first is blocked, ``until`` a condition of the second is met."""

    def run() -> HttpResponse:
        try:
            return ask()
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(run)
            first.add_done_callback(lambda _: held.is_there.set())
            held.is_there.wait()
            assert not first.done(), first.result()
            second = pool.submit(run)
            until(second)
        finally:
            held.go_on.set()
        return [first.result(), second.result()]


def in_turn(*functions: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls another function each time."""
    remaining = iter(functions)

    def call(*args: Any, **options: Any) -> Any:
        return next(remaining)(*args, **options)

    return call


def test_the_second_waits_for_the_first(secret, monkeypatch):
    """Two changes that only conflict at the unique index of the key."""
    held = Held(views.commit, is_inside=True)
    monkeypatch.setattr(views, "commit", in_turn(held, views.commit))
    key, body = new_key(), {"updates": {"n": "v"}}

    def ask() -> HttpResponse:
        return Iceberg(secret).call("POST", "namespaces/a/properties", body, **once(key))

    first, second = twice(held, ask, wait_for_a_lock)
    assert same(first, second)
    assert first.json() == {"updated": ["n"], "removed": [], "missing": []}
    assert AuditEvent.objects.filter(action="namespace.update").count() == 1


COMMITS = [
    ("namespaces/b/tables/t", COMMIT, 200),
    (
        "transactions/commit",
        {"table-changes": [{"identifier": named("b", "t"), **COMMIT}]},
        204,
    ),
]


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("passing", TRANSIENT)
@pytest.mark.usefixtures("quiet")
def test_a_commit_cannot_follow_its_recorded_failure(
    secret, warehouse, monkeypatch, commit, passing
):
    """The second request fails before the first commits, and its client removes the files."""
    path, body, _ = commit
    error, status = passing
    held = Held(iceberg_commits.commit, is_inside=False)
    monkeypatch.setattr(iceberg_commits, "commit", in_turn(held, raising(error)))
    key = new_key()

    def ask() -> HttpResponse:
        return Iceberg(secret).call("POST", path, body, **once(key))

    before, lying = Table.objects.values().get(), files(warehouse)
    first, second = twice(held, ask, lambda second: second.result())
    assert second.status_code == status
    assert same(first, second)
    assert Table.objects.values().get() == before
    assert files(warehouse) == lying
    agrees(warehouse)
    assert IdempotencyRecord.objects.get().status == status
    assert not AuditEvent.objects.filter(action="table.commit").exists()
    with unchanged():
        assert same(first, ask())


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("error", [error for error, _ in TRANSIENT])
@pytest.mark.usefixtures("quiet")
def test_a_failure_cannot_be_recorded_after_the_commit(
    secret, warehouse, monkeypatch, commit, error
):
    """The first request commits before the failure of the second is recorded: the second gets the
    success."""
    path, body, success = commit
    held = Held(iceberg_commits.commit, is_inside=True)
    monkeypatch.setattr(iceberg_commits, "commit", in_turn(held, raising(error)))
    key = new_key()

    def ask() -> HttpResponse:
        return Iceberg(secret).call("POST", path, body, **once(key))

    first, second = twice(held, ask, wait_for_a_lock)
    assert first.status_code == success
    assert same(first, second)
    agrees(warehouse)
    assert AuditEvent.objects.filter(action="table.commit").count() == 1
    with unchanged():
        assert same(first, ask())


# --- expiry ---------------------------------------------------------------------------------------


def test_old_records_are_deleted(iceberg: Iceberg, settings):
    for name in ("a", "b"):
        iceberg.call("POST", "namespaces", {"namespace": [name]}, **once(new_key()))
    first, second = IdempotencyRecord.objects.order_by("pk")
    old = IdempotencyRecord.objects.filter(pk=first.pk)
    old.update(created_at=F("created_at") - timedelta(hours=24, minutes=59))
    assert maintenance.delete_expired_idempotency_records() == 0
    old.update(created_at=F("created_at") - timedelta(minutes=2))
    assert maintenance.delete_expired_idempotency_records() == 1
    assert IdempotencyRecord.objects.get() == second
    task = settings.CELERY_BEAT_SCHEDULE["delete-expired-idempotency-records"]["task"]
    assert task == maintenance.delete_expired_idempotency_records.name
