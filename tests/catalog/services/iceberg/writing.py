"""PyIceberg as a writer without a server: its commits call the services."""

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
            requirements=[
                requirement.model_dump(mode="json", by_alias=True) for requirement in requirements
            ],
            updates=[update.model_dump(mode="json", by_alias=True) for update in updates],
        )
        committed = iceberg_commits.commit_table(actor=SYSTEM, change=change)
        return CommitTableResponse.model_validate(
            {"metadata-location": committed.metadata_location, "metadata": committed.document}
        )


def open_table(*identifier: str) -> Table:
    """The table as an object of PyIceberg."""
    loaded = iceberg_tables.load_table(actor=SYSTEM, table=identifier)
    return Table(
        identifier,
        TableMetadataUtil.parse_obj(loaded.document),
        loaded.metadata_location,
        load_file_io(io_properties(loaded.location), loaded.metadata_location),
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
