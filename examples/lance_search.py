"""What a server does with Lance tables, over HTTP: images to search, words to find, a tag, and a view.

The images are scikit-learn's handwritten digits, sent as an Arrow stream.
"""

import base64
import time
from collections.abc import Mapping

import lance
import pyarrow as pa
from lance.namespace import RestNamespace
from lance_namespace import (
    CountTableRowsRequest,
    CreateMaterializedViewRequest,
    CreateNamespaceRequest,
    CreateTableIndexRequest,
    CreateTableRequest,
    CreateTableTagRequest,
    DescribeTransactionRequest,
    DropTableRequest,
    ListTableIndicesRequest,
    ListTableTagsRequest,
    TableExistsRequest,
)
from lance_namespace.errors import TableNotFoundError

from examples.flights import DemoError

NAMESPACE = "digits"
IMAGES = [NAMESPACE, "images"]
TAG = "first_quarter"
VIEW = "late_flights"
LATE = "dep_delay > 60"
_COLUMNS = ("carrier", "flight", "origin", "dest", "dep_delay")
_PATIENCE_SECONDS = 60.0


def load(ns: RestNamespace, flights_space: str, *, replace: bool) -> int:
    """Create missing objects; return how many of the two tables already existed."""
    present = load_images(ns, replace=replace)
    create_index(ns, IMAGES, "pixels", {"index_type": "IVF_PQ", "num_partitions": 8})
    create_index(ns, [flights_space, "airports"], "name", {"index_type": "FTS"})
    create_tag(ns, [flights_space, "flights"])
    return present + create_view(ns, flights_space, replace=replace)


def digits() -> pa.Table:
    """1,797 images of 8 by 8 pixels, and which digit each shows."""
    from sklearn.datasets import load_digits  # takes a second

    data = load_digits()
    pixels = pa.array(data.data.astype("float32").ravel())
    return pa.table(
        {
            "id": pa.array(range(len(data.data)), pa.int64()),
            "digit": pa.array(data.target, pa.int64()),
            "pixels": pa.FixedSizeListArray.from_arrays(pixels, 64),
        }
    )


def load_images(ns: RestNamespace, *, replace: bool) -> int:
    ns.create_namespace(CreateNamespaceRequest(id=[NAMESPACE], mode="ExistOk"))
    rows = digits()
    if not replace and exists(ns, IMAGES) and count(ns, IMAGES) == rows.num_rows:
        print(f"  images    is there: {rows.num_rows:,} rows")
        return 1
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    made = ns.create_table(
        CreateTableRequest(id=IMAGES, mode="Overwrite"), sink.getvalue().to_pybytes()
    )
    print(f"  images             {rows.num_rows:>7,} rows   version {made.version:>2}")
    return 0


def create_index(
    ns: RestNamespace, table: list[str], column: str, options: Mapping[str, object]
) -> None:
    name = f"{column}_idx"
    listed = ns.list_table_indices(ListTableIndicesRequest(id=table)).indexes
    if name not in [index.index_name for index in listed]:
        ns.create_table_index(
            CreateTableIndexRequest(id=table, column=column, name=name, **options)
        )
        print(f"  {name}, an index of {'.'.join(table)}: {options['index_type']}")


def create_tag(ns: RestNamespace, table: list[str]) -> None:
    """Name the version of the flights that ends with March."""
    if TAG not in ns.list_table_tags(ListTableTagsRequest(id=table)).tags:
        ns.create_table_tag(CreateTableTagRequest(id=table, tag=TAG, version=3))
        print(f"  {TAG}, a tag of {'.'.join(table)}")


def create_view(ns: RestNamespace, space: str, *, replace: bool) -> int:
    """A materialized view of the flights that left an hour late; a worker fills it."""
    view, source = [space, VIEW], [space, "flights"]
    if exists(ns, view):
        rows = count(ns, view)
        if not replace and rows == count(ns, source, LATE):
            print(f"  {VIEW} is there: {rows:,} rows, a materialized view")
            return 1
        ns.drop_table(DropTableRequest(id=view))
    flights = lance.dataset(namespace_client=ns, table_id=source).schema
    schema = pa.schema([flights.field(name) for name in _COLUMNS])
    made = ns.create_materialized_view(
        CreateMaterializedViewRequest(
            id=view,
            kind="query",
            source_query=f"SELECT {', '.join(_COLUMNS)} FROM {'.'.join(source)} WHERE {LATE}",
            output_schema=base64.b64encode(schema.serialize()).decode(),
            with_no_data=False,
        )
    )
    wait(ns, made.job_id)
    print(f"  {VIEW}       {count(ns, view):>7,} rows   a materialized view")
    return 0


def wait(ns: RestNamespace, job: str) -> None:
    """Wait until a worker has finished a job. Raises DemoError if it fails or does not start."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        transaction = ns.describe_transaction(DescribeTransactionRequest(id=[job]))
        if transaction.status == "Succeeded":
            return
        if transaction.status not in ("Queued", "Running"):
            raise DemoError(
                f"Filling the view {VIEW} {transaction.status.lower()}: {transaction.properties}"
            )
        if time.monotonic() > deadline:
            raise DemoError(f"No worker has filled the view {VIEW}. Does `make up` still run?")
        time.sleep(0.1)


def exists(ns: RestNamespace, table: list[str]) -> bool:
    try:
        ns.table_exists(TableExistsRequest(id=table))
    except TableNotFoundError:
        return False
    return True


def count(ns: RestNamespace, table: list[str], predicate: str | None = None) -> int:
    request = CountTableRowsRequest(id=table, predicate=predicate)
    return int(ns.count_table_rows(request).count)
