"""RefreshMaterializedView: a job updates a view from its source."""

import json

import pyarrow as pa
import pytest

from catalog.access import SYSTEM, credentials
from catalog.identifiers import digest
from catalog.models import (
    ApiKey,
    AuditEvent,
    Grant,
    Job,
    JobKind,
    MaterializedView,
    Principal,
    Table,
)
from catalog.privileges import Privilege, closure
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.data import delete, insert, update
from catalog.services.maintenance import job_runner
from tests.api.client import Lance, encoded_schema
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table, snapshot

pytestmark = [
    pytest.mark.usefixtures("warehouse"),
    pytest.mark.operation("RefreshMaterializedView"),
]
SOURCE, VIEW = ("ws", "t"), ("ws", "v")
PATH = "/v1/materialized_view/ws$v/refresh"
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("twice", pa.int64())])


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def append(*numbers: int) -> None:
    insert(actor=SYSTEM, table=SOURCE, data=ids(*numbers).to_reader())


def make_view(lance, **more) -> None:
    query = {"source": list(SOURCE), "columns": {"id": "id", "twice": "id * 2"}, **more}
    lance.post(
        "/v1/materialized_view/ws$v/create",
        {
            "kind": "query",
            "source_query": json.dumps(query),
            "output_schema": encoded_schema(SCHEMA),
        },
        status=201,
    )


@pytest.fixture
def source(db) -> Table:
    return make_lance_table(SOURCE, ids(1, 2, 3))


@pytest.fixture
def view(lance, source) -> Table:
    """A view that shows version 1 of its source, without id 1."""
    make_view(lance, filter="id > 1")
    refresh(lance)
    return Table.objects.named(VIEW).get()


def refresh(lance, body=None) -> Job:
    job = Job.objects.get(transaction=lance.post(PATH, body, status=202)["job_id"])
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def rows() -> list[int]:
    table = lance_datasets.read(actor=SYSTEM, table=VIEW).to_table()
    assert table["twice"].to_pylist() == [2 * number for number in table["id"].to_pylist()]
    return table["id"].to_pylist()


def source_version_and_error() -> tuple[int | None, str]:
    view = MaterializedView.objects.get()
    return view.source_version, view.error


@pytest.mark.usefixtures("everywhere")
def test_the_first_refresh_fills_the_view(lance, source):
    make_view(lance)
    answer = lance.post(PATH, {}, status=202)
    assert list(answer) == ["job_id"]
    job = Job.objects.get()
    assert (job.kind, str(job.transaction_id)) == (JobKind.REFRESH_VIEW, answer["job_id"])
    start = AuditEvent.objects.get(action="materialized_view.start_refresh")
    assert (start.actor, start.target, start.after) == ("tester", "ws.v", {})
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    assert rows() == [1, 2, 3]
    event = AuditEvent.objects.get(action="materialized_view.refresh")
    assert event.actor == "tester"
    assert (event.after["version"], event.after["source_version"]) == (2, 1)
    assert (event.after["mode"], event.after["source"]) == ("rebuild", "ws.t")
    assert job.result == {
        "mode": "rebuild",
        "rows": 3,
        "source_version": 1,
        "version": 2,
        "transaction_id": str(event.transaction_id),
    }
    assert (job.progress, job.total) == (3, 3)
    facts = lance.post(f"/v1/transaction/{answer['job_id']}/describe")
    assert facts["status"] == "Succeeded"
    assert facts["properties"]["monodon.job_kind"] == "refresh_view"
    view = MaterializedView.objects.get()
    assert view.source_version == 1
    assert view.refreshed_at is not None


@pytest.mark.usefixtures("everywhere")
def test_appended_rows_are_added(lance, view):
    append(4)
    append(0, 5)
    job = refresh(lance)
    assert (job.result["mode"], job.result["rows"], job.result["source_version"]) == (
        "append",
        2,
        3,
    )
    assert rows() == [2, 3, 4, 5]
    assert (job.progress, job.total) == (3, 3)  # rows of the source
    assert source_version_and_error() == (3, "")


