"""PyIceberg with remote signing, in a process of its own, because s3fs needs another botocore than moto.

`python -m tests.clients.signed_pyiceberg URL KEY NAMESPACE` prints as JSON what PyIceberg did and read.
"""

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import SignError
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from s3fs import S3FileSystem

PART = 5 * 1024**2
_SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
_PROPERTIES = ("s3.signer", "s3.access-key-id")


def main(url: str, key: str, namespace: str) -> dict[str, Any]:
    """Write, read and delete rows and files of two new tables."""
    io = {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    catalog = RestCatalog("signed", uri=url, token=key, **io)
    table = catalog.create_table((namespace, "t"), _SCHEMA)
    table.append(_rows(1, 2))
    table.append(_rows(3))
    other = catalog.create_table((namespace, "u"), _SCHEMA)
    other.append(_rows(7))
    appended = _numbers(table)
    table.delete(EqualTo("n", 1))
    deleted = _numbers(catalog.load_table((namespace, "t")))
    table.overwrite(_rows(4, 5))
    big = f"{table.location()}/data/big"
    with table.io.new_output(big).create() as output:
        for number in range(3):
            output.write(bytes([number]) * PART)
    with table.io.new_input(big).open() as file:
        file.seek(2 * PART - 1)
        middle = list(file.read(2))
    return {
        "properties": {name: table.io.properties.get(name) for name in _PROPERTIES},
        "appended": appended,
        "deleted": deleted,
        "overwritten": _numbers(catalog.load_table((namespace, "t"))),
        "other": _numbers(other),
        "big": [len(table.io.new_input(big)), middle],
        "removal": _error(lambda: table.io.delete(big)),
        "foreign": _error(lambda: table.io.new_input(f"{other.location()}/data").open()),
    }


def _rows(*numbers: int) -> pa.Table:
    return pa.table([numbers, [f"{number}/100%" for number in numbers]], schema=_SCHEMA)


def _numbers(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["n"].to_pylist())


def _error(operation: Callable[[], object]) -> str:
    """The error of an operation; "" if it succeeds."""
    try:
        operation()
    except SignError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    logging.disable()
    S3FileSystem.default_block_size = PART  # several parts, although the file is small
    print(json.dumps(main(*sys.argv[1:])))
