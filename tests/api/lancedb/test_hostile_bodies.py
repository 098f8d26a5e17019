"""Bodies of the dialect are bounded like those of the Lance protocol: refused, and nothing changed."""

import json

import lance
import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.services.access import api_keys
from catalog.services.engine.commit import commit
from catalog.services.lance.ledger import registration_operations
from tests.api.client import stream
from tests.api.lance.example import STREAM, data
from tests.api.lance.examples import make_catalog
from tests.api.lancedb.client import Database
from tests.cases import shared_cases
from tests.factories import unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("warehouse")]
DEEP = json.loads('{"boolean":{"must":[' * 120 + "{}" + "]}}" * 120)


@pytest.fixture
def database() -> Database:
    make_catalog()
    client = Database(api_keys.create_api_key(actor=SYSTEM, name="tests")[1])
    data(client)
    return client


def rows(response) -> pa.Table:
    assert response.status_code == 200, response.content
    content = b"".join(response) if response.streaming else response.content
    return pa.ipc.open_file(content).read_all()


@pytest.mark.parametrize(
    "query",
    [
        {"vector": [1.0, 2.0], "k": -1},
        {"vector": [1.0, 2.0], "k": 2**64},
        {"vector": [1.0, 2.0], "k": 1.5},
        {"vector": [1.0, 2.0], "k": "2"},
        {"vector": [1.0, 2.0], "k": 1, "offset": -1},
        {"vector": [1.0, 2.0], "k": 1, "nprobes": -1},
        {"vector": [1.0, 2.0], "k": 1, "nprobes": 2**40},
        {"vector": [1.0, 2.0], "k": 1, "refine_factor": 2**40},
        {"vector": [1.0, 2.0], "k": 1, "ef": 2**40},
        {"vector": [1.0, 2.0], "k": 1, "distance_type": "nothing"},
        {"vector": [1.0, 2.0], "k": 1, "lower_bound": "much"},
        {"vector": [1.0, 2.0], "k": 1, "search_effort": 1.5},
        {"vector": [1.0, 2.0], "k": 1, "search_effort": "much"},
        {"vector": [1.0, 2.0], "k": 1, "approx_mode": "nothing"},
        {"vector": [1e300, 2.0], "k": 1},
        {"vector": [1.0] * 65_537, "k": 1},
        {"vector": [[1.0]] * 65_537, "k": 1},
        {"vector": [[1.0, 2.0], 3.0], "k": 1},
        {"vector": [[[1.0, 2.0]]], "k": 1},
        {"vector": "text", "k": 1},
        {"vector": {"single_vector": [1.0, 2.0], "multi_vector": [[1.0, 2.0]]}, "k": 1},
        {"vector": [1.0, 2.0], "k": 0},
        {"order_by": "id"},
        {"order_by": ["id"]},
        {"order_by": [{"column_name": ""}]},
        {"order_by": [{"column_name": "nothing"}]},
        {"order_by": [{"column_name": "id; DROP"}]},
        {"order_by": [{"column_name": "`id"}]},
        {"order_by": [{"column_name": "id", "ascending": 1}]},
        {"order_by": [{"column_name": "id"}] * 17},
        {"columns": ["id"] * 10_001},
        {"columns": [["id"], "id"]},
        {"columns": [[7, "id"]]},
        {"columns": [[["id"], "id"]]},
        {"columns": {"id": 7}},
        {"columns": {"id": "(SELECT 1)"}},
        {"filter": "(" * 5000},
        {"filter": "id IN (SELECT 1)"},
        {"filter": 7},
        {"full_text_query": {"query": 7}},
        {"full_text_query": {"query": {"match": 7}}},
        {"full_text_query": {"query": {"nothing": {}}}},
        {"full_text_query": {"query": {"boolean": {"must": 7}}}},
        {"full_text_query": {"query": DEEP}},
        {"full_text_query": {"query": {"multi_match": {"query": "a", "columns": [7]}}}},
        {"version": -1},
        {"version": "1"},
        {"k\0": 1},
    ],
    ids=lambda query: json.dumps(query)[:40],
)
def test_hostile_queries_are_refused(database, query):
    with unchanged():
        response = database.call("POST", "/v1/table/ws$data/query", query)
        explained = database.call("POST", "/v1/table/ws$data/explain_plan", {"query": query})
    assert response.status_code == explained.status_code == 400, response.content


def test_large_numbers_mean_everything(database):
    largest = {"k": 2**63 - 1, "offset": 0}
    assert rows(database.call("POST", "/v1/table/ws$data/query", largest)).num_rows == 8
    nearest = database.call("POST", "/v1/table/ws$data/query", {**largest, "vector": [1.0, 2.0]})
    assert rows(nearest).num_rows == 8
    beyond = database.call("POST", "/v1/table/ws$data/query", {"k": 1, "offset": 2**62})
    assert rows(beyond).num_rows == 0


@shared_cases("body", [b"[]", b"7", b"{", b"\xff", b"[" * 100_000])
@shared_cases(
    "ending", ["query", "describe", "update", "create_index", "rename", "clone", "tags/create"]
)
def test_bodies_that_are_no_objects_are_refused(database, ending, body):
    with unchanged():
        response = database.call("POST", f"/v1/table/ws$data/{ending}", raw=body)
    assert (response.status_code, response.json()["code"]) == (400, 13)