def test_an_unchanged_source_creates_no_version(lance, view):
    job = refresh(lance)
    assert job.result["mode"] == "none"
    assert view.versions.count() == 2
    append(0)  # the filter excludes them
    job = refresh(lance)
    assert (job.result["mode"], job.result["rows"]) == ("append", 0)
    assert view.versions.count() == 2
    assert source_version_and_error() == (2, "")
    assert AuditEvent.objects.filter(action="materialized_view.refresh").count() == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: delete(actor=SYSTEM, table=SOURCE, predicate="id = 2"), [3]),
        (
            lambda: update(actor=SYSTEM, table=SOURCE, updates=[["id", "20"]], predicate="id = 2"),
            [3, 20],
        ),
        (
            lambda: insert(actor=SYSTEM, table=SOURCE, data=ids(7).to_reader(), overwrite=True),
            [7],
        ),
        (lambda: delete(actor=SYSTEM, table=SOURCE, predicate="true"), []),
    ],
    ids=["delete", "update", "overwrite", "empty"],
)
def test_other_changes_rebuild_the_view(lance, view, change, expected):
    change()
    job = refresh(lance)
    assert job.result["mode"] == "rebuild"
    assert rows() == expected
    assert view.versions.count() == 3  # in one version
    assert source_version_and_error() == (2, "")


@pytest.mark.usefixtures("everywhere")
def test_a_rebuild_keeps_the_views_indexes(lance, view):
    lance.post("/v1/table/ws$v/create_index", {"column": "id", "index_type": "BTREE"})
    delete(actor=SYSTEM, table=SOURCE, predicate="id = 2")
    assert refresh(lance).result["mode"] == "rebuild"
    dataset = lance_datasets.read(actor=SYSTEM, table=VIEW)
    assert [index.name for index in dataset.describe_indices()] == ["id_idx"]
    assert dataset.to_table(filter="id = 3")["id"].to_pylist() == [3]
    assert dataset.to_table(filter="id = 2").num_rows == 0


def test_later_columns_of_the_source_are_not_added(lance, view):
    lance.post(
        "/v1/table/ws$t/add_columns", {"new_columns": [{"name": "x", "expression": "id + 1"}]}
    )
    refresh(lance)
    assert rows() == [2, 3]
    assert lance_datasets.read(actor=SYSTEM, table=VIEW).schema == SCHEMA


def test_a_version_of_the_source(lance, view):
    append(4)
    append(5)
    job = refresh(lance, {"src_version": 2})
    assert (job.result["mode"], job.result["source_version"]) == ("append", 2)
    assert rows() == [2, 3, 4]
    job = refresh(lance, {"src_version": 1})  # an older version
    assert (job.result["mode"], job.result["source_version"]) == ("rebuild", 1)
    assert rows() == [2, 3]
    assert refresh(lance).result["source_version"] == 3
    assert rows() == [2, 3, 4, 5]


def test_a_view_of_one_version_is_not_refreshed(lance, source):
    make_view(lance, version=1)
    append(4)
    refresh(lance)
    assert refresh(lance, {"src_version": 1}).result["mode"] == "none"
    assert rows() == [1, 2, 3]
    lance.refused(400, 13, "shows version 1 of its source", PATH, {"src_version": 2})


def test_a_limit(lance, source):
    make_view(lance, limit=2)
    refresh(lance)
    assert rows() == [1, 2]
    append(4)
    assert refresh(lance).result["mode"] == "rebuild"
    assert rows() == [1, 2]


def test_rows_in_a_fragment(lance, view):
    append(*range(10, 15))
    refresh(lance, {"max_rows_per_fragment": 2})
    fragments = lance_datasets.read(actor=SYSTEM, table=VIEW).get_fragments()
    assert [fragment.count_rows() for fragment in fragments] == [2, 2, 2, 1]


def test_hints_for_clusters_are_accepted(lance, view):
    body = {
        "concurrency": 4,
        "intra_applier_concurrency": 2,
        "source_task_size": 10,
        "cluster": "large",
        "manifest": "{}",
    }
    assert refresh(lance, body).status == "succeeded"


def test_a_renamed_source_is_still_the_source(lance, view):
    lance.post("/v1/table/ws$t/rename", {"new_table_name": "u"})
    insert(actor=SYSTEM, table=("ws", "u"), data=ids(4).to_reader())
    assert refresh(lance).result["mode"] == "append"
    assert rows() == [2, 3, 4]


