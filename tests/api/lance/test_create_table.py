import json
from pathlib import Path
from urllib.parse import quote

import lance as pylance
import pyarrow as pa
import pytest

from catalog.models import AuditEvent, Job, StagedFile, Table, TableState, TableVersion
from catalog.services.lance import ledger_namespace
from tests.api.client import Lance, stream
from tests.cases import shared_cases
from tests.factories import make_iceberg_table, make_namespace, make_root, make_table, unchanged

pytestmark = [pytest.mark.django_db, pytest.mark.operation("CreateTable")]
ROWS = pa.table({"id": [1, 2, 3], "s": ["x", "y", "z"]})


@pytest.fixture(autouse=True)
def _namespace(lance):
    make_root()
    make_namespace("ws")


def create(lance: Lance, rows: pa.Table = ROWS, query: str = "", name: str = "ws$t") -> dict:
    return lance.post(f"/v1/table/{name}/create{query}", raw=stream(rows))


def test_a_table_with_data(lance, warehouse: Path):
    properties = quote(json.dumps({"team": "a&b", "größe": "ü"}))
    created = create(lance, query=f"?properties={properties}")
    assert created["version"] == 1
    assert created["properties"] == {"team": "a&b", "größe": "ü"}
    assert Path(created["location"]).parent == warehouse
    assert pylance.dataset(created["location"]).to_table() == ROWS
    row = Table.objects.get()
    assert (row.state, row.owner, row.managed_versioning) == (TableState.LIVE, "tester", True)
    version = TableVersion.objects.get()
    assert (version.version, str(version.transaction_id)) == (1, created["transaction_id"])
    event = AuditEvent.objects.get(action="table.create")
    assert (event.target, str(event.transaction_id)) == ("ws.t", created["transaction_id"])
    assert not StagedFile.objects.exists()


def test_it_is_one_transaction(lance):
    created = create(lance)
    described = lance.post(f"/v1/transaction/{created['transaction_id']}/describe", {})
    assert described["status"] == "Succeeded"


def test_an_empty_stream_makes_an_empty_table(lance):
    created = create(lance, ROWS.slice(0, 0))
    table = pylance.dataset(created["location"])
    assert (table.count_rows(), table.schema) == (0, ROWS.schema)


def test_many_batches(lance):
    rows = pa.table({"id": range(1000)})
    created = lance.post("/v1/table/ws$t/create", raw=stream(rows, max_chunksize=7))
    assert pylance.dataset(created["location"]).to_table() == rows


def test_compressed_batches(lance):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, ROWS.schema, options=options) as writer:
        writer.write_table(ROWS)
    created = lance.post("/v1/table/ws$t/create", raw=sink.getvalue().to_pybytes())
    assert pylance.dataset(created["location"]).to_table() == ROWS


@pytest.mark.parametrize("mode", ["", "?mode=create", "?mode=Create"])
def test_a_taken_name_is_refused(lance, mode, warehouse: Path):
    create(lance)
    lance.refused(409, 5, "'ws.t' exists already", f"/v1/table/ws$t/create{mode}", raw=stream(ROWS))
    assert len(list(warehouse.iterdir())) == 1


@pytest.mark.parametrize("mode", ["exist_ok", "ExistOk", "EXISTOK"])
def test_exist_ok_keeps_the_existing_table(lance, mode):
    created = create(lance, query="?properties=%7B%22a%22%3A%22b%22%7D")
    with unchanged():
        existing = create(lance, pa.table({"other": [1]}), f"?mode={mode}")
    assert existing["location"] == created["location"]
    assert (existing["version"], existing["properties"]) == (1, {"a": "b"})
    assert create(lance, query=f"?mode={mode}", name="ws$new")["version"] == 1


def test_exist_ok_of_a_declared_table(lance):
    declared = lance.post("/v1/table/ws$d/declare", {})
    with unchanged():
        existing = create(lance, query="?mode=exist_ok", name="ws$d")
    assert (existing["location"], existing["version"]) == (declared["location"], 0)


@pytest.mark.parametrize("mode", ["overwrite", "Overwrite"])
def test_overwrite_drops_and_creates_in_one_transaction(lance, mode):
    first = create(lance)
    rows = pa.table({"other": [1.5]})
    second = create(lance, rows, f"?mode={mode}")
    assert second["version"] == 1
    assert pylance.dataset(second["location"]).to_table() == rows
    assert first["location"] != second["location"]
    old, new = Table.objects.order_by("pk")
    assert (old.state, new.state) == (TableState.DROPPED, TableState.LIVE)
    assert Job.objects.get().table == old
    assert {str(event.transaction_id) for event in AuditEvent.objects.order_by("-pk")[:2]} == {
        second["transaction_id"]
    }


def test_a_table_of_the_other_format_is_not_replaced(lance):
    make_iceberg_table("ws", "ice")
    for mode in ("create", "exist_ok", "overwrite"):
        status, code = (409, 5) if mode == "create" else (404, 4)
        text = "exists already" if mode == "create" else "does not exist"
        lance.refused(status, code, text, f"/v1/table/ws$ice/create?mode={mode}", raw=stream(ROWS))


