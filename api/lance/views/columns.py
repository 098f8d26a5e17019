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
    """Replace the metadata of the schema; request and answer are the bare map."""

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
    """Merge into the metadata of fields, or replace it; null deletes a key."""

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
    """Add columns by SQL expressions, evaluated now or by later backfills."""

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
    """Rename columns, change their types, and whether they may be null."""

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
    """Drop columns, also those inside of others."""

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
    """Make a new version with the content of an old one."""

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
    """Count a table's rows, bytes, indexes and fragments."""

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
