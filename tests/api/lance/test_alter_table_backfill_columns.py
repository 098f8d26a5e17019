"""AlterTableBackfillColumns: a job fills a computed column."""

import pyarrow as pa
import pytest

from catalog.access import SYSTEM
from catalog.formats.lance.naming import COMPUTED_KEY, COMPUTED_KIND_KEY
from catalog.models import AuditEvent, Job, JobKind, JobStatus, Table
from catalog.services.access import api_keys
from catalog.services.lance import backfill as lance_backfill
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import data_operations, ledger_namespace
from catalog.services.lance import datasets as lance_datasets
from catalog.services.lance.data import delete, insert, update
from catalog.services.lance.refs import ref_operations
from catalog.services.maintenance import job_runner
from tests.cases import shared_cases
from tests.factories import make_lance_table, make_table

pytestmark = [
    pytest.mark.usefixtures("warehouse"),
    pytest.mark.operation("AlterTableBackfillColumns"),
]
T = ("ws", "t")
PATH = "/v1/table/ws$t/backfill_column"


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def declare(name: str, expression: str, type_: pa.DataType | None = None, branch: str = "") -> None:
    """A computed column, as AlterTableAddColumns declares it."""
    field = pa.field(name, type_ or pa.int64(), metadata={COMPUTED_KEY: expression})
    lance_commits.write(
        actor=SYSTEM,
        table=T,
        branch=branch,
        operation=data_operations.AlterTableAddColumns,
        work=lambda dataset: dataset.add_columns([field]),
    )


@pytest.fixture
def table(db) -> Table:
    """Three fragments: ids 1 to 3, 4 and 5, 6; and the computed column ``twice``."""
    row = make_lance_table(T, ids(1, 2, 3))
    for numbers in ((4, 5), (6,)):
        insert(actor=SYSTEM, table=T, data=ids(*numbers).to_reader())
    declare("twice", "id * 2")  # version 4
    return row


def rows(column: str = "twice", branch: str = "") -> dict[int, int | None]:
    table = lance_datasets.read(actor=SYSTEM, table=T, branch=branch).to_table()
    return dict(zip(table["id"].to_pylist(), table[column].to_pylist(), strict=True))


def run(job_id: str) -> Job:
    job = Job.objects.get(transaction=job_id)
    job_runner.run_job(job.pk)
    job.refresh_from_db()
    return job


def append(*numbers: int) -> None:
    """Rows that leave the computed column out."""
    data = ids(*numbers).append_column("twice", pa.nulls(len(numbers), pa.int64()))
    insert(actor=SYSTEM, table=T, data=data.to_reader())


@pytest.mark.usefixtures("everywhere")
def test_a_job_fills_the_column(lance, table):
    answer = lance.post(PATH, {"column": "twice"}, status=202)
    assert list(answer) == ["job_id"]
    job = Job.objects.get()
    assert (job.kind, job.status, str(job.transaction_id)) == (
        JobKind.BACKFILL_COLUMN,
        JobStatus.QUEUED,
        answer["job_id"],
    )
    assert rows() == dict.fromkeys(range(1, 7))
    assert lance.post(f"/v1/transaction/{answer['job_id']}/describe")["status"] == "Queued"
    job = run(answer["job_id"])
    assert job.error == ""
    assert rows() == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10, 6: 12}
    assert (job.progress, job.total) == (6, 6)
    facts = lance.post(f"/v1/transaction/{answer['job_id']}/describe")
    assert facts["status"] == "Succeeded"
    assert facts["properties"]["monodon.job_progress"] == "6"
    event = AuditEvent.objects.get(action="table.backfill")
    assert (event.actor, event.target) == ("tester", "ws.t")
    assert event.after["version"] == 5
    assert (event.after["column"], event.after["job"]) == ("twice", job.pk)
    assert job.result == {
        "rows": 6,
        "fragments": 3,
        "remaining_rows": 0,
        "source_version": 4,
        "version": 5,
        "transaction_id": str(event.transaction_id),
    }
    start = AuditEvent.objects.get(action="table.start_backfill")
    assert start.after == {"column": "twice", "branch": ""}


