"""Maps and lists of every protocol are limited, and the largest accepted ones are processed quickly."""

import json
import time

import orjson
import pytest

from api import bounds
from catalog.errors import InvalidInput
from catalog.limits import LONGER_LISTS, MAX_ENTRIES, MAX_VALUES
from catalog.models import Namespace
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_namespace, make_table, unchanged

pytestmark = pytest.mark.django_db
MANY = MAX_ENTRIES + 1


def properties(count: int) -> dict[str, str]:
    return {f"k{i}": "v" for i in range(count)}


FIELDS = [{"id": i, "name": f"c{i}", "type": "int", "required": False} for i in range(1, MANY + 1)]
LANCE = {
    "/v1/namespace/new/create": {"properties": properties(MANY)},
    "/v1/namespace/new/drop": {"id": ["new"] * MANY},
    "/v1/table/ws$new/declare": {"properties": properties(MANY)},
    "/v1/table/ws$t/version/create": {
        "version": 2,
        "manifest_path": "m",
        "metadata": properties(MANY),
    },
    "/v1/table/ws$t/version/delete": {
        "ranges": [{"start_version": i, "end_version": i + 1} for i in range(MANY)]
    },
    "/v1/table/batch-commit": {
        "operations": [{"declare_table": {"id": ["ws", f"t{i}"]}} for i in range(MANY)]
    },
    "/v1/table/ws$t/drop_columns": {"columns": [f"c{i}" for i in range(MANY)]},
    "/v1/table/ws$t/schema_metadata/update": properties(MANY),
    "/v1/table/ws$t/query": {"k": 1, "vector": {"single_vector": [0.5] * 65_537}},
}
ICEBERG = {
    "/v1/namespaces": {"namespace": ["new"], "properties": properties(MANY)},
    "/v1/namespaces/ws/properties": {"removals": [f"k{i}" for i in range(MANY)], "updates": {}},
    "/v1/namespaces/ws/tables": {
        "name": "new",
        "schema": {"type": "struct", "schema-id": 0, "fields": FIELDS},
    },
    "/v1/namespaces/ws/tables/i": {
        "requirements": [{"type": "assert-create"}] * MANY,
        "updates": [],
    },
    "/v1/transactions/commit": {
        "table-changes": [
            {"identifier": {"namespace": ["ws"], "name": "i"}, "requirements": [], "updates": []}
        ]
        * MANY
    },
    "/v1/namespaces/ws/tables/i/plan": {"select": [f"c{i}" for i in range(MANY)]},
}


@pytest.fixture(autouse=True)
def tables(warehouse) -> None:
    make_table("ws", "t")
    make_iceberg_table("ws", "i")


@shared_cases("path", LANCE)
def test_lance_refuses_more_with_code_13(lance, path):
    with unchanged():
        answer = lance.call("POST", path, LANCE[path])
    assert (answer.status_code, answer.json()["code"]) == (400, 13), answer.content[:300]
    limit = LONGER_LISTS["single_vector"] if path.endswith("query") else MAX_ENTRIES
    assert answer.json()["error"].endswith(f" has {limit + 1} entries; at most {limit} are allowed")


@shared_cases("path", ICEBERG)
def test_iceberg_refuses_more_as_a_bad_request(lance, path):
    with unchanged():
        answer = lance.call("POST", path, ICEBERG[path])
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "BadRequestException"), error["message"][
        :300
    ]
    assert error["message"].endswith(f" has {MANY} entries; at most {MAX_ENTRIES} are allowed")


def test_the_management_api_refuses_more(lance):
    body = {"key": "pii", "allowed_values": [str(i) for i in range(MANY)]}
    with unchanged():
        answer = lance.call("POST", "/management/v1/labels", body)
    assert answer.status_code == 400
    assert f"at most {MAX_ENTRIES} are allowed" in answer.json()["detail"]


