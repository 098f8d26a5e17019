"""The same Idempotency-Key again: the same answer, and no second change."""

import gzip
import json
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event

import pytest
from django.db import OperationalError, connection
from django.db.models import F
from django.http import HttpResponse

from api.iceberg import urls
from api.iceberg.views import namespaces as views
from catalog.errors import CommitConflict, ServiceUnavailable
from catalog.models import AuditEvent, IdempotencyRecord, Namespace
from catalog.services import access, api_keys, idempotency
from catalog.services.access import SYSTEM
from tasks import maintenance
from tests.api.iceberg.client import Iceberg
from tests.factories import (
    ICEBERG_SCHEMA,
    make_iceberg_table,
    make_namespace,
    make_root,
    unchanged,
)

HAS_NONE = {
    *("ListNamespaces", "LoadNamespaceMetadata", "NamespaceExists", "GetConfig", "GetToken"),
    *("CreateView", "ReportMetrics", "ListTables", "LoadTable", "TableExists", "LoadCredentials"),
    *("ListViews", "LoadView", "ViewExists", "ListFunctions", "LoadFunction"),
    "FetchPlanningResult",
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


def test_which_operations_heed_it():
    heeding = {
        operation.__name__: operation.is_idempotent
        for operations in urls.ROUTES.values()
        for operation in operations.values()
    }
    assert {name for name, heeds in heeding.items() if not heeds} == HAS_NONE & set(heeding)


def test_a_change_is_made_once(iceberg: Iceberg):
    key, body = new_key(), {"namespace": ["a"], "properties": {"k": "v"}}
    first = iceberg.call("POST", "namespaces", body, **once(key))
    assert (first.status_code, first.json()) == (200, body)
    record = IdempotencyRecord.objects.get()
    assert (str(record.key), record.actor, record.status) == (key, "tester", 200)
    with unchanged():
        again = iceberg.call("POST", "namespaces", body, **once(key))
        upper = iceberg.call("POST", "namespaces", body, **once(key.upper()))
    assert same(first, again)
    assert same(first, upper)


def test_a_204_is_given_again(iceberg: Iceberg):
    make_namespace("a")
    key = new_key()
    first = iceberg.call("DELETE", "namespaces/a", **once(key))
    assert (first.status_code, first.content) == (204, b"")
    with unchanged():
        again = iceberg.call("DELETE", "namespaces/a", **once(key))
    assert same(first, again)
    assert "content-type" not in again


def test_what_changed_nothing_is_given_again(iceberg: Iceberg):
    make_namespace("a", properties={"k": "v"})
    key, body = new_key(), {"removals": ["x"]}
    first = iceberg.call("POST", "namespaces/a/properties", body, **once(key))
    iceberg.post("namespaces/a/properties", {"updates": {"x": "y"}})
    again = iceberg.call("POST", "namespaces/a/properties", body, **once(key))
    assert same(first, again)
    assert Namespace.objects.get(name="a").properties == {"k": "v", "x": "y"}


def test_a_refusal_is_given_again(iceberg: Iceberg):
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
        make_namespace("a")  # now it would go well
        Namespace.objects.live().filter(name__in=["x", "y"]).update(dropped_at="2020-01-01T00:00Z")
        with unchanged():
            again = iceberg.call(method, path, body, **once(key))
        assert same(first, again)


def test_spelling_does_not_count(iceberg: Iceberg):
    key = new_key()
    body = {"namespace": ["a"], "properties": {"x": "1", "y": "2"}}
    first = iceberg.call("POST", "namespaces", body, **once(key))
    raw = b'{"properties" : {"y":"2", "x":"\\u0031"}, "namespace":["a"]}'
    assert same(first, iceberg.call("POST", "namespaces", raw=raw, **once(key)))


def test_another_request_with_the_key(iceberg: Iceberg):
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


def test_the_keys_of_two_actors_are_two(iceberg: Iceberg):
    _, other = api_keys.create_api_key(actor=SYSTEM, name="other")
    key, body = new_key(), {"namespace": ["a"]}
    assert iceberg.call("POST", "namespaces", body, **once(key)).status_code == 200
    assert Iceberg(other).call("POST", "namespaces", body, **once(key)).status_code == 409


@pytest.mark.parametrize(
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
def test_keys_that_are_none(iceberg: Iceberg, key):
    error = "is not a UUID of version 7"
    body = {"namespace": ["a"]}
    iceberg.refused(400, "BadRequestException", error, "POST namespaces", body, **once(key))


def test_a_read_takes_no_notice(iceberg: Iceberg):
    with unchanged():
        iceberg.get("namespaces", **once("x"))
        iceberg.get("config", **once(new_key()))


def test_what_may_pass_is_not_noted(iceberg: Iceberg, reader: Iceberg, monkeypatch):
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


# --- an answer that was lost ----------------------------------------------------------------------


@pytest.fixture
def lost(monkeypatch):
    """Let the answers of what follows be lost, as when a server is killed after the commit."""

    def keep_nothing(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(idempotency, "keep_answer", keep_nothing)
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
def test_a_lost_answer_is_made_anew(iceberg: Iceberg, lost, request_, body, answer):
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
        assert (json.loads(again.content) if again.content else None) == answer
    assert IdempotencyRecord.objects.get().status == status
    assert AuditEvent.objects.count() == events


def test_a_large_answer_is_made_anew(iceberg: Iceberg, monkeypatch):
    monkeypatch.setattr(idempotency, "MAX_KEPT_BYTES", 20)
    key, body = new_key(), {"namespace": ["a"]}
    first = iceberg.call("POST", "namespaces", body, **once(key))
    assert IdempotencyRecord.objects.get().status is None
    iceberg.post("namespaces/a/properties", {"updates": {"k": "v"}})
    again = iceberg.call("POST", "namespaces", body, **once(key))
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == {"namespace": ["a"], "properties": {"k": "v"}}


def zipped(key: str) -> dict[str, dict[str, str]]:
    """As all real clients ask: such an answer is not kept."""
    return {"headers": {"idempotency-key": key, "accept-encoding": "gzip"}}


def test_a_table_is_unregistered_once(iceberg: Iceberg, warehouse):
    make_iceberg_table("a", "t")
    key = new_key()
    first = iceberg.call("POST", "namespaces/a/tables/t/unregister", **zipped(key))
    with unchanged():
        again = iceberg.call("POST", "namespaces/a/tables/t/unregister", **zipped(key))
    assert first.status_code == 200
    assert same(first, again)


def test_a_table_is_staged_again(iceberg: Iceberg, warehouse):
    make_namespace("a")
    key, body = new_key(), {"name": "t", "schema": ICEBERG_SCHEMA, "stage-create": True}
    for _ in range(2):
        answer = iceberg.call("POST", "namespaces/a/tables", body, **zipped(key))
        assert answer.status_code == 200
        assert json.loads(gzip.decompress(answer.content))["metadata-location"] is None


COMMIT = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}


@pytest.mark.parametrize("error", [OperationalError("away"), ZeroDivisionError("bug")])
def test_a_commit_that_comes_again_is_not_called_failed(
    iceberg: Iceberg, warehouse, monkeypatch, caplog, error
):
    """After a 409 a client removes the files of its commit, and this one stands."""
    caplog.set_level(logging.CRITICAL)
    make_iceberg_table("a", "t")
    key, path = new_key(), "namespaces/a/tables/t"
    assert iceberg.call("POST", path, COMMIT, **once(key)).status_code == 200

    def away(*_: object, **__: object) -> None:
        raise error

    for module, function in ((access, "authenticate"), (idempotency, "find")):
        with monkeypatch.context() as patch, unchanged():
            patch.setattr(module, function, away)
            again = iceberg.call("POST", path, COMMIT, **once(key))
        form = again.json()["error"]
        assert (again.status_code, form["type"]) == (500, "CommitStateUnknownException")
    assert iceberg.call("POST", path, COMMIT, **once(key)).status_code == 200


def test_an_answer_that_cannot_be_kept_is_an_answer(iceberg: Iceberg, monkeypatch):
    def away(self: object, *_: object, **__: object) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(idempotency, "_of", away)
    monkeypatch.setattr(idempotency, "find", lambda actor: None)
    response = iceberg.call("POST", "namespaces", {"namespace": ["a"]}, **once(new_key()))
    assert response.status_code == 200


# --- at once -----------------------------------------------------------------------------------------


@pytest.fixture
def secret(transactional_db) -> str:
    make_root()
    make_namespace("a", properties={"k": "v"})
    _, key = api_keys.create_api_key(actor=SYSTEM, name="rivals")
    return key


@pytest.mark.parametrize(
    ("request_", "body", "status"),
    [
        ("POST namespaces", {"namespace": ["x"]}, 200),
        ("POST namespaces", {"namespace": ["a"]}, 409),
        ("POST namespaces/a/properties", {"updates": {"n": "v"}}, 200),
        ("POST namespaces/a/properties", {"updates": {"k": "v"}}, 200),
        ("DELETE namespaces/a", None, 204),
    ],
)
def test_a_key_that_comes_often_at_once(secret, request_, body, status):
    method, _, path = request_.partition(" ")
    key, barrier = new_key(), Barrier(6)
    events = AuditEvent.objects.count()

    def run(_: int) -> HttpResponse:
        try:
            client = Iceberg(secret)
            client.get("namespaces")  # connect first
            barrier.wait(timeout=30)
            return client.call(method, path, body, **once(key))
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(run, range(6)))
    assert [answer.status_code for answer in answers] == [status] * 6, answers
    assert len({answer.content for answer in answers}) == 1
    assert AuditEvent.objects.count() - events == (0 if body in _CHANGE_NOTHING else 1)
    assert IdempotencyRecord.objects.get().status == status


_CHANGE_NOTHING = [{"namespace": ["a"]}, {"updates": {"k": "v"}}]


def test_the_second_waits_for_the_first(secret, monkeypatch):
    """Two changes that meet nowhere but at the unique index of the key."""
    key = new_key()
    inside, go_on = Event(), Event()
    real = views.commit

    def slow(operations, *, actor):
        from django.db import transaction

        with transaction.atomic():
            done = real(operations, actor=actor)
            inside.set()
            assert go_on.wait(timeout=30)
        return done

    def run(commit) -> HttpResponse:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(views, "commit", commit)
                if commit is real:
                    inside.wait(timeout=30)
                body = {"updates": {"n": "v"}}
                return Iceberg(secret).call("POST", "namespaces/a/properties", body, **once(key))
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, slow)
        assert inside.wait(timeout=30)
        second = pool.submit(run, real)
        assert not second.done()
        go_on.set()
        assert same(first.result(), second.result())
    assert first.result().json() == {"updated": ["n"], "removed": [], "missing": []}
    assert AuditEvent.objects.filter(action="namespace.update").count() == 1


# --- the end ----------------------------------------------------------------------------------------


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
