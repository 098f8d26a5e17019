"""Columns: adding columns with or without values, and filling computed columns."""

import pyarrow as pa
from lance_namespace_urllib3_client import models as m

from api.lance.arrow import ArrowOperation
from api.lance.views import backfill as lance_backfill
from api.lance.views import columns as lance
from api.lancedb.operation import DatabaseOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import schemas
from catalog.services.maintenance import job_control


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


class AlterTableBackfillColumns(DatabaseOperation, lance_backfill.AlterTableBackfillColumns):
    """Start a job that fills a computed column of a table.

    The answer has the ``job_id`` that DescribeJob and CancelJob take.
    """

    def handle(
        self, actor: Principal, body: m.AlterTableBackfillColumnsRequest, *, id: Identifier
    ) -> m.AlterTableBackfillColumnsResponse:
        answer = super().handle(actor, body, id=id)
        job = job_control.find_job_of_transaction(actor=actor, transaction=answer.job_id)
        return answer if job is None else m.AlterTableBackfillColumnsResponse(job_id=str(job.pk))
