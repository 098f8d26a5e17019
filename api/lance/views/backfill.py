"""Backfills: jobs that fill computed columns."""

from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import backfill as lance_backfill
from catalog.services.lance.backfill import Backfill


class AlterTableBackfillColumns(LanceOperation):
    """Start a job that fills a computed column.

    The answer has the job's id; DescribeTransaction returns its status. The server uses ``column``,
    ``where``, ``branch``, ``read_version``, ``num_frags`` (the largest number of fragments to
    fill), ``task_size`` (rows to evaluate at once) and ``commit_granularity`` (fragments in a
    commit). The other fields are hints for clusters and have no effect.
    """

    needs_data = True
    request_model = m.AlterTableBackfillColumnsRequest
    response_model = m.AlterTableBackfillColumnsResponse
    status = 202
    changes = True

    def handle(
        self, actor: Principal, body: m.AlterTableBackfillColumnsRequest, *, id: Identifier
    ) -> m.AlterTableBackfillColumnsResponse:
        job = lance_backfill.start_backfill(
            actor=actor,
            table=id,
            backfill=Backfill(
                column=body.column,
                where=body.where or None,
                branch=branch_name(body.branch),
                read_version=body.read_version,
                num_frags=body.num_frags,
                task_size=body.task_size,
                commit_granularity=body.commit_granularity,
            ),
        )
        return m.AlterTableBackfillColumnsResponse(job_id=job)
