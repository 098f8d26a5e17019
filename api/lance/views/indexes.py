"""Indexes: creating, listing, describing and dropping them."""

import dataclasses
import json
from typing import ClassVar

from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier, fold
from catalog.services.lance.indexes import indexes as lance_indexes
from catalog.services.lance.indexes.index_plans import NewIndex
from catalog.services.lance.indexes.indexes import IndexSummary

_Created = type[m.CreateTableIndexResponse | m.CreateTableScalarIndexResponse]
_PARAMETERS = {field.name for field in dataclasses.fields(NewIndex)}


class CreateTableIndex(LanceOperation):
    """Create a vector, scalar or full-text index on a column.

    An index on a large table is built by a job; DescribeTransaction returns its status by the id in
    the answer.
    """

    needs_data = True
    request_model = m.CreateTableIndexRequest
    response_model: ClassVar[_Created] = m.CreateTableIndexResponse
    changes = True
    scalar_only: ClassVar[bool] = False

    def handle(
        self, actor: Principal, body: m.CreateTableIndexRequest, *, id: Identifier
    ) -> m.CreateTableIndexResponse | m.CreateTableScalarIndexResponse:
        transaction_id = lance_indexes.create_index(
            actor=actor,
            table=id,
            index=NewIndex(**body.model_dump(include=_PARAMETERS)),
            branch=branch_name(body.branch),
            scalar_only=self.scalar_only,
        )
        return self.response_model(transaction_id=transaction_id)


class CreateTableScalarIndex(CreateTableIndex):
    """Create a scalar or full-text index on a column.

    The same as CreateTableIndex without the vector indexes. An index on a large table is built by a
    job.
    """

    needs_data = True
    response_model = m.CreateTableScalarIndexResponse
    scalar_only = True


class ListTableIndices(LanceOperation):
    """List the indexes of a table.

    Sorted by name, for the newest version or a given one, and including indexes that a job is
    building.
    """

    needs_data = True
    request_model = m.ListTableIndicesRequest
    response_model = m.ListTableIndicesResponse

    def handle(
        self, actor: Principal, body: m.ListTableIndicesRequest, *, id: Identifier
    ) -> m.ListTableIndicesResponse:
        indexes, page_token = lance_indexes.list_indexes(
            actor=actor,
            table=id,
            version=body.version,
            branch=branch_name(body.branch),
            limit=body.limit,
            page_token=body.page_token,
        )
        return m.ListTableIndicesResponse(
            indexes=[_content(index) for index in indexes], page_token=page_token
        )


class DescribeTableIndexStats(LanceOperation):
    """Describe an index of a table.

    Returns its type, its distance type, and the number of rows that it covers and does not cover
    yet.
    """

    needs_data = True
    request_model = m.DescribeTableIndexStatsRequest
    response_model = m.DescribeTableIndexStatsResponse

    def handle(
        self,
        actor: Principal,
        body: m.DescribeTableIndexStatsRequest,
        *,
        id: Identifier,
        index_name: str,
    ) -> m.DescribeTableIndexStatsResponse:
        index = lance_indexes.describe_index(
            actor=actor,
            table=id,
            index=_name(index_name, body.index_name),
            version=body.version,
            branch=branch_name(body.branch),
        )
        return m.DescribeTableIndexStatsResponse(
            distance_type=index.distance_type,
            index_type=index.type,
            num_indexed_rows=index.indexed_rows,
            num_unindexed_rows=index.unindexed_rows,
            num_indices=index.segments,
        )


class DropTableIndex(LanceOperation):
    """Drop an index of a table.

    The index's files stay until the old versions that use them are cleaned up.
    """

    needs_data = True
    request_model = m.DropTableIndexRequest
    response_model = m.DropTableIndexResponse
    documents_body = False
    query = ("branch",)
    changes = True

    def handle(
        self,
        actor: Principal,
        body: m.DropTableIndexRequest,
        *,
        id: Identifier,
        index_name: str,
    ) -> m.DropTableIndexResponse:
        transaction_id = lance_indexes.drop_index(
            actor=actor,
            table=id,
            index=_name(index_name, body.index_name),
            branch=branch_name(self.query_values.get("branch") or body.branch),
        )
        return m.DropTableIndexResponse(transaction_id=transaction_id)


def _name(path: str, repeated: str | None) -> str:
    """The index's name. A body distinguishes '+' and space; a decoded path does not."""
    if repeated is None:
        return path
    if fold((repeated,)) != fold((path,)):
        raise InvalidInput(f"The body's index_name '{repeated}' is not the path's '{path}'")
    return repeated


def _content(index: IndexSummary) -> m.IndexContent:
    return m.IndexContent(
        index_name=index.name,
        index_uuid=index.uuid,
        columns=list(index.columns),
        status=index.status,
        index_type=index.type,
        type_url=index.type_url,
        num_indexed_rows=index.indexed_rows,
        num_unindexed_rows=index.unindexed_rows,
        size_bytes=index.size_bytes,
        num_segments=index.segments,
        created_at=index.created_at,
        index_version=index.format_version,
        index_details=None if index.details is None else json.dumps(index.details),
    )