@shared_cases(
    ("path", "body"),
    [
        ("table/ws$data/create_index", {"column": "id", "index_type": "BTREE", "replace": 1}),
        (
            "table/ws$data/create_index",
            {"column": "v", "index_type": "IVF_HNSW_SQ", "num_edges": 9**9},
        ),
        ("table/ws$data/create_index", {"column": "v", "index_type": "IVF_PQ", "metric_type": "x"}),
        ("table/ws$data/create_index", {"column": "id", "index_type": "FM"}),
        ("table/ws$data/rename", {"new_table_name": "u", "new_namespace": "ws"}),
        ("table/ws$data/rename", {"new_table_name": "u", "new_namespace": [""]}),
        ("table/ws$data/rename", {"new_table_name": "u", "new_namespace": [7]}),
        ("table/ws$new/clone", {}),
        ("table/ws$new/clone", {"source_location": "/etc"}),
        ("table/ws$new/clone", {"source_location": "../../etc"}),
        ("table/ws$new/clone", {"source_location": "s3://bucket/x"}),
        ("table/ws$new/clone", {"source_location": "\ud800"}),
        ("table/ws$data/add_columns", {"new_columns": [{"name": "id", "expression": "1"}]}),
        ("database/ws/jobs/list", {"limit": "1"}),
        ("database/ws/jobs/list", {"limit": -1}),
        ("database/ws/jobs/list", {"limit": -5}),
        ("database/ws/jobs/list", {"page_token": "x"}),
    ],
)
def test_other_hostile_bodies_are_refused(database, path, body):
    with unchanged():
        response = database.call("POST", f"/v1/{path}", body)
    assert response.status_code == 400, response.content


def test_the_identifier_in_an_explained_query_is_relative(database):
    path = "/v1/table/ws$data/explain_plan"
    assert database.call("POST", path, {"query": {"id": ["data"]}}).status_code == 200
    refused = database.call("POST", path, {"query": {"id": ["ws", "data"]}})
    assert (refused.status_code, refused.json()["code"]) == (400, 13)


@shared_cases("job", ["", "x", "-1", "1e3", "9" * 30, "１", "1"])
@shared_cases("ending", ["describe", "cancel"])
def test_jobs_that_do_not_exist(database, job, ending):
    with unchanged():
        response = database.call("POST", f"/v1/database/ws/jobs/{ending}", {"job_id": job})
    assert (response.status_code, response.json()["code"]) == (404, 10)


def test_new_columns_are_only_described(database):
    headers = {"content-type": STREAM}
    field = pa.field("more", pa.string(), metadata={"lance:computed": "id", "k": "v"})
    for table in (
        pa.table({"more": ["a"]}),
        pa.schema([]).empty_table(),
        pa.schema([("id", pa.int64())]).empty_table(),
        pa.schema([("more", pa.int8()), ("more", pa.int8())]).empty_table(),
        pa.schema([("", pa.int8())]).empty_table(),
        pa.schema([(f"c{number}", pa.int8()) for number in range(10_001)]).empty_table(),
    ):
        with unchanged():
            response = database.call(
                "POST", "/v1/table/ws$data/add_columns", raw=stream(table), headers=headers
            )
        assert response.status_code == 400, response.content
    empty = stream(pa.schema([field]).empty_table())
    response = database.call("POST", "/v1/table/ws$data/add_columns", raw=empty, headers=headers)
    assert response.json() == {"version": 2}
    described = database.post("/v1/table/ws$data/describe", {})
    assert described["schema"]["fields"][-1] == {
        "name": "more",
        "type": {"type": "string"},
        "nullable": True,
    }


@pytest.mark.parametrize("file_format", ["legacy", "2.1"])
def test_a_clone_needs_no_more_than_a_request_may_send(database, settings, warehouse, file_format):
    location = str(warehouse / "large")
    rows = pa.table({"id": range(1000)})
    lance.write_dataset(rows, location, data_storage_version=file_format)
    commit(
        [registration_operations.RegisterTable(table=("ws", "large"), location=location)],
        actor=SYSTEM,
    )
    settings.MONODON_MAX_DATA_BYTES = 100
    with unchanged():
        response = database.call("POST", "/v1/table/ws$new/clone", {"source_location": location})
    assert (response.status_code, response.json()["code"]) == (413, 13)


def test_only_conflicts_that_may_not_recur_are_repeated(database):
    """The clients repeat requests after a 409."""
    for path, body in (
        ("table/ws$t/create-empty", {}),
        ("table/ws$data/tags/create", {"tag": "v1", "version": 1}),
        ("namespace/ws/create", {}),
    ):
        database.call("POST", f"/v1/{path}", body)
        with unchanged():
            response = database.call("POST", f"/v1/{path}", body)
        assert response.status_code == 400, path
        assert response.json()["code"] in {2, 5, 9}
    declared = database.post("/v1/table/ws$declared/create-empty", {})
    assert declared["location"]
    for ending, body in (("query", {"k": 1}), ("describe", {}), ("tags/list", None)):
        response = database.call("POST", f"/v1/table/ws$declared/{ending}", body)
        assert (response.status_code, response.json()["code"]) == (400, 19), ending
    branch = {"name": "dev"}
    database.post("/v1/table/ws$data/branches/create", branch)
    assert database.call("POST", "/v1/table/ws$data/branches/create", branch).status_code == 409