def test_where(lance, table):
    run(lance.post(PATH, {"column": "twice", "where": "id > 4"}, status=202)["job_id"])
    assert rows() == {1: None, 2: None, 3: None, 4: None, 5: 10, 6: 12}
    run(lance.post(PATH, {"column": "twice", "where": "twice IS NULL"}, status=202)["job_id"])
    assert rows() == {number: number * 2 for number in range(1, 7)}


def test_nothing_to_fill_makes_no_version(lance, table):
    job = run(lance.post(PATH, {"column": "twice", "where": "id > 99"}, status=202)["job_id"])
    unchanged_table = {"rows": 0, "fragments": 0, "remaining_rows": 0, "source_version": 4}
    assert (job.status, job.result) == ("succeeded", unchanged_table)
    assert table.versions.count() == 4


def test_changed_rows_are_computed_again(lance, table):
    run(lance.post(PATH, {"column": "twice"}, status=202)["job_id"])
    update(actor=SYSTEM, table=T, updates=[["id", "id + 100"]], predicate="id = 2")
    assert rows()[102] == 4
    run(lance.post(PATH, {"column": "twice"}, status=202)["job_id"])
    assert rows()[102] == 204


def test_deleted_rows_stay_deleted(lance, table):
    delete(actor=SYSTEM, table=T, predicate="id IN (2, 6)")
    run(lance.post(PATH, {"column": "twice"}, status=202)["job_id"])
    assert rows() == {1: 2, 3: 6, 4: 8, 5: 10}


def test_a_version_to_read(lance, table):
    """Fragments that came later are left out."""
    append(7)
    run(lance.post(PATH, {"column": "twice", "read_version": 4}, status=202)["job_id"])
    assert rows() == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10, 6: 12, 7: None}


def test_the_number_of_fragments_is_limited(lance, table):
    body = {"column": "twice", "num_frags": 2, "commit_granularity": 1, "task_size": 1}
    job = run(lance.post(PATH, body, status=202)["job_id"])
    assert rows() == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10, 6: None}
    assert (job.result["rows"], job.result["fragments"]) == (5, 2)
    assert table.versions.count() == 6  # a commit each


def test_hints_for_clusters_are_accepted(lance, table):
    body = {
        "column": "twice",
        "concurrency": 8,
        "intra_applier_concurrency": 2,
        "min_checkpoint_size": 1,
        "max_checkpoint_size": 10,
        "batch_checkpoint_flush_interval_seconds": 1.5,
        "checkpoint_size": 5,
        "cluster": "large",
        "task_size": 2**31 - 1,
        "manifest": "m",
    }
    run(lance.post(PATH, body, status=202)["job_id"])
    assert None not in rows().values()


@pytest.mark.usefixtures("everywhere")
def test_a_branch(lance, table):
    def make(dataset):
        dataset.create_branch("dev", dataset.version)

    lance_commits.write(
        actor=SYSTEM, table=T, branch="", operation=ref_operations.CreateTableBranch, work=make
    )
    run(lance.post(PATH, {"column": "twice", "branch": "dev"}, status=202)["job_id"])
    assert None not in rows(branch="dev").values()
    assert set(rows().values()) == {None}


def test_names_and_types(lance, table):
    declare("Up Per", "CAST(id AS STRING)", pa.string())
    declare("half-way", "CAST(id AS FLOAT) / CAST(2 AS FLOAT)", pa.float32())
    declare("seven", "7")
    run(lance.post(PATH, {"column": "seven"}, status=202)["job_id"])
    assert rows("seven") == dict.fromkeys(range(1, 7), 7)
    run(lance.post(PATH, {"column": "`Up Per`"}, status=202)["job_id"])
    run(lance.post(PATH, {"column": "half-way"}, status=202)["job_id"])
    assert rows("Up Per") == {number: str(number) for number in range(1, 7)}
    assert rows("half-way") == {number: number / 2 for number in range(1, 7)}


