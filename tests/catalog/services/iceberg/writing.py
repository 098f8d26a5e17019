"""PyIceberg writing to tables of this catalog without a server: its commits go to the services."""

from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadataUtil

from catalog.access import SYSTEM
from catalog.services.iceberg import commits as iceberg_commits
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.iceberg.changes import TableChange
from catalog.storage import stores


class _Services(NoopCatalog):
    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        change = TableChange(
            table=table.name(),
            requirements=[one.model_dump(mode="json", by_alias=True) for one in requirements],
            updates=[one.model_dump(mode="json", by_alias=True) for one in updates],
        )
        done = iceberg_commits.commit_table(actor=SYSTEM, change=change)
        return CommitTableResponse.model_validate(
            {"metadata-location": done.metadata_location, "metadata": done.document}
        )


def open_table(*identifier: str) -> Table:
    """The table as PyIceberg has it."""
    found = iceberg_tables.load_table(actor=SYSTEM, table=identifier)
    return Table(
        identifier,
        TableMetadataUtil.parse_obj(found.document),
        found.metadata_location,
        load_file_io(io_properties(found.location), found.metadata_location),
        _Services("services"),
    )


def io_properties(location: str) -> dict[str, str]:
    """PyIceberg's settings for the files of a canonical location."""
    configuration = stores.configuration_of(location)
    if configuration is None:
        return {}
    assert configuration.key is not None
    return {
        "s3.endpoint": configuration.endpoint,
        "s3.region": configuration.region,
        "s3.access-key-id": configuration.key.id,
        "s3.secret-access-key": configuration.key.secret,
        "s3.force-virtual-addressing": "false",
    }


def rows(*ids: int) -> pa.Table:
    """Rows for a table of the factories' schema."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    return pa.Table.from_pylist([{"id": i, "name": f"name {i}"} for i in ids], schema=schema)
