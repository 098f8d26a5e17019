"""CreateMaterializedView: a Lance table whose rows come from a query over another one."""

import base64
import json

import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.models import AuditEvent, Job, JobKind, MaterializedView, Table, Transaction
from catalog.services.lance import datasets as lance_datasets
from catalog.services.maintenance import job_runner
from tests.api.client import encoded_schema, stream
from tests.cases import shared_cases
from tests.factories import files, make_lance_table, make_table

pytestmark = [
    pytest.mark.usefixtures("warehouse"),
    pytest.mark.operation("CreateMaterializedView"),
]
SOURCE, VIEW = ("ws", "t"), ("ws", "v")
PATH = "/v1/materialized_view/ws$v/create"
ID = pa.field("id", pa.int64())
QUERY = {"source": ["ws", "t"], "columns": ["id"], "filter": "id > 1"}


@pytest.fixture
def source(db) -> Table:
    names = pa.array(["a", "b", "c"])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(6), pa.float32()), 2)
    data = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "Na Me": names, "v": vectors})
    return make_lance_table(SOURCE, data)


def body(query=QUERY, *fields: pa.Field, **more):
    """A request; the fields are those of the output schema, by default that of QUERY."""
    return {
        "kind": "query",
        "source_query": query if isinstance(query, str) else json.dumps(query),
        "output_schema": encoded_schema(pa.schema(fields or [ID])),
        **more,
    }


@pytest.mark.usefixtures("everywhere")
def test_a_new_view_is_an_empty_table(lance, source):
    assert lance.post(PATH, body(), status=201) == {"version": 1}
    row = Table.objects.named(VIEW).get()
    assert row.is_materialized
    view = MaterializedView.objects.get()
    assert (view.table, view.source, view.source_version, view.auto_refresh) == (
        row,
        source,
        None,
        False,
    )
    assert view.source_query == json.dumps(QUERY)
    assert view.definition == {
        "source": ["ws", "t"],
        "columns": [["id", "`id`"]],
        "filter": "id > 1",
    }
    dataset = lance_datasets.read(actor=SYSTEM, table=VIEW)
    assert (dataset.schema, dataset.count_rows()) == (pa.schema([ID]), 0)
    description = lance.post("/v1/table/ws$v/describe")
    assert description["properties"] == {
        "monodon.materialized_view.query": "SELECT `id` FROM `ws`.`t` WHERE id > 1"
    }
    assert lance.get("/v1/namespace/ws/table/list")["tables"] == ["t", "v"]
    event = AuditEvent.objects.get(action="materialized_view.create")
    assert (event.actor, event.target, event.after["source"]) == ("tester", "ws.v", "ws.t")
    assert Transaction.objects.get(pk=event.transaction_id).status == "Succeeded"
    assert not Job.objects.exists()


@pytest.mark.usefixtures("everywhere")
def test_with_data_starts_a_job(lance, source):
    answer = lance.post(PATH, body(with_no_data=False), status=201)
    assert sorted(answer) == ["job_id", "version"]
    job = Job.objects.get()
    assert (job.kind, str(job.transaction_id)) == (JobKind.REFRESH_VIEW, answer["job_id"])
    assert lance.post(f"/v1/transaction/{answer['job_id']}/describe")["status"] == "Queued"
    job_runner.run_job(job.pk)
    assert lance.post(f"/v1/transaction/{answer['job_id']}/describe")["status"] == "Succeeded"
    rows = lance_datasets.read(actor=SYSTEM, table=VIEW).to_table()
    assert rows.to_pylist() == [{"id": 2}, {"id": 3}]
    assert MaterializedView.objects.get().source_version == 1


