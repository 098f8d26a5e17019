"""PyIceberg against a live server, with real files."""

import gzip
import os
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import lance
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance_namespace import CreateNamespaceRequest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    TruncateTransform,
)
from pyiceberg.types import LongType, NestedField, StringType, TimestampType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from tests.clients import pyice, writers
from tests.live import LiveServer

SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=False),
    NestedField(2, "s", StringType(), required=False),
)
Name = tuple[str, ...]


@pytest.fixture
def catalog(live: LiveServer) -> RestCatalog:
    return pyice.connect(live.url, token=live.key)


@pytest.fixture
def space(catalog: RestCatalog, request: pytest.FixtureRequest) -> str:
    """A namespace of the test."""
    name = f"pyiceberg {request.node.name}"
    catalog.create_namespace(name)
    return name


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "s": [f"row {v}" for v in values]})


def read(table: Table, **scan: Any) -> list[int]:
    rows = table.scan(**scan).to_arrow()
    assert rows["s"].to_pylist() == [f"row {n}" for n in rows["n"].to_pylist()]
    return sorted(rows["n"].to_pylist())


def local(uri: str) -> Path:
    assert uri.startswith("file:///")
    return Path(uri.removeprefix("file://"))


# --- credentials -------------------------------------------------------------------------------


def test_a_key_works_as_token_credential_and_header(live: LiveServer, space: str) -> None:
    pyice.connect(live.url, token=live.key).create_table((space, "t"), SCHEMA).append(numbers(1))

    for credentials in (
        {"token": live.key},
        pyice.credential(live.url, live.key),
        {"header.x-api-key": live.key},
    ):
        assert read(pyice.connect(live.url, **credentials).load_table((space, "t"))) == [1], (
            credentials
        )


def test_a_wrong_key_is_refused(live: LiveServer) -> None:
    with pytest.raises(UnauthorizedError):
        pyice.connect(live.url, token="mnd_wrong").list_namespaces()
    with pytest.raises(Exception, match=r"invalid_client|NotAuthorized"):
        pyice.connect(live.url, **pyice.credential(live.url, "mnd_wrong")).list_namespaces()


def test_anonymous_clients_may_read_but_not_write(live_template: None) -> None:
    with LiveServer(workers=1, MONODON_ANONYMOUS="read") as server:
        owner = pyice.connect(server.url, token=server.key)
        owner.create_namespace("open")
        owner.create_table("open.t", SCHEMA).append(numbers(1, 2))

        nobody = pyice.connect(server.url)

        assert read(nobody.load_table("open.t")) == [1, 2]
        with pytest.raises(RESTError):
            nobody.create_table("open.u", SCHEMA)
        with pytest.raises(RESTError):
            nobody.load_table("open.t").append(numbers(3))
        assert owner.list_tables("open") == [("open", "t")]
        assert read(owner.load_table("open.t")) == [1, 2]


# --- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1", "2"])
def test_create_append_overwrite_delete(catalog: RestCatalog, space: str, version: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA, properties={"format-version": version})
    table.append(numbers(1, 2, 3))
    table.append(numbers(4, 5))
    table.delete("n = 2")
    table.overwrite(numbers(40), overwrite_filter="n >= 4")
    table.upsert(numbers(40, 50), join_cols=["n"])

    again = catalog.load_table((space, "t"))

    assert again.metadata == table.metadata
    assert again.format_version == int(version)
    assert again.properties.get("format-version") is None
    assert read(again) == [1, 3, 40, 50]
    contents = [read(again, snapshot_id=entry.snapshot_id) for entry in again.history()]
    assert contents[:3] == [[1, 2, 3], [1, 2, 3, 4, 5], [1, 3, 4, 5]]
    assert read(again, row_filter="n > 3", selected_fields=("n", "s")) == [40, 50]
    again.overwrite(numbers(7))
    assert read(catalog.load_table((space, "t"))) == [7]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_every_commit_writes_a_metadata_file(
    live: LiveServer, catalog: RestCatalog, space: str, codec: str
) -> None:
    properties = {"write.metadata.compression-codec": codec}
    table = catalog.create_table((space, "t"), SCHEMA, properties=properties)
    for value in range(3):
        table.append(numbers(value))

    files = sorted((local(table.location()) / "metadata").glob("*.metadata.json"))

    assert [file.name[:6] for file in files] == ["00000-", "00001-", "00002-", "00003-"]
    assert local(table.metadata_location) == files[-1]
    assert all(file.is_relative_to(live.warehouse) for file in files)
    content = files[-1].read_bytes()
    document = orjson.loads(gzip.decompress(content) if codec == "gzip" else content)
    assert document["current-snapshot-id"] == table.current_snapshot().snapshot_id
    assert [local(e["metadata-file"]) for e in document["metadata-log"]] == files[:-1]


