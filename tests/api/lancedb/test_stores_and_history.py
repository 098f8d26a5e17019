"""Tables of the dialect in local files and in an object store, and in the history of the catalog."""

import pyarrow as pa

from catalog.access import SYSTEM
from catalog.models import Table, TableVersion
from catalog.services.access import api_keys
from tests.api.client import stream
from tests.api.lancedb.client import Database
from tests.api.management.client import Management
from tests.factories import make_namespace
from tests.stores.fixtures import Storage

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def rows(*ids: int) -> bytes:
    vectors = pa.array([[float(n), 0.0] for n in ids], pa.list_(pa.float32(), 2))
    return stream(pa.table({"id": pa.array(ids, pa.int64()), "vector": vectors}))


def test_rows_are_written_searched_and_restored(everywhere: Storage):
    make_namespace("zoo")
    key = api_keys.create_api_key(actor=SYSTEM, name="tests")[1]
    client, management = Database(key), Management(key)

    client.post("/v1/table/zoo$animals/create", raw=rows(1, 2, 3), headers=ARROW)
    row = Table.objects.get(name="animals")
    assert row.location.startswith(everywhere.root)
    first = TableVersion.objects.get(table=row, version=1).transaction_id
    client.post("/v1/table/zoo$animals/insert", raw=rows(4, 5), headers=ARROW)
    client.post("/v1/table/zoo$animals/create_index", {"column": "id", "index_type": "BTREE"})
    client.post("/v1/table/zoo$animals/tags/create", {"tag": "all", "version": 2})
    query = {"vector": [4.2, 0.0], "k": 2, "columns": ["id"]}
    answer = client.call("POST", "/v1/table/zoo$animals/query", query)
    assert answer.status_code == 200
    nearest = pa.ipc.open_file(pa.BufferReader(answer.content)).read_all()
    assert nearest["id"].to_pylist() == [4, 5]
    client.post("/v1/table/zoo$animals/delete", {"predicate": "id > 3"})
    assert client.post("/v1/table/zoo$animals/count_rows", {}) == 3
    client.post("/v1/table/zoo$animals/restore", {"version": 2})
    assert client.post("/v1/table/zoo$animals/count_rows", {}) == 5

    (former,) = management.get(f"history?at={first}")["tables"]
    assert (former["table"], former["branches"][0]["version"]) == (["zoo", "animals"], 1)
