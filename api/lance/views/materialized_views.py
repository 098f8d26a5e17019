"""Materialized views: tables that a query over another table fills."""

from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.errors import InvalidInput
from catalog.identifiers import Identifier
from catalog.services.lance.materialized_views import materialized_views, refreshes
from catalog.services.lance.materialized_views.refreshes import Refresh


class CreateMaterializedView(LanceOperation):
    """Create a materialized view.

    The view is a Lance table that a query over another Lance table fills; ``kind`` is ``query``.
    The source query is JSON or SQL, as docs/materialized-views.md describes. Unless
    ``with_no_data`` is false, the view stays empty until its first refresh.
    """

    request_model = m.CreateMaterializedViewRequest
    response_model = m.CreateMaterializedViewResponse
    status = 201
    changes = True

    def handle(
        self, actor: Principal, body: m.CreateMaterializedViewRequest, *, id: Identifier
    ) -> m.CreateMaterializedViewResponse:
        if body.kind == "query" and body.udtf_spec is not None:
            raise InvalidInput("'udtf_spec' must be null when kind is 'query'")
        created = materialized_views.create_view(
            actor=actor,
            table=id,
            kind=body.kind,
            source_query=body.source_query,
            output_schema=body.output_schema,
            with_no_data=body.with_no_data is not False,
            auto_refresh=body.auto_refresh is True,
        )
        return m.CreateMaterializedViewResponse(version=created.version, job_id=created.job)


class RefreshMaterializedView(LanceOperation):
    """Start a job that updates a materialized view from its source.

    The answer has the job's id; DescribeTransaction returns its status. The server uses
    ``src_version`` and ``max_rows_per_fragment``. The other fields are hints for clusters and have
    no effect.
    """

    request_model = m.RefreshMaterializedViewRequest
    response_model = m.RefreshMaterializedViewResponse
    status = 202
    changes = True

    def handle(
        self, actor: Principal, body: m.RefreshMaterializedViewRequest, *, id: Identifier
    ) -> m.RefreshMaterializedViewResponse:
        job = refreshes.start_refresh(
            actor=actor,
            table=id,
            refresh=Refresh(body.src_version, body.max_rows_per_fragment),
            output_limit=body.output_limit,
        )
        return m.RefreshMaterializedViewResponse(job_id=job)