@pytest.mark.parametrize(
    ("query", "fields", "rows"),
    [
        (
            "SELECT `id` AS \"id\", upper(`Na Me`) AS up FROM ws.t WHERE `Na Me` <> 'b' LIMIT 1",
            [ID, pa.field("up", pa.string())],
            [{"id": 1, "up": "A"}],
        ),
        (
            {"source": ["ws", "t"], "columns": {"twice": "id * 2", "name": "`Na Me`"}, "limit": 2},
            [pa.field("twice", pa.int64()), pa.field("name", pa.string())],
            [{"twice": 2, "name": "a"}, {"twice": 4, "name": "b"}],
        ),
        (
            {"source": ["ws", "t"], "columns": [["z", "id"], "Na Me"], "version": 1},
            [pa.field("z", pa.int64()), pa.field("Na Me", pa.string())],
            [{"z": 1, "Na Me": "a"}, {"z": 2, "Na Me": "b"}, {"z": 3, "Na Me": "c"}],
        ),
        (
            'SELECT * FROM "ws"."t" WHERE id = 3',
            [ID, pa.field("Na Me", pa.string()), pa.field("v", pa.list_(pa.float32(), 2))],
            [{"id": 3, "Na Me": "c", "v": [4.0, 5.0]}],
        ),
    ],
)
def test_queries(lance, source, query, fields, rows):
    lance.post(PATH, body(query, *fields, with_no_data=False), status=201)
    job_runner.run_job(Job.objects.get().pk)
    assert lance_datasets.read(actor=SYSTEM, table=VIEW).to_table().to_pylist() == rows


def test_a_schema_as_a_stream(lance, source):
    sent = base64.b64encode(stream(pa.schema([ID]).empty_table())).decode()
    assert lance.post(PATH, body(output_schema=sent), status=201) == {"version": 1}


def test_auto_refresh(lance, source):
    lance.post(PATH, body(auto_refresh=True), status=201)
    assert MaterializedView.objects.get().auto_refresh


def test_a_view_of_a_view(lance, source):
    lance.post(PATH, body(), status=201)
    query = {"source": ["ws", "v"]}
    lance.post("/v1/materialized_view/ws$w/create", body(query), status=201)
    assert MaterializedView.objects.get(table__name="w").source.name == "v"


@pytest.mark.usefixtures("everywhere")
def test_dropping_the_table_drops_the_view(lance, source):
    for ending in ("drop", "deregister"):
        lance.post(PATH, body(), status=201)
        lance.post(f"/v1/table/ws$v/{ending}")
        assert not MaterializedView.objects.exists()


def test_an_overwrite_replaces_the_view_with_a_table(lance, source):
    lance.post(PATH, body(), status=201)
    headers = {"content-type": "application/vnd.apache.arrow.stream"}
    raw = stream(pa.table({"x": [1]}))
    lance.post("/v1/table/ws$v/create?mode=overwrite", raw=raw, headers=headers)
    assert not Table.objects.named(VIEW).get().is_materialized
    assert not MaterializedView.objects.exists()
    assert lance.post("/v1/table/ws$v/insert", raw=raw, headers=headers)["num_inserted_rows"] == 1


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("insert", None),
        ("insert?mode=overwrite", None),
        ("merge_insert?on=id&when_not_matched_insert_all=true", None),
        ("update", {"updates": [["id", "1"]]}),
        ("delete", {"predicate": "true"}),
        ("restore", {"version": 1}),
        ("add_columns", {"new_columns": [{"name": "x", "expression": "id"}]}),
        ("drop_columns", {"columns": ["id"]}),
        ("alter_columns", {"alterations": [{"path": "id", "rename": "x"}]}),
        ("version/create", {"version": 2, "manifest_path": "elsewhere/2.manifest"}),
    ],
)
def test_clients_may_not_write_its_rows(lance, source, path, sent):
    lance.post(PATH, body(), status=201)
    location = Table.objects.named(VIEW).get().location
    before = files(location)
    options = {}
    if sent is None:
        options["raw"] = stream(pa.table({"id": pa.array([9], pa.int64())}))
        options["headers"] = {"content-type": "application/vnd.apache.arrow.stream"}
    lance.refused(409, 19, "is a materialized view", f"/v1/table/ws$v/{path}", sent, **options)
    assert files(location) == before