def test_the_schema_evolves(catalog: RestCatalog, space: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA)
    table.append(numbers(1))
    with table.update_schema() as update:
        update.add_column("extra", LongType(), doc="added later")
        update.add_column("when", TimestampType())
    with table.update_schema() as update:
        update.rename_column("s", "text")
        update.move_first("s")
    table.append(pa.table({"text": ["b"], "n": [2], "extra": [20]}))
    with table.update_schema() as update:
        update.delete_column("when")
    with table.update_schema() as update:
        update.union_by_name(pa.schema([("n", pa.int64()), ("more", pa.string())]))

    again = catalog.load_table((space, "t"))

    assert again.schema() == table.schema()
    assert [field.name for field in again.schema().fields] == ["text", "n", "extra", "more"]
    assert again.schema().find_field("text").field_id == 2
    assert again.schema().find_field("more").field_id == 5
    assert len(again.schemas()) == 5
    rows = again.scan().to_arrow().sort_by("n").to_pylist()
    assert rows == [
        {"text": "row 1", "n": 1, "extra": None, "more": None},
        {"text": "b", "n": 2, "extra": 20, "more": None},
    ]


def test_partitions_and_sort_orders_evolve(catalog: RestCatalog, space: str) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(3, "at", TimestampType(), required=False))
    table = catalog.create_table(
        (space, "t"),
        schema,
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s")),
        sort_order=SortOrder(
            SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST)
        ),
    )
    days = pa.array([0, 86_400_000_000, 86_400_000_001], pa.timestamp("us"))
    table.append(numbers(1, 2, 3).append_column("at", days))
    with table.update_spec() as update:
        update.add_field("n", BucketTransform(4), "n_bucket")
        update.add_field("s", TruncateTransform(5), "s_start")
        update.add_field("at", DayTransform(), "day")
        update.remove_field("s")
    with table.update_spec() as update:
        update.rename_field("s_start", "s_begin")
    with table.update_spec() as update:
        # Transforms other than identity need a library that PyIceberg does not install.
        update.remove_field("n_bucket")
        update.remove_field("s_begin")
        update.remove_field("day")
        update.add_identity("n")
    table.append(numbers(4, 5).append_column("at", days[:2]))
    with table.update_sort_order() as order:
        order.asc("s", IdentityTransform(), NullOrder.NULLS_FIRST)

    again = catalog.load_table((space, "t"))

    assert again.metadata == table.metadata
    assert [[field.name for field in spec.fields] for spec in again.specs().values()] == [
        ["s"],
        ["n_bucket", "s_start", "day"],
        ["n_bucket", "s_begin", "day"],
        ["n"],
    ]
    assert again.spec().spec_id == 3
    assert again.metadata.last_partition_id == 1004
    assert [field.source_id for field in again.sort_order().fields] == [2]
    assert read(again) == [1, 2, 3, 4, 5]
    files = again.inspect.files().to_pylist()
    assert sorted(file["spec_id"] for file in files) == [0, 0, 0, 3, 3]
    assert len(list(again.scan(row_filter="n > 3 and s != 'row 1'").plan_files())) == 2
    assert len(list(again.scan(row_filter="s = 'row 1'").plan_files())) == 1


