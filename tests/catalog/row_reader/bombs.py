"""Small files that expand to gigabytes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(path: Path, *, id_: int = 1, numbers: int = 2, element: int = 3) -> None:
    """A file of a kilobyte whose only row has a list of 1.6 GB; the numbers are field ids."""
    length = 200_000_000
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int8)), pa.array([0]))
    member = pa.field("element", values.type, metadata={"PARQUET:field_id": str(element)})
    column = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), values)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"PARQUET:field_id": str(id_)}),
            pa.field("numbers", pa.list_(member), metadata={"PARQUET:field_id": str(numbers)}),
        ]
    )
    table = pa.table([pa.array([1]), column.cast(pa.list_(member))], schema=schema)
    pq.write_table(table, path, compression="zstd", data_page_size=2**40, store_schema=False)
    assert path.stat().st_size < 2000
