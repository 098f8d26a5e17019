"""Columns: adding, changing and dropping them, metadata, old versions, statistics."""

from dataclasses import asdict
from typing import Any

from lance_namespace_urllib3_client import models as m
from pydantic import RootModel, StrictStr

from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import describe as lance_describe
from catalog.services.lance import metadata as lance_metadata
from catalog.services.lance import schemas as lance_schemas
from catalog.services.lance.metadata import FieldMetadata
from catalog.services.lance.schemas import Alteration, NewColumn

_MAP = {"type": "object", "additionalProperties": {"type": "string"}}


class _Map(RootModel[dict[str, StrictStr]]):
    """The bare map that REST has in the place of the request's model."""


class _AlterColumnsEntry(m.AlterColumnsEntry):
    """The same, but a type may also be a bare name, as the reference server takes it."""

    data_type: dict[str, Any] | StrictStr | None = None  # type: ignore[assignment]


class _AlterTableAlterColumnsRequest(m.AlterTableAlterColumnsRequest):
    alterations: list[_AlterColumnsEntry]  # type: ignore[assignment]


class UpdateTableSchemaMetadata(LanceOperation):
    """Replace the metadata of a table's schema.

    Request and answer are the bare map of strings. The change is a new version of the table.
    """

    needs_data = True
    request_schema = _MAP
    response_schema = _MAP
    query = ("branch",)
    changes = True

    def _parse(self) -> _Map:
        return self.read(_Map)

    def handle(self, actor: Principal, body: _Map, *, id: Identifier) -> dict[str, str]:
        return lance_metadata.update_schema_metadata(
            actor=actor,
            table=id,
            metadata=body.root,
            branch=branch_name(self.query_values.get("branch")),
        ).result


class UpdateFieldMetadata(LanceOperation):
    """Change the metadata of columns.

    Each entry names a column by its path. Its keys are merged into the column's metadata, or
    replace it if ``replace`` is true. A null value deletes a key. The change is a new version of
    the table.
    """

    needs_data = True
    request_model = m.UpdateFieldMetadataRequest
    response_model = m.UpdateFieldMetadataResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.UpdateFieldMetadataRequest, *, id: Identifier
    ) -> m.UpdateFieldMetadataResponse:
        written = lance_metadata.update_field_metadata(
            actor=actor,
            table=id,
            updates=[
                FieldMetadata(entry.path, entry.metadata, entry.replace is True)
                for entry in body.updates
            ],
            branch=branch_name(body.branch),
        )
        return m.UpdateFieldMetadataResponse(version=written.version, fields=written.result)


class AlterTableAddColumns(LanceOperation):
    """Add columns to a table.

    The values come from an SQL expression, which is evaluated at once, or, for a computed column,
    in later backfills. The change is a new version of the table.
    """

    needs_data = True
    request_model = m.AlterTableAddColumnsRequest
    response_model = m.AlterTableAddColumnsResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.AlterTableAddColumnsRequest, *, id: Identifier
    ) -> m.AlterTableAddColumnsResponse:
        written = lance_schemas.add_columns(
            actor=actor,
            table=id,
            columns=[
                NewColumn(
                    entry.name, entry.expression, entry.computed, entry.virtual_column is not None
                )
                for entry in body.new_columns
            ],
            branch=branch_name(body.branch),
        )
        return m.AlterTableAddColumnsResponse(version=written.version)


class AlterTableAlterColumns(LanceOperation):
    """Rename columns, or change their types and whether they may be null.

    A type is an object as in the specification, or a bare name such as ``int64``. The change is a
    new version of the table.
    """

    needs_data = True
    request_model = m.AlterTableAlterColumnsRequest
    response_model = m.AlterTableAlterColumnsResponse
    changes = True

    def _parse(self) -> _AlterTableAlterColumnsRequest:
        return self.read(_AlterTableAlterColumnsRequest)

    def handle(
        self, actor: Principal, body: _AlterTableAlterColumnsRequest, *, id: Identifier
    ) -> m.AlterTableAlterColumnsResponse:
        written = lance_schemas.alter_columns(
            actor=actor,
            table=id,
            alterations=[
                Alteration(
                    path=entry.path,
                    rename=entry.rename,
                    nullable=entry.nullable,
                    data_type=entry.data_type,
                    is_virtual=entry.virtual_column is not None,
                )
                for entry in body.alterations
            ],
            branch=branch_name(body.branch),
        )
        return m.AlterTableAlterColumnsResponse(version=written.version)


class AlterTableDropColumns(LanceOperation):
    """Drop columns of a table.

    A path such as ``point.x`` drops a field inside a struct. Older versions keep the columns.
    """

    needs_data = True
    request_model = m.AlterTableDropColumnsRequest
    response_model = m.AlterTableDropColumnsResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.AlterTableDropColumnsRequest, *, id: Identifier
    ) -> m.AlterTableDropColumnsResponse:
        written = lance_schemas.drop_columns(
            actor=actor, table=id, columns=body.columns, branch=branch_name(body.branch)
        )
        return m.AlterTableDropColumnsResponse(
            version=written.version, transaction_id=written.transaction_id
        )


class RestoreTable(LanceOperation):
    """Restore an old version of a table.

    The table gets a new version with the content of the old one. No version is removed.
    """

    request_model = m.RestoreTableRequest
    response_model = m.RestoreTableResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.RestoreTableRequest, *, id: Identifier
    ) -> m.RestoreTableResponse:
        written = lance_metadata.restore(
            actor=actor, table=id, version=body.version, branch=branch_name(body.branch)
        )
        return m.RestoreTableResponse(transaction_id=written.transaction_id)


class GetTableStats(LanceOperation):
    """Return the size of a table.

    Counts the rows, bytes, indexes and fragments of the newest version, and tells how long the
    fragments are.
    """

    needs_data = True
    request_model = m.GetTableStatsRequest
    response_model = m.GetTableStatsResponse

    def handle(
        self, actor: Principal, body: m.GetTableStatsRequest, *, id: Identifier
    ) -> m.GetTableStatsResponse:
        stats = lance_describe.get_stats(actor=actor, table=id, branch=branch_name(body.branch))
        return m.GetTableStatsResponse(
            total_bytes=stats.total_bytes,
            num_rows=stats.num_rows,
            num_indices=stats.num_indices,
            fragment_stats=m.FragmentStats(
                num_fragments=stats.num_fragments,
                num_small_fragments=stats.num_small_fragments,
                lengths=m.FragmentSummary(**asdict(stats.lengths)),
            ),
        )
