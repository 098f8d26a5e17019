from contextlib import contextmanager, nullcontext
from decimal import Decimal

import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Branch, Table, TableState, TableVersion, Transaction
from catalog.services.engine import commit_queue
from catalog.services.lance import commits as lance_commits
from catalog.services.lance import ledger_namespace
from catalog.services.storage import profiles
from tests.api.client import Lance, stream
from tests.factories import make_lance_table, make_table, open_lance, unchanged

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.operation("InsertIntoTable"),
    pytest.mark.usefixtures("everywhere"),
]
ROWS = pa.table({"id": pa.array([4, 5], pa.int64()), "name": ["d", "e"]})
PATH = "/v1/table/ws$t/insert"


@pytest.fixture(autouse=True)
def _table(everywhere):
    make_lance_table(("ws", "t"))


def rows(version: int | None = None) -> list[dict]:
    return open_lance(Table.objects.get(name="t").location, version).to_table().to_pylist()


def test_rows_are_added_in_one_audited_version(lance):
    added = lance.post(PATH, raw=stream(ROWS))
    assert (added["version"], added["num_inserted_rows"]) == (2, 2)
    assert [row["id"] for row in rows()] == [1, 2, 3, 4, 5]
    event = AuditEvent.objects.get(action="table.insert")
    assert str(event.transaction_id) == added["transaction_id"]
    assert event.after["version"] == 2
    operations = Transaction.objects.get(pk=added["transaction_id"]).operations
    assert [operation["operation"] for operation in operations] == ["InsertIntoTable"]
    assert sorted(TableVersion.objects.values_list("version", flat=True)) == [1, 2]


@pytest.mark.parametrize("mode", ["overwrite", "Overwrite"])
def test_overwrite_keeps_the_history(lance, mode):
    other = pa.table({"other": [1.5]})
    assert lance.post(f"{PATH}?mode={mode}", raw=stream(other))["version"] == 2
    assert rows() == [{"other": 1.5}]
    assert [row["id"] for row in rows(1)] == [1, 2, 3]
    assert AuditEvent.objects.get(action="table.insert").after["mode"] == "overwrite"


def test_a_stream_without_rows_creates_a_version(lance):
    added = lance.post(PATH, raw=stream(ROWS.slice(0, 0)))
    assert (added["version"], added["num_inserted_rows"]) == (2, 0)


def test_missing_columns_are_null(lance):
    lance.post(PATH, raw=stream(ROWS.select(["id"])))
    assert rows()[-1] == {"id": 5, "name": None}


@pytest.mark.parametrize("batches", [1, 200])  # 200 batches are read while they are written
def test_decimals_are_written_at_any_alignment(lance, batches):
    """Lance requires an alignment of 16 bytes, and Arrow sends with 8."""
    numbers = pa.table(
        {
            **{f"n{i}": pa.array([i], pa.int64()) for i in range(3)},
            **{f"d{i}": pa.array([Decimal(i)], pa.decimal128(9, 2)) for i in range(3)},
            "padding": ["x" * 30_000],
        }
    )
    sent = pa.concat_tables([numbers] * batches)
    path = f"{PATH}?mode=overwrite"
    assert lance.post(path, raw=stream(sent))["num_inserted_rows"] == batches
    assert rows() == sent.to_pylist()


def test_string_views_are_written_at_any_alignment(lance):
    views = pa.table(
        {
            **{f"n{i}": pa.array([i], pa.int64()) for i in range(3)},
            **{f"s{i}": pa.array([f"text {i} " * 9], pa.string_view()) for i in range(3)},
            **{f"b{i}": pa.array([b"bytes" * 9], pa.binary_view()) for i in range(3)},
        }
    )
    assert lance.post(f"{PATH}?mode=overwrite", raw=stream(views))["num_inserted_rows"] == 1
    assert rows() == views.to_pylist()


def test_decompression_is_limited(lance):
    zeros = pa.record_batch({"zeros": pa.nulls(8 << 20, pa.int8()).fill_null(0)})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, zeros.schema, options=options) as writer:
        for _ in range(10):
            writer.write_batch(zeros)
    sent = sink.getvalue().to_pybytes()
    assert len(sent) < 1 << 20
    assert lance.post(f"{PATH}?mode=overwrite", raw=sent)["num_inserted_rows"] == 80 << 20


def test_an_insert_creates_the_data_of_a_declared_table(lance):
    make_table("ws", "d")
    added = lance.post("/v1/table/ws$d/insert", raw=stream(ROWS))
    assert (added["version"], added["num_inserted_rows"]) == (1, 2)
    row = Table.objects.get(name="d")
    assert row.state == TableState.LIVE
    assert open_lance(row.location).to_table() == ROWS
    assert AuditEvent.objects.filter(action="table.insert", table_uuid=row.uuid).count() == 1
    assert lance.post("/v1/table/ws$d/insert", raw=stream(ROWS))["version"] == 2


def test_a_branch(lance):
    lance.post("/v1/table/ws$t/branches/create", {"name": "dev"})
    added = lance.post(f"{PATH}?branch=dev", raw=stream(ROWS))
    assert added["num_inserted_rows"] == 2
    assert [row["id"] for row in rows()] == [1, 2, 3]
    assert Branch.objects.get().name == "dev"
    newest = TableVersion.objects.order_by("-pk")[0]
    assert (newest.branch, newest.version) == ("dev", added["version"])
    lance.post(f"{PATH}?branch=main", raw=stream(ROWS))
    assert [row["id"] for row in rows()] == [1, 2, 3, 4, 5]
    lance.refused(404, 22, "no branch 'nope'", f"{PATH}?branch=nope", raw=stream(ROWS))


