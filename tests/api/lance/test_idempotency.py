"""Idempotency-Key on writes of rows: a repeated request is executed once."""

import uuid
from typing import Any

import lance as pylance
import pyarrow as pa
import pytest
from django.http import HttpResponse

from catalog.access import SYSTEM
from catalog.errors import ServiceUnavailable
from catalog.models import IdempotencyRecord, Table, TableVersion
from catalog.services.access import api_keys
from catalog.services.engine import idempotency
from catalog.services.lance import data as lance_data
from tests.api.client import Lance, stream
from tests.factories import make_lance_table, make_root

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("warehouse")]
ROWS = pa.table({"id": pa.array([4, 5], pa.int64()), "name": ["d", "e"]})
OTHER = pa.table({"id": pa.array([6, 7], pa.int64()), "name": ["f", "g"]})
WRITES: dict[str, tuple[str, Any]] = {
    "create": ("/v1/table/ws$new/create", ROWS),
    "insert": ("/v1/table/ws$t/insert", ROWS),
    "merge_insert": (
        "/v1/table/ws$t/merge_insert?on=id&when_not_matched_insert_all=true",
        ROWS,
    ),
    "update": ("/v1/table/ws$t/update", {"updates": [["name", "name || 'x'"]]}),
    "delete": ("/v1/table/ws$t/delete", {"predicate": "id = 1"}),
}
each_write = pytest.mark.parametrize("write", WRITES)


@pytest.fixture(autouse=True)
def _table(lance):
    make_root()
    make_lance_table(("ws", "t"))


def send(client: Lance, write: str, key: str | None, data: Any = None) -> HttpResponse:
    path, body = WRITES[write]
    body = data if data is not None else body
    raw = stream(body) if isinstance(body, pa.Table) else None
    headers = {"idempotency-key": key} if key is not None else {}
    return client.call("POST", path, None if raw else body, raw=raw, headers=headers)


def state() -> dict[str, Any]:
    return {
        table.name: (
            sorted(table.versions.values_list("version", flat=True)),
            pylance.dataset(table.location).to_table().to_pylist(),
        )
        for table in Table.objects.all()
    }


@each_write
def test_a_repeated_request_gets_the_same_answer_and_changes_nothing(lance, write):
    key = str(uuid.uuid4())
    first = send(lance, write, key)
    assert first.status_code == 200, first.content
    before = state()
    again = send(lance, write, key)
    assert (again.status_code, again.content) == (200, first.content)
    assert again["content-type"] == first["content-type"]
    assert state() == before
    record = IdempotencyRecord.objects.get()
    assert str(record.transaction_id) == first.json()["transaction_id"]


@each_write
def test_another_request_under_the_key_is_refused(lance, write):
    key = str(uuid.uuid4())
    assert send(lance, write, key).status_code == 200
    before = state()
    other = {"update": {"updates": [["name", "'y'"]]}, "delete": {"predicate": "id = 2"}}
    refused = send(lance, write, key, other.get(write, OTHER))
    form = refused.json()
    assert (refused.status_code, form["code"]) == (400, 13)
    assert form["error"] == f"Idempotency-Key {key} was used for another request"
    assert state() == before


@each_write
def test_a_lost_answer_is_rebuilt(lance, write, monkeypatch):
    key = str(uuid.uuid4())
    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "keep_answer", lambda *arguments, **facts: None)
        first = send(lance, write, key).json()
    before = state()
    again = send(lance, write, key)
    assert state() == before
    if write == "update":  # its answer contains a number of rows, which is no longer known
        assert (again.status_code, again.json()["code"]) == (500, 18)
        assert first["transaction_id"] in again.json()["error"]
        assert "the update was made before, as version 2" in again.json()["error"].lower()
    else:
        assert again.status_code == 200
        counts = {"num_inserted_rows", "num_updated_rows", "num_deleted_rows"}
        expected = {name: value for name, value in first.items() if name not in counts}
        assert again.json() == expected
        assert send(lance, write, key).content == again.content


def test_a_key_is_a_uuid(lance):
    refused = send(lance, "insert", "17")
    assert (refused.status_code, refused.json()["code"]) == (400, 13)
    assert refused.json()["error"] == "Idempotency-Key '17' is not a UUID"
    assert TableVersion.objects.count() == 1


def test_without_a_key_rows_are_added_twice(lance):
    assert [send(lance, "insert", None).json()["version"] for _ in range(2)] == [2, 3]


def test_keys_are_bound_to_their_principal(lance):
    _, secret = api_keys.create_api_key(actor=SYSTEM, name="second")
    key = str(uuid.uuid4())
    assert send(lance, "insert", key).json()["version"] == 2
    assert send(Lance(secret), "insert", key).json()["version"] == 3


def test_a_refusal_is_repeated(lance):
    key = str(uuid.uuid4())
    first = send(lance, "delete", key, {"predicate": "nonsense = 1"})
    assert first.status_code == 404
    again = send(lance, "delete", key, {"predicate": "nonsense = 1"})
    assert (again.status_code, again.content) == (404, first.content)


@pytest.mark.parametrize("write", ["insert", "update"])
def test_transient_errors_are_not_recorded(lance, write, monkeypatch):
    key = str(uuid.uuid4())

    def busy(**options: Any) -> None:
        raise ServiceUnavailable("busy")

    with monkeypatch.context() as patch:
        patch.setattr(lance_data, write, busy)
        refused = send(lance, write, key)
    assert (refused.status_code, refused["retry-after"]) == (503, "1")
    assert not IdempotencyRecord.objects.exists()
    assert send(lance, write, key).json()["version"] == 2


def test_a_request_with_a_truncated_body_can_be_repeated(lance):
    key, content = str(uuid.uuid4()), stream(ROWS)
    path, _ = WRITES["insert"]
    headers = {"idempotency-key": key}
    broken = lance.call("POST", path, raw=content[:-20], headers=headers)
    assert broken.status_code == 400
    whole = lance.call("POST", path, raw=content, headers=headers)
    assert whole.json()["version"] == 2


def test_concurrent_requests_with_one_key_are_executed_once(lance, monkeypatch):
    """The second request did all the work, and detects at its commit that the first has committed."""
    key = str(uuid.uuid4())
    first = send(lance, "insert", key)
    before = state()
    real = idempotency.find
    calls: list[None] = []

    def find_nothing_once(actor: Any) -> Any:
        calls.append(None)
        return None if len(calls) == 1 else real(actor)

    monkeypatch.setattr(idempotency, "find", find_nothing_once)
    again = send(lance, "insert", key)
    assert (again.status_code, again.content) == (200, first.content)
    assert state() == before