# --- others at the same time


@pytest.mark.usefixtures("everywhere")
def test_a_concurrent_append_is_no_conflict(lance, table, monkeypatch):
    """The append commits first, and the job continues with its rows."""
    real, seen_operations = ledger_namespace.commit, []

    def append_first(operations, *, actor):
        if operations[0].name == "AlterTableBackfillColumns" and not seen_operations:
            seen_operations.append(operations[0].version)
            append(7)
        return real(operations, actor=actor)

    job_id = lance.post(PATH, {"column": "twice"}, status=202)["job_id"]
    monkeypatch.setattr(ledger_namespace, "commit", append_first)
    job = run(job_id)
    assert (job.status, seen_operations, job.result["version"]) == ("succeeded", [5], 7)
    assert rows() == {number: number * 2 for number in range(1, 8)}


def test_a_concurrent_delete_is_retried(lance, table, monkeypatch):
    real, seen_operations = ledger_namespace.commit, []

    def delete_first(operations, *, actor):
        if operations[0].name == "AlterTableBackfillColumns" and not seen_operations:
            seen_operations.append(operations[0].version)
            delete(actor=SYSTEM, table=T, predicate="id = 2")
        return real(operations, actor=actor)

    job_id = lance.post(PATH, {"column": "twice"}, status=202)["job_id"]
    monkeypatch.setattr(ledger_namespace, "commit", delete_first)
    job = run(job_id)
    assert (job.status, job.attempts) == ("succeeded", 1)
    assert rows() == {1: 2, 3: 6, 4: 8, 5: 10, 6: 12}


@pytest.mark.usefixtures("everywhere")
def test_a_resumed_job_continues_after_committed_fragments(lance, table, monkeypatch):
    body = {"column": "twice", "commit_granularity": 1}
    job_id = lance.post(PATH, body, status=202)["job_id"]
    real, calls = lance_backfill._values, []

    def fail_third(source, fragment, *options):
        calls.append(fragment.fragment_id)
        if len(calls) == 3:
            raise OSError("the disk is away")
        return real(source, fragment, *options)

    monkeypatch.setattr(lance_backfill, "_values", fail_third)
    job = run(job_id)
    assert (job.status, job.error) == ("queued", "the disk is away")
    assert rows() == {1: 2, 2: 4, 3: 6, 4: 8, 5: 10, 6: None}
    assert (job.progress, job.total) == (5, 6)
    Job.objects.update(lease_until=None)
    job = run(job_id)
    assert (job.status, job.progress) == ("succeeded", 6)
    assert calls == [0, 1, 2, 2]
    assert rows() == {number: number * 2 for number in range(1, 7)}
    assert (job.result["rows"], job.result["fragments"]) == (6, 3)


def test_a_dropped_column_fails_the_job(lance, table):
    job_id = lance.post(PATH, {"column": "twice"}, status=202)["job_id"]
    lance_commits.write(
        actor=SYSTEM,
        table=T,
        operation=data_operations.AlterTableDropColumns,
        work=lambda dataset: dataset.drop_columns(["twice"]),
    )
    job = run(job_id)
    assert (job.status, job.attempts) == ("failed", 1)
    assert job.error == "Table 'ws.t': Column 'twice' does not exist"


def test_a_renamed_table_is_still_found(lance, table):
    job_id = lance.post(PATH, {"column": "twice"}, status=202)["job_id"]
    lance.post("/v1/table/ws$t/rename", {"new_table_name": "u"})
    job = run(job_id)
    assert job.status == "succeeded"
    assert AuditEvent.objects.get(action="table.backfill").target == "ws.u"


def test_a_revoked_key_stops_the_job(lance, table):
    from catalog.models import ApiKey

    job_id = lance.post(PATH, {"column": "twice"}, status=202)["job_id"]
    api_keys.revoke_api_key(actor=SYSTEM, key=ApiKey.objects.get(name="tester"))
    job = run(job_id)
    assert job.status == "failed"
    assert "does not exist" in job.error  # for principals that lost their privileges
    assert set(rows().values()) == {None}