def test_a_missing_namespace(lance, warehouse: Path):
    lance.refused(404, 1, "Namespace 'no'", "/v1/table/no$t/create", raw=stream(ROWS))
    assert list(warehouse.iterdir()) == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("?mode=nonsense", "'nonsense' is not known"),
        ("?properties=nonsense", "Query parameter 'properties'"),
        ("?properties=[]", "Query parameter 'properties'"),
        ('?properties={"a":1}', "Query parameter 'properties': a"),
        ('?storage_options={"a":1}', "Query parameter 'storage_options'"),
    ],
)
def test_bad_parameters(lance, query, text):
    lance.refused(400, 13, text, f"/v1/table/ws$t/create{query}", raw=stream(ROWS))


def _with(position: int, byte: int) -> bytes:
    content = bytearray(stream(ROWS))
    content[position] = byte
    return bytes(content)


@shared_cases(
    "raw",
    [
        b"",
        b"nonsense",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        stream(ROWS)[:-30],
        stream(ROWS)[: len(stream(ROWS)) // 2],
        stream(ROWS)[8:],
        b"ARROW1\0\0" + stream(ROWS),
        b"{}" * 100,
    ],
)
def test_invalid_arrow_streams_are_refused(lance, raw, warehouse: Path):
    lance.refused(400, 13, "not a whole Arrow IPC stream", "/v1/table/ws$t/create", raw=raw)
    assert list(warehouse.iterdir()) == []


def test_corrupted_streams_are_refused_or_read(lance, warehouse: Path):
    """Each byte of a small stream is set to other values. The answer is 400, or a table with other
    values."""
    content = stream(pa.table({"s": ["x", "yy"]}))
    outcomes = set()
    for position in range(8, len(content), 3):
        spoiled = bytearray(content)
        spoiled[position] ^= 0x81
        path = f"/v1/table/ws$spoiled{position}/create"
        outcomes.add(lance.call("POST", path, raw=bytes(spoiled)).status_code)
    assert outcomes == {200, 400}
    assert len(list(warehouse.iterdir())) == Table.objects.count()


@pytest.mark.parametrize(
    ("rows", "code", "text"),
    [
        (pa.table({"a.b": [1]}), 13, "cannot contain `.`"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
            13,
            'Duplicate field name "a"',
        ),
        (
            pa.table({"u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}),
            13,
            "Unsupported data type",
        ),
        (
            pa.Table.from_arrays(
                [pa.array([1, None])], schema=pa.schema([pa.field("a", pa.int64(), False)])
            ),
            20,
            "non-nullable but contains null",
        ),
        (pa.table({"a": [1]}).replace_schema_metadata({b"\xff": b"\xfe\x00"}), 13, "utf"),
    ],
    ids=["dot", "duplicate", "union", "null", "metadata"],
)
def test_unsupported_data_is_refused(lance, rows, code, text, warehouse: Path):
    lance.refused(400, code, text, "/v1/table/ws$t/create", raw=stream(rows))
    assert list(warehouse.iterdir()) == []


def test_a_body_over_the_limit_is_refused(lance, settings, warehouse: Path):
    settings.MONODON_MAX_DATA_BYTES = 1000
    many = stream(pa.table({"id": range(1000)}))
    response = lance.refused(413, 13, "more than 1000 bytes", "/v1/table/ws$t/create", raw=many)
    assert "MONODON_MAX_DATA_BYTES" in response.json()["detail"]
    assert list(warehouse.iterdir()) == []
    create(lance)


def test_a_refused_commit_leaves_no_files(lance, monkeypatch, warehouse: Path):
    """Another table takes the name while the data is written."""
    real = ledger_namespace.commit

    def rival(operations, *, actor):
        if not Table.objects.exists():
            make_table("ws", "t")
        return real(operations, actor=actor)

    monkeypatch.setattr(ledger_namespace, "commit", rival)
    response = lance.call("POST", "/v1/table/ws$t/create", raw=stream(ROWS))
    assert (response.status_code, response.json()["code"]) == (409, 5)
    assert list(warehouse.iterdir()) == []
    assert not StagedFile.objects.exists()
    assert not TableVersion.objects.exists()


def test_a_creation_given_up_by_the_sweep_is_not_committed(lance, monkeypatch, warehouse: Path):
    real = ledger_namespace.commit

    def swept(operations, *, actor):
        StagedFile.objects.update(is_condemned=True)
        return real(operations, actor=actor)

    monkeypatch.setattr(ledger_namespace, "commit", swept)
    response = lance.call("POST", "/v1/table/ws$t/create", raw=stream(ROWS))
    assert (response.status_code, response.json()["code"]) == (409, 14)
    assert "took too long" in response.json()["error"]
    assert not Table.objects.exists()
    assert list(warehouse.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a`b", "_rowid"])
def test_unreadable_column_names_are_refused(lance, name, warehouse: Path):
    lance.refused(400, 13, "name", "/v1/table/ws$t/create", raw=stream(pa.table({name: [1]})))
    assert list(warehouse.iterdir()) == []
    create(lance)
    overwrite = "/v1/table/ws$t/insert?mode=overwrite"
    lance.refused(400, 13, "name", overwrite, raw=stream(pa.table({name: [1]})))
    lance.post("/v1/table/ws$d/declare", {})
    lance.refused(400, 13, "name", "/v1/table/ws$d/insert", raw=stream(pa.table({name: [1]})))
