"""A small file that expands to gigabytes. `python -m tests.catalog.row_reader.bombs` writes it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PARQUET = Path(__file__).with_name("bomb.parquet")
"""A file of a kilobyte whose only row has a list of 0.8 GB.

The numbers of its fields are 1 for `id`, 2 for `numbers` and 3 for their elements. Writing it takes
gigabytes, and seconds of a processor.
"""


def _write() -> None:
    length = 100_000_000
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int8)), pa.array([0]))
    member = pa.field("element", values.type, metadata={"PARQUET:field_id": "3"})
    column = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), values)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
            pa.field("numbers", pa.list_(member), metadata={"PARQUET:field_id": "2"}),
        ]
    )
    table = pa.table([pa.array([1]), column.cast(pa.list_(member))], schema=schema)
    pq.write_table(table, PARQUET, compression="zstd", data_page_size=2**40, store_schema=False)
    assert PARQUET.stat().st_size < 2000


if __name__ == "__main__":
    _write()