def test_a_dropped_source_fails_the_refresh(lance, view):
    lance.post("/v1/table/ws$t/drop")
    make_lance_table(SOURCE, ids(8))  # of the same name, but not the source
    job = refresh(lance)
    assert (job.status, job.attempts) == ("failed", 1)
    assert job.error == "The source of the view was dropped"
    assert rows() == [2, 3]
    assert source_version_and_error() == (1, "The source of the view was dropped")
    assert MaterializedView.objects.get().failed_at is not None


def test_a_dropped_source_column_fails_the_refresh(lance, view):
    lance.post("/v1/table/ws$t/add_columns", {"new_columns": [{"name": "x", "expression": "id"}]})
    lance.post("/v1/table/ws$t/drop_columns", {"columns": ["id"]})
    job = refresh(lance)
    assert (job.status, job.attempts) == ("failed", 1)
    assert "id" in job.error
    assert rows() == [2, 3]


def test_a_changed_source_column_type_fails_the_refresh(lance, view):
    lance.post(
        "/v1/table/ws$t/alter_columns",
        {"alterations": [{"path": "id", "data_type": {"type": "int32"}}]},
    )
    job = refresh(lance)
    assert (job.status, job.attempts) == ("failed", 1)
    assert job.error == (
        "The query gives (id int32, twice int32), but the view has (id int64, twice int64)"
    )
    assert source_version_and_error() == (1, job.error)
    assert rows() == [2, 3]


def test_a_successful_refresh_clears_the_error(lance, view):
    MaterializedView.objects.update(error="the disk was away", failed_at="2020-01-01T00:00Z")
    refresh(lance)
    view = MaterializedView.objects.get()
    assert (view.error, view.failed_at) == ("", None)


@shared_cases(
    ("body", "status", "code", "text"),
    [
        ({"src_version": 99}, 404, 11, "no version 99"),
        ({"src_version": -1}, 404, 11, "no version -1"),
        ({"src_version": "1"}, 400, 13, "src_version"),
        ({"src_version": 2**70}, 404, 11, "no version"),
        ({"max_rows_per_fragment": 0}, 400, 13, "'max_rows_per_fragment' is 0"),
        ({"max_rows_per_fragment": -5}, 400, 13, "'max_rows_per_fragment' is -5"),
        ({"max_rows_per_fragment": 2**31}, 400, 13, "must be from 1 to 2147483647"),
        ({"output_limit": 10}, 400, 13, "chunker"),
        ({"cluster": 1}, 400, 13, "cluster"),
        ({"id": ["ws", "other"]}, 400, 13, "id"),
    ],
)
def test_refused(lance, view, body, status, code, text):  # noqa: PLR0917
    lance.refused(status, code, text, PATH, body)


def test_tables_that_are_not_views_are_refused(lance, source):
    make_table("ws", "declared")
    for name in ("t", "declared"):
        path = f"/v1/materialized_view/ws${name}/refresh"
        lance.refused(400, 13, "is not a materialized view", path)
    lance.refused(404, 4, "ws.nope", "/v1/materialized_view/ws$nope/refresh")
    lance.refused(404, 1, "nope", "/v1/materialized_view/nope$v/refresh")


def test_a_read_only_key(reader, lance, view):
    reader.refused(403, 15, "may not", PATH)


def test_a_refresh_requires_a_key_that_may_read_the_source(lance, view):
    """Its principal may read the source, but the job would have the principal's rights."""
    elsewhere = make_table("else", "w").namespace
    Table.objects.filter(pk=view.pk).update(namespace=elsewhere, digest=digest(("else", "v")))
    owner = Principal.objects.create(name="owner", kind="user")
    source = Table.objects.named(SOURCE).get().namespace
    for row, privilege in ((elsewhere, Privilege.ALL), (source, Privilege.READ)):
        Grant.objects.create(principal=owner, namespace=row, mask=closure(privilege).value)
    for name, fields in (("wide", {}), ("narrow", {"namespace": elsewhere})):
        digested = credentials.key_digest(f"mnd_{name}")
        ApiKey.objects.create(name=name, principal=owner, digest=digested, **fields)
    before = snapshot()
    refused = Lance("mnd_narrow").call("POST", "/v1/materialized_view/else$v/refresh")
    assert (refused.status_code, refused.json()["code"]) == (409, 19)
    assert refused.json()["error"] == (
        "The source of the view was dropped, or the principal of the refresh may not read it"
    )
    assert snapshot() == before
    Lance("mnd_wide").post("/v1/materialized_view/else$v/refresh", status=202)