@shared_cases(
    ("change", "status", "code", "text"),
    [
        ({"kind": None}, 400, 13, "kind"),
        ({"kind": "nope"}, 400, 13, "kind"),
        ({"kind": "udtf"}, 406, 0, "runs code that the client sends"),
        ({"kind": "chunker"}, 406, 0, "runs code that the client sends"),
        ({"source_query": None}, 400, 13, "source_query"),
        ({"source_query": 5}, 400, 13, "source_query"),
        ({"source_query": ""}, 400, 13, "neither a JSON object nor a SELECT"),
        ({"source_query": "{"}, 400, 13, "cannot be read"),
        ({"source_query": "[]"}, 400, 13, "neither a JSON object nor a SELECT"),
        ({"source_query": '{"source": ["ws", "t"], "where": "x"}'}, 400, 13, "key 'where'"),
        ({"source_query": "SELECT id FROM ws.t ORDER BY id"}, 400, 13, "ORDER is not supported"),
        ({"source_query": "SELECT id FROM ws.t, ws.u"}, 400, 13, "one table"),
        ({"source_query": "SELECT nope FROM ws.t"}, 404, 12, "nope"),
        ({"source_query": "SELECT id FROM ws.t WHERE nope > 1"}, 404, 12, "nope"),
        ({"source_query": "SELECT id FROM ws.t WHERE id"}, 400, 13, "boolean"),
        ({"source_query": "SELECT id FROM ws.t WHERE id > > 1"}, 400, 13, "parser"),
        ({"source_query": "SELECT id FROM ws.t WHERE id = '\u0000'"}, 400, 13, "NUL"),
        ({"source_query": "SELECT id FROM ws.t WHERE id = $1"}, 400, 13, "placeholder"),
        (
            {"source_query": '{"source": ["ws", "t"], "filter": "id = \'\\u0000\'"}'},
            400,
            13,
            "NUL",
        ),
        ({"source_query": "SELECT sum(id) AS id FROM ws.t"}, 400, 13, ""),
        ({"source_query": "SELECT nofunction(id) AS id FROM ws.t"}, 400, 13, "nofunction"),
        ({"source_query": "SELECT id FROM ws.nope"}, 404, 4, "ws.nope"),
        ({"source_query": "SELECT id FROM nope.t"}, 404, 1, "nope"),
        ({"source_query": "SELECT id FROM ws.declared"}, 409, 19, "no data yet"),
        ({"source_query": '{"source": ["ws", "t"], "version": 9}'}, 404, 11, "version 9"),
        ({"source_query": '{"source": ["ws", "v"]}'}, 404, 4, "ws.v"),
        ({"output_schema": None}, 400, 13, "output_schema"),
        ({"output_schema": ""}, 400, 13, "no Arrow schema"),
        ({"output_schema": "%%%"}, 400, 13, "no Arrow schema"),
        ({"output_schema": "aGVsbG8="}, 400, 13, "no Arrow schema"),
        (
            {"output_schema": encoded_schema(pa.schema([pa.field("id", pa.int32())]))},
            400,
            20,
            "The query gives (id int64), but 'output_schema' has (id int32)",
        ),
        ({"output_schema": encoded_schema(pa.schema([]))}, 400, 20, "has ()"),
        (
            {"output_schema": encoded_schema(pa.schema([ID, pa.field("x", pa.string())]))},
            400,
            20,
            "x string",
        ),
        ({"with_no_data": "no"}, 400, 13, "with_no_data"),
        ({"auto_refresh": 1}, 400, 13, "auto_refresh"),
        ({"id": ["ws", "other"]}, 400, 13, "id"),
        (
            {
                "udtf_spec": {
                    "kind": "udtf",
                    "udtf": "",
                    "udtf_sha": "",
                    "udtf_name": "f",
                    "udtf_version": "1",
                }
            },
            400,
            13,
            "must be null",
        ),
    ],
    prepare=lambda: make_table("ws", "declared"),
)
def test_refused(lance, source, change, status, code, text):  # noqa: PLR0917
    lance.refused(status, code, text, PATH, body() | change)


def test_taken_names_are_refused(lance, source):
    path = "/v1/materialized_view/ws$t/create"
    lance.refused(409, 5, "exists already", path, body())
    lance.post(PATH, body(), status=201)
    lance.refused(409, 5, "exists already", PATH, body())


def test_a_missing_namespace_is_refused(lance, source):
    lance.refused(404, 1, "nope", "/v1/materialized_view/nope$v/create", body())


def test_a_refused_view_leaves_no_files(lance, source, warehouse):
    before = files(warehouse)
    lance.refused(404, 1, "nope", "/v1/materialized_view/nope$v/create", body())
    lance.refused(409, 5, "exists already", "/v1/materialized_view/ws$t/create", body())
    assert files(warehouse) == before


def test_a_read_only_key(reader, source):
    reader.refused(403, 15, "may not", PATH, body())