def test_branches_and_tags(catalog: RestCatalog, space: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA)
    table.append(numbers(1))
    first = table.current_snapshot().snapshot_id
    table.append(numbers(2))
    manage = table.manage_snapshots()
    manage.create_tag(first, "beginning").create_branch(first, "dev").commit()
    table.append(numbers(30), branch="dev")
    table.append(numbers(31), branch="dev")

    again = catalog.load_table((space, "t"))

    assert set(again.refs()) == {"main", "beginning", "dev"}
    assert read(again) == [1, 2]
    assert read(again, snapshot_id=again.snapshot_by_name("beginning").snapshot_id) == [1]
    assert sorted(again.scan().use_ref("dev").to_arrow()["n"].to_pylist()) == [1, 30, 31]
    again.manage_snapshots().remove_tag("beginning").remove_branch("dev").commit()
    assert set(catalog.load_table((space, "t")).refs()) == {"main"}
    again.manage_snapshots().rollback_to_snapshot(first).commit()
    assert read(catalog.load_table((space, "t"))) == [1]


def test_a_transaction_is_one_commit(catalog: RestCatalog, space: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA)
    before = table.metadata_location
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.add_column("extra", LongType())
        transaction.set_properties({"owner": "tests", "write.parquet.compression-codec": "zstd"})
        transaction.append(pa.table({"n": [1], "s": ["row 1"], "extra": [10]}))

    again = catalog.load_table((space, "t"))

    assert again.properties["owner"] == "tests"
    assert again.scan().to_arrow().to_pylist() == [{"n": 1, "s": "row 1", "extra": 10}]
    assert [entry.metadata_file for entry in again.metadata.metadata_log] == [before]
    with again.transaction() as transaction:
        transaction.remove_properties("owner")
        transaction.upgrade_table_version(2)
    assert "owner" not in catalog.load_table((space, "t")).properties


def test_a_staged_table_appears_with_its_first_rows(catalog: RestCatalog, space: str) -> None:
    with catalog.create_table_transaction((space, "t"), SCHEMA) as transaction:
        transaction.append(numbers(1, 2))
        assert not catalog.table_exists((space, "t"))

    assert read(catalog.load_table((space, "t"))) == [1, 2]
    late = catalog.create_table_transaction((space, "u"), SCHEMA)
    catalog.create_table((space, "u"), SCHEMA)
    late.append(numbers(3))
    with pytest.raises(CommitFailedException):
        late.commit_transaction()
    assert read(catalog.load_table((space, "u"))) == []


def test_a_stale_writer_is_refused(catalog: RestCatalog, live: LiveServer, space: str) -> None:
    catalog.create_table((space, "t"), SCHEMA)
    stale = catalog.load_table((space, "t"))
    with pyice.connect(live.url, token=live.key).load_table((space, "t")).update_schema() as update:
        update.add_column("one", LongType())

    with (
        pytest.raises(CommitFailedException, match=r"current schema|last assigned field id"),
        stale.update_schema() as update,
    ):
        update.add_column("two", LongType())

    assert catalog.load_table((space, "t")).schema().column_names == ["n", "s", "one"]


def test_expired_snapshots_are_removed(catalog: RestCatalog, space: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA)
    for value in range(4):
        table.append(numbers(value))
    snapshots = [snapshot.snapshot_id for snapshot in table.snapshots()]

    table.maintenance.expire_snapshots().by_ids(snapshots[:2]).commit()

    again = catalog.load_table((space, "t"))
    assert [snapshot.snapshot_id for snapshot in again.snapshots()] == snapshots[2:]
    assert read(again) == [0, 1, 2, 3]


