"""Small files that expand to gigabytes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(path: Path, *, id_: int = 1, numbers: int = 2, element: int = 3) -> None:
    """
    Write a file of a kilobyte whose only row has a list of 0.8 GB.

    The numbers are field ids. Another process writes the file, since writing it takes gigabytes
    that the process would keep.
    """
    arguments = [str(path), str(id_), str(numbers), str(element)]
    subprocess.run([sys.executable, "-m", __name__, *arguments], check=True)
    assert path.stat().st_size < 2000


def _write(path: str, id_: str, numbers: str, element: str) -> None:
    length = 100_000_000
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(length, np.int8)), pa.array([0]))
    member = pa.field("element", values.type, metadata={"PARQUET:field_id": element})
    column = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), values)
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"PARQUET:field_id": id_}),
            pa.field("numbers", pa.list_(member), metadata={"PARQUET:field_id": numbers}),
        ]
    )
    table = pa.table([pa.array([1]), column.cast(pa.list_(member))], schema=schema)
    pq.write_table(table, path, compression="zstd", data_page_size=2**40, store_schema=False)


if __name__ == "__main__":
    _write(*sys.argv[1:])