# --- refusals


@shared_cases(
    ("body", "status", "code", "text"),
    [
        ({}, 400, 13, "column"),
        ({"column": ""}, 400, 13, "column"),
        ({"column": None}, 400, 13, "column"),
        ({"column": 5}, 400, 13, "column"),
        ({"column": "nope"}, 404, 12, "Column 'nope' does not exist"),
        ({"column": "twice.deeper"}, 404, 12, "does not exist"),
        ({"column": "id"}, 400, 13, "'id' is not a column that is computed by SQL"),
        ({"column": "."}, 400, 13, "malformed"),
        ({"column": "twice."}, 400, 13, "malformed"),
        ({"column": "`twice"}, 400, 13, "malformed"),
        ({"column": "`twice`x"}, 400, 13, "malformed"),
        ({"column": "twice", "where": "nope > 1"}, 404, 12, "nope"),
        ({"column": "twice", "where": "id >"}, 400, 13, "sql parser error"),
        ({"column": "twice", "where": "id"}, 400, 13, "boolean"),
        ({"column": "twice", "where": "id = 'x' AND"}, 400, 13, "parser"),
        ({"column": "twice", "where": "nofunction(id) = 1"}, 400, 13, "nofunction"),
        ({"column": "twice", "where": "(SELECT 1) = 1"}, 400, 13, ""),
        ({"column": "twice", "where": "sum(id) = 1"}, 400, 13, ""),
        ({"column": "twice", "where": " "}, 400, 13, ""),
        ({"column": "twice", "where": 1}, 400, 13, "where"),
        ({"column": "twice", "read_version": 99}, 404, 11, "no version 99"),
        ({"column": "twice", "read_version": -1}, 404, 11, "no version -1"),
        ({"column": "twice", "read_version": 2, "where": "twice IS NULL"}, 404, 12, "twice"),
        ({"column": "twice", "read_version": "4"}, 400, 13, "read_version"),
        ({"column": "twice", "num_frags": 0}, 400, 13, "'num_frags' is 0"),
        ({"column": "twice", "task_size": -1}, 400, 13, "'task_size' is -1"),
        ({"column": "twice", "task_size": 2**31}, 400, 13, "'task_size'"),
        ({"column": "twice", "where": "id = '\u0000'"}, 400, 13, "NUL"),
        ({"column": "twice", "where": "id = $1"}, 400, 13, "placeholder"),
        ({"column": "twice", "commit_granularity": 0}, 400, 13, "'commit_granularity' is 0"),
        ({"column": "twice", "branch": "nope"}, 404, 22, "nope"),
        ({"column": "twice", "branch": "../x"}, 404, 22, ""),
        ({"column": "twice", "id": ["ws", "other"]}, 400, 13, "id"),
    ],
)
def test_refused(lance, table, body, status, code, text):  # noqa: PLR0917
    lance.refused(status, code, text, PATH, body)


def test_a_missing_table_is_refused(lance, db):
    make_table("ws", "other")
    lance.refused(404, 4, "does not exist", PATH, {"column": "twice"})


def test_a_declared_table(lance, db):
    make_table(*T)
    lance.refused(409, 19, "no data yet", PATH, {"column": "twice"})


def test_an_expression_that_became_invalid_fails(lance, table):
    declare("sum", "id + gone")
    lance.refused(404, 12, "gone", PATH, {"column": "sum"})


def test_a_column_with_another_computation_is_refused(lance, table):
    metadata = {COMPUTED_KEY: "f", COMPUTED_KIND_KEY: "udf"}
    field = pa.field("other", pa.int64(), metadata=metadata)
    lance_commits.write(
        actor=SYSTEM,
        table=T,
        operation=data_operations.AlterTableAddColumns,
        work=lambda dataset: dataset.add_columns([field]),
    )
    lance.refused(400, 13, "is not a column that is computed by SQL", PATH, {"column": "other"})


def test_a_read_only_key(reader, table):
    reader.refused(403, 15, "may not", PATH, {"column": "twice"})