def test_600_000_properties_are_refused_quickly(lance):
    body = json.dumps({"namespace": ["new"], "properties": properties(600_000)}).encode()
    assert len(body) < 16 * 1024 * 1024
    started = time.monotonic()
    with unchanged():
        answer = lance.call("POST", "/v1/namespaces", raw=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "properties has 600000 entries; at most 10000 are allowed"
    )
    assert time.monotonic() - started < 10  # storing them took 17 s


def test_many_small_maps_exceed_the_limit_of_values(lance):
    small_map = properties(110)
    body = {"operations": [{"declare_table": {"id": ["ws", "x"], "properties": small_map}}] * 9_500}
    raw = json.dumps(body, separators=(",", ":")).encode()
    assert len(raw) < 16 * 1024 * 1024
    with unchanged():
        answer = lance.call("POST", "/v1/table/batch-commit", raw=raw)
    assert (answer.status_code, answer.json()["code"]) == (400, 13)
    assert answer.json()["error"] == f"The request body holds more than {MAX_VALUES} values"


def test_several_requests_cannot_exceed_the_property_limit(lance):
    path = "/v1/namespaces/ws/properties"
    for start in (0, 5_000):
        updates = {f"k{i}": "v" for i in range(start, start + 5_000)}
        assert lance.call("POST", path, {"updates": updates}).status_code == 200
    with unchanged():
        answer = lance.call("POST", path, {"updates": {"one more": "v"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith("would have 10001 entries; at most 10000 fit")
    assert len(Namespace.objects.named(("ws",)).get().properties) == 10_000
    table = "/v1/namespaces/ws/tables/i"
    update = {"action": "set-properties", "updates": properties(9_000)}
    more = {"action": "set-properties", "updates": {f"l{i}": "v" for i in range(9_000)}}
    with unchanged():
        answer = lance.call("POST", table, {"requirements": [], "updates": [update, more]})
    assert answer.status_code == 400
    assert "at most 10000 fit" in answer.json()["error"]["message"]


def test_bodies_at_the_limit_are_accepted(lance):
    body = {"namespace": ["new"], "properties": properties(MAX_ENTRIES)}
    assert lance.call("POST", "/v1/namespaces", body).status_code == 200
    assert len(Namespace.objects.named(("new",)).get().properties) == MAX_ENTRIES
    make_namespace("wide")
    schema = {"type": "struct", "schema-id": 0, "fields": FIELDS[:4_000]}
    answer = lance.call("POST", "/v1/namespaces/wide/tables", {"name": "w", "schema": schema})
    assert answer.status_code == 200, answer.content[:300]


def test_a_batch_of_10_000_operations_is_not_too_long():
    body = {"operations": [{"declare_table": {"id": ["ws", f"t{i}"]}} for i in range(10_000)]}
    bounds.check_json(json.dumps(body).encode())
    body = {"filter": {"type": "in", "term": "x", "values": list(range(100_000))}}
    bounds.check_json(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"a": [{"b": [1] * MANY}]}, "a[0].b"),
        ({"a": {"b": [[], {"c": {str(i): 1 for i in range(MANY)}}]}}, "a.b[1].c"),
        ({str(i): 1 for i in range(MANY)}, "The request body"),
        ({"values": [1] * 100_001}, "values"),
        ({"x" * 500: [1] * MANY}, "x" * 80),
    ],
)
def test_the_refusal_names_the_map_or_list(body, name):
    with pytest.raises(InvalidInput) as refused:
        bounds.check_json(orjson.dumps(body))
    assert refused.value.message.startswith(f"{name} has ")


def test_small_bodies_are_accepted_without_parsing(monkeypatch):
    def parse(_: bytes) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(bounds.orjson, "loads", parse)
    bounds.check_json(json.dumps({"properties": properties(5_000)}).encode())


def test_invalid_json_is_left_to_the_parser():
    bounds.check_json(b"{" + b"," * MANY)