def test_an_insert_takes_two_statements_besides_the_commit(
    lance, everywhere, monkeypatch, django_assert_num_queries
):
    monkeypatch.setattr(profiles, "_FRESH_SECONDS", 60.0)
    lance.post(PATH, raw=stream(ROWS))
    settled = 0 if everywhere.kind == "local" else 1  # the row of the version, after the move
    with django_assert_num_queries(2 + 2 + settled):  # and its savepoint, in a test
        lance.post(PATH, raw=stream(ROWS))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pa.table({"id": ["x"], "name": ["y"]}), "`id` should have type int64"),
        (pa.table({"id": [1], "name": ["y"], "more": [1]}), "unexpected=[more]"),
        (pa.table({"other": [1]}), "other"),
    ],
)
def test_data_of_another_schema(lance, data, text):
    lance.refused(400, 20, text, PATH, raw=stream(data))


def test_refusals(lance):
    lance.refused(404, 4, "'ws.no' does not exist", "/v1/table/ws$no/insert", raw=stream(ROWS))
    lance.refused(404, 1, "Namespace 'no'", "/v1/table/no$t/insert", raw=stream(ROWS))
    lance.refused(400, 13, "'upsert' is not known", f"{PATH}?mode=upsert", raw=stream(ROWS))
    lance.refused(400, 13, "not a whole Arrow IPC stream", PATH, raw=b"")
    lance.refused(400, 13, "not a whole Arrow IPC stream", PATH, raw=stream(ROWS)[:-40])
    lance.refused(400, 13, "not a whole Arrow IPC stream", PATH, raw=b'{"rows": []}')


def test_a_concurrent_append_is_rebased(lance, monkeypatch):
    insert_meanwhile(monkeypatch, lance, PATH, stream(ROWS))
    added = lance.post(PATH, raw=stream(ROWS))
    assert (added["version"], added["num_inserted_rows"]) == (3, 2)
    assert [row["id"] for row in rows()] == [1, 2, 3, 4, 5, 4, 5]
    assert AuditEvent.objects.filter(action="table.insert").count() == 2


def test_a_concurrent_overwrite(lance, monkeypatch):
    insert_meanwhile(monkeypatch, lance, f"{PATH}?mode=overwrite", stream(ROWS))
    response = lance.call("POST", PATH, raw=stream(ROWS))
    assert (response.status_code, response.json()["code"]) == (409, 14)
    assert "changed by others" in response.json()["error"]
    assert [row["id"] for row in rows()] == [4, 5]


def test_a_concurrent_drop_of_the_table(lance, monkeypatch):
    insert_meanwhile(monkeypatch, lance, "/v1/table/ws$t/drop", b"")
    response = lance.call("POST", PATH, raw=stream(ROWS))
    assert (response.status_code, response.json()["code"]) == (404, 4)
    assert TableVersion.objects.count() == 1


def test_an_unreachable_database_at_the_commit(lance, monkeypatch):
    from django.db import OperationalError

    def unreachable(operations, *, actor):
        raise OperationalError("gone")

    monkeypatch.setattr(ledger_namespace, "commit", unreachable)
    with unchanged():
        response = lance.call("POST", PATH, raw=stream(ROWS))
    assert (response.status_code, response.json()["code"]) == (503, 17)


def insert_meanwhile(monkeypatch, lance: Lance, path: str, raw: bytes) -> None:
    """Execute another request, as another machine would, when the first one is about to commit."""
    monkeypatch.setattr(lance_commits, "turn", lambda _: nullcontext())
    real = ledger_namespace.commit

    def after_a_rival(operations, *, actor):
        monkeypatch.setattr(ledger_namespace, "commit", real)
        assert lance.call("POST", path, raw=raw).status_code == 200
        return real(operations, actor=actor)

    monkeypatch.setattr(ledger_namespace, "commit", after_a_rival)


def test_an_insert_into_local_files_waits_for_its_turn(lance, monkeypatch):
    table = Table.objects.get(name="t")
    monkeypatch.setattr(commit_queue, "_WAIT_SECONDS", 0.05)
    if "://" in table.location:
        with commit_queue.turn(table.uuid):
            assert lance.post(PATH, raw=stream(ROWS))["version"] == 2
        return
    with commit_queue.turn(table.uuid), unchanged():
        refused = lance.call("POST", PATH, raw=stream(ROWS))
    assert (refused.status_code, refused.json()["code"]) == (503, 17)
    assert "Too many commits wait for this table" in refused.json()["error"]
    assert lance.post(PATH, raw=stream(ROWS))["version"] == 2


def test_an_insert_that_has_waited_continues_from_the_newest_version(lance, monkeypatch):
    real = lance_commits.turn

    @contextmanager
    def after_others(name):
        with monkeypatch.context() as patch:
            patch.setattr(lance_commits, "turn", real)
            assert lance.post(PATH, raw=stream(ROWS))["version"] == 2
        with real(name):
            yield

    monkeypatch.setattr(lance_commits, "turn", after_others)
    monkeypatch.setattr(lance_commits, "_WAITED_SECONDS", 0.0)
    expected = 2 if "://" in Table.objects.get(name="t").location else 3
    assert lance.post(PATH, raw=stream(ROWS))["version"] == expected


def test_a_table_without_versions_in_the_ledger(lance):
    TableVersion.objects.update(deleted_at="2026-01-01T00:00Z")  # as older releases allowed
    lance.refused(409, 19, "versions that the catalog does not list", PATH, raw=stream(ROWS))