def test_concurrent_appends_of_four_processes_are_all_committed(
    live: LiveServer, catalog: RestCatalog, space: str
) -> None:
    processes, count = 4, 25
    schema = pa.schema({"writer": pa.int64(), "number": pa.int64()})
    catalog.create_table((space, "t"), schema)
    with writers.pool(processes) as pool:
        running: list[Future[int]] = [
            pool.submit(pyice.append, live.url, live.key, (space, "t"), writer, count)
            for writer in range(processes)
        ]
        for future in running:
            future.result(timeout=280)

    table = catalog.load_table((space, "t"))
    rows = table.scan().to_arrow()

    assert sorted(zip(rows["writer"].to_pylist(), rows["number"].to_pylist(), strict=True)) == [
        (writer, number) for writer in range(processes) for number in range(count)
    ]
    assert len(table.snapshots()) == processes * count
    assert [s.sequence_number for s in table.snapshots()] == list(range(1, processes * count + 1))
    # No two commits have the same parent: each snapshot's parent is the previous snapshot.
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    assert [snapshot.parent_snapshot_id for snapshot in table.snapshots()] == [None, *ids[:-1]]


# --- names -------------------------------------------------------------------------------------


def test_namespaces_and_their_properties(catalog: RestCatalog, space: str) -> None:
    name = (space, "below")
    catalog.create_namespace(name, {"owner": "tests", "comment": "first"})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(name)
    catalog.create_namespace_if_not_exists(name)

    summary = catalog.update_namespace_properties(
        name, removals={"owner", "absent"}, updates={"comment": "second", "new": "1"}
    )

    assert (sorted(summary.removed), sorted(summary.updated), summary.missing) == (
        ["owner"],
        ["comment", "new"],
        ["absent"],
    )
    properties = catalog.load_namespace_properties(name)
    assert {k: properties[k] for k in ("comment", "new")} == {"comment": "second", "new": "1"}
    assert "owner" not in properties
    assert catalog.namespace_exists(name)
    assert not catalog.namespace_exists((space, "absent"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.load_namespace_properties((space, "absent"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables((space, "absent"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table((space, "absent", "t"), SCHEMA)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(space)
    catalog.drop_namespace(name)
    assert catalog.list_namespaces(space) == []
    with pytest.raises(NoSuchNamespaceError):
        catalog.drop_namespace(name)


def test_a_table_in_the_location_of_its_namespace(catalog: RestCatalog, space: str) -> None:
    """Trino chooses such locations, and requests few metadata files."""
    location = catalog.load_namespace_properties(space)["location"]
    rows = pa.table({"id": [1, 2]})
    table = catalog.create_table(
        (space, "placed"),
        schema=rows.schema,
        location=f"{location}/placed-0123456789abcdef",
        properties={
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "2",
        },
    )
    for _ in range(5):
        table.append(rows)

    assert table.location() == f"{location}/placed-0123456789abcdef"
    directory = Path(table.location().removeprefix("file://")) / "metadata"
    file_names = sorted(path.name[:5] for path in directory.glob("*.metadata.json"))
    assert file_names == ["00003", "00004", "00005"]
    assert catalog.load_table((space, "placed")).scan().to_arrow().num_rows == 10


def test_namespaces_nest(catalog: RestCatalog, space: str) -> None:
    path: Name = (space,)
    for level in range(1, 5):
        path = (*path, f"level {level}")
        catalog.create_namespace(path)
        catalog.create_table((*path, "t"), SCHEMA).append(numbers(level))

    assert catalog.list_namespaces((space, "level 1")) == [(space, "level 1", "level 2")]
    assert catalog.list_tables(path) == [(*path, "t")]
    assert read(catalog.load_table((*path, "t"))) == [4]
    assert read(catalog.load_table((*path[:3], "t"))) == [2]
    assert (space,) in catalog.list_namespaces()


def test_lists_are_read_page_by_page(live: LiveServer, catalog: RestCatalog, space: str) -> None:
    paged = pyice.connect(live.url, token=live.key, **{"rest-page-size": "2"})
    names = [f"t{number}" for number in range(5)]
    for name in names:
        catalog.create_table((space, name), SCHEMA)
        catalog.create_namespace((space, f"in {name}"))

    assert paged.list_tables(space) == [(space, name) for name in names]
    assert paged.list_namespaces(space) == [(space, f"in {name}") for name in names]


@pytest.mark.parametrize(
    "name",
    ["a b", "a+b", "a.b", "Größe – 測試", "100%", "ü?x=1&y#z", "a%2Fb"],
    ids=["space", "plus", "dot", "utf8", "percent", "query", "escaped"],
)
def test_unusual_names(catalog: RestCatalog, space: str, name: str) -> None:
    inner = (space, f"in {name}")
    catalog.create_namespace(inner)
    table = catalog.create_table((*inner, name), SCHEMA)
    table.append(numbers(1))
    table.append(numbers(2))

    assert read(catalog.load_table((*inner, name))) == [1, 2]
    assert catalog.list_tables(inner) == [(*inner, name)]
    assert catalog.list_namespaces(space) == [inner]
    assert catalog.table_exists((*inner, name))
    catalog.drop_table((*inner, name))
    assert catalog.list_tables(inner) == []


def test_a_namespace_as_warehouse(live: LiveServer, catalog: RestCatalog, space: str) -> None:
    catalog.create_namespace((space, "prod"))
    prod = pyice.connect(live.url, token=live.key, warehouse=f"{space}.prod")
    prod.create_namespace("sales")
    prod.create_table("sales.orders", SCHEMA).append(numbers(1))

    assert prod.list_namespaces() == [("sales",)]
    assert prod.list_tables("sales") == [("sales", "orders")]
    assert read(catalog.load_table((space, "prod", "sales", "orders"))) == [1]
    assert prod.load_table("sales.orders").name() == ("sales", "orders")
    prod.rename_table("sales.orders", "sales.sold")
    assert catalog.list_tables((space, "prod", "sales")) == [(space, "prod", "sales", "sold")]
    with pytest.raises(NoSuchNamespaceError):
        prod.list_tables(space)
    with pytest.raises(RESTError, match="no-such-warehouse"):
        pyice.connect(live.url, token=live.key, warehouse="no-such-warehouse")


def test_rename(catalog: RestCatalog, space: str) -> None:
    catalog.create_namespace((space, "other"))
    catalog.create_table((space, "t"), SCHEMA).append(numbers(1))
    catalog.create_table((space, "taken"), SCHEMA)

    renamed = catalog.rename_table((space, "t"), (space, "other", "u"))

    assert read(renamed) == [1]
    renamed.append(numbers(2))
    assert read(catalog.load_table((space, "other", "u"))) == [1, 2]
    assert not catalog.table_exists((space, "t"))
    with pytest.raises(NoSuchTableError):
        catalog.rename_table((space, "t"), (space, "v"))
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table((space, "other", "u"), (space, "taken"))
    with pytest.raises((NoSuchNamespaceError, NoSuchTableError)):
        catalog.rename_table((space, "other", "u"), (space, "absent", "u"))
    assert catalog.list_tables((space, "other")) == [(space, "other", "u")]


def test_drop_register_and_purge(live: LiveServer, catalog: RestCatalog, space: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA)
    table.append(numbers(1, 2))
    uuid, location = table.metadata.table_uuid, local(table.location())
    catalog.drop_table((space, "t"))
    assert not catalog.table_exists((space, "t"))
    with pytest.raises(NoSuchTableError):
        catalog.drop_table((space, "t"))
    assert local(table.metadata_location).is_file()

    again = catalog.register_table((space, "back"), table.metadata_location)

    assert again.metadata.table_uuid == uuid
    again.append(numbers(3))
    assert read(catalog.load_table((space, "back"))) == [1, 2, 3]
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table((space, "back"), table.metadata_location)
    catalog.purge_table((space, "back"))
    assert not catalog.table_exists((space, "back"))
    _wait_until_empty(live, location)


def _wait_until_empty(live: LiveServer, location: Path, within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while remaining := [name for _, _, names in os.walk(location) for name in names]:
        assert time.monotonic() < deadline, f"{remaining} are still there:\n{live.log}"
        time.sleep(0.1)


def test_a_taken_name_is_refused(catalog: RestCatalog, space: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table((space, "t"), SCHEMA)
    assert catalog.create_table_if_not_exists((space, "t"), SCHEMA).metadata == table.metadata


def test_a_lance_table_is_not_an_iceberg_table(
    live: LiveServer, catalog: RestCatalog, space: str
) -> None:
    ns = live.client()
    ns.create_namespace(CreateNamespaceRequest(id=[space, "both"]))
    lance.write_dataset(numbers(1), namespace_client=ns, table_id=[space, "both", "arrows"])
    catalog.create_table((space, "both", "bergs"), SCHEMA).append(numbers(2))

    assert catalog.list_tables((space, "both")) == [(space, "both", "bergs")]
    assert not catalog.table_exists((space, "both", "arrows"))
    with pytest.raises(NoSuchTableError, match=r"(?i)lance"):
        catalog.load_table((space, "both", "arrows"))
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table((space, "both", "arrows"), SCHEMA)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace((space, "both"))
    dataset = lance.dataset(namespace_client=ns, table_id=[space, "both", "arrows"])
    assert dataset.count_rows() == 1


# --- views -------------------------------------------------------------------------------------


def version_of(sql: str, space: str) -> ViewVersion:
    return ViewVersion(
        version_id=1,
        timestamp_ms=int(time.time() * 1000),
        schema_id=1,
        summary={"engine-name": "tests"},
        representations=[SQLViewRepresentation(type="sql", sql=sql, dialect="duckdb")],
        default_namespace=[space],
    )


def test_views(catalog: RestCatalog, space: str) -> None:
    catalog.create_table((space, "t"), SCHEMA)
    sql = "SELECT n FROM t WHERE n > 1"
    schema = Schema(NestedField(1, "n", LongType(), required=False))

    view = catalog.create_view((space, "v"), schema, version_of(sql, space), properties={"k": "v"})

    assert view.sql_for("duckdb").sql == sql
    assert catalog.list_views(space) == [(space, "v")]
    assert catalog.list_tables(space) == [(space, "t")]
    assert catalog.view_exists((space, "v"))
    assert not catalog.view_exists((space, "t"))
    assert not catalog.table_exists((space, "v"))
    loaded = catalog.load_view((space, "v"))
    assert loaded.metadata == view.metadata
    assert loaded.properties["k"] == "v"
    with pytest.raises(NoSuchTableError):
        catalog.load_table((space, "v"))
    with pytest.raises(NoSuchViewError):
        catalog.load_view((space, "t"))
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table((space, "v"), SCHEMA)
    catalog.drop_view((space, "v"))
    assert catalog.list_views(space) == []
    with pytest.raises(NoSuchViewError):
        catalog.drop_view((space, "v"))


def test_inspect_tables_agree_with_the_content(catalog: RestCatalog, space: str) -> None:
    table = catalog.create_table((space, "t"), SCHEMA)
    table.append(numbers(1))
    table.append(numbers(2, 3))
    again = catalog.load_table((space, "t"))

    assert again.inspect.snapshots()["operation"].to_pylist() == ["append", "append"]
    assert pc.sum(again.inspect.files()["record_count"]).as_py() == 3
    assert again.inspect.refs()["name"].to_pylist() == ["main"]
    assert len(again.inspect.metadata_log_entries()) == 3
