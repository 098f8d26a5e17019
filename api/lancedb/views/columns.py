"""Columns: adding columns with or without values."""

import pyarrow as pa
from lance_namespace_urllib3_client import models as m

from api.lance.arrow import ArrowOperation
from api.lance.views import columns as lance
from api.lancedb.operation import DatabaseOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import schemas


class AlterTableAddColumns(DatabaseOperation, ArrowOperation, lance.AlterTableAddColumns):
    """Add columns to a table.

    The values come from an SQL expression, as in the Lance protocol. If the body is an Arrow IPC stream
    without rows, its fields become columns without values.
    """

    body_type = lance.AlterTableAddColumns.body_type
    accepts_json = True
    query = ("branch",)

    def handle(
        self,
        actor: Principal,
        body: m.AlterTableAddColumnsRequest | pa.Table | pa.RecordBatchReader,
        *,
        id: Identifier,
    ) -> m.AlterTableAddColumnsResponse:
        if isinstance(body, m.AlterTableAddColumnsRequest):
            return super().handle(actor, body, id=id)
        if not isinstance(body, pa.Table) or body.num_rows:
            raise InvalidInput("The stream that describes new columns must not have rows")
        written = schemas.add_null_columns(
            actor=actor,
            table=id,
            schema=body.schema,
            branch=branch_name(self.query_values.get("branch")),
        )
        return m.AlterTableAddColumnsResponse(version=written.version)
