"""The memory of the server while eight clients of LanceDB insert 200 MB each."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import lancedb
import numpy as np
import pyarrow as pa
import pytest

from tests.clients.test_arrow_streams import MEGABYTE, highest
from tests.live import LiveServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]
CLIENTS = 8
DIMENSIONS = 256
ROWS = 200 * MEGABYTE // (4 * DIMENSIONS)
SCHEMA = pa.schema({"id": pa.int64(), "vector": pa.list_(pa.float32(), DIMENSIONS)})


@pytest.fixture(scope="module")
def server(live_template: None) -> Iterator[LiveServer]:
    with LiveServer() as server:
        yield server


def rows(count: int) -> pa.Table:
    """Random vectors, which cannot be compressed, in one batch."""
    numbers = np.random.default_rng(1).random(count * DIMENSIONS, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), DIMENSIONS)
    return pa.table([pa.array(range(count), pa.int64()), vectors], schema=SCHEMA)


@pytest.mark.parametrize(("batch_rows", "limit"), [(ROWS, 2600), (8192, 600)])
def test_eight_inserts(server: LiveServer, batch_rows: int, limit: int) -> None:
    """``limit`` is in MB. Two streams of each web process are read at a time; the others wait."""
    database = f"rows{batch_rows}"
    catalog = lancedb.connect_catalog(server.url, api_key=server.key)
    db = catalog.create_database(database)
    batches = rows(ROWS).to_batches(max_chunksize=batch_rows)
    tables = [db.create_table(f"t{number}", rows(1)) for number in range(CLIENTS)]

    def insert(table: lancedb.table.Table) -> int:
        table.add(pa.RecordBatchReader.from_batches(SCHEMA, batches))
        return table.count_rows()

    before = sum(server.resident())
    with ThreadPoolExecutor(CLIENTS) as threads:
        _, counts = highest(server, lambda: list(threads.map(insert, tables)))
    assert counts == [ROWS + 1] * CLIENTS
    used = (highest.peak - before) / MEGABYTE  # type: ignore[attr-defined]
    print(f"batches of {batch_rows} rows: {CLIENTS} x 200 MB inserted with {used:.0f} MB")
    assert used < limit
