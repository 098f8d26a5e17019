"""Queries: searching, scanning and counting rows, and explaining plans."""

import re
from typing import Any, ClassVar

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from lance_namespace_urllib3_client import models as m

from api.lance.arrow import FILE_TYPE, file_response
from api.lance.operation import LanceOperation
from catalog import identifiers
from catalog.access import Principal
from catalog.errors import ContradictoryInput
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import datasets
from catalog.services.lance import queries as lance_queries

# A quotation mark inside a text has a backslash before it, so this is always a key.
_NO_VECTOR = re.compile(rb'"vector"\s*:\s*null\b')
_TEXT = {"type": "string"}


class _QueryOperation(LanceOperation):
    _content: bytes | None = None

    def content(self) -> bytes:
        """The body; a vector may be null by the specification, but not by its models."""
        if self._content is None:
            self._content = _NO_VECTOR.sub(b'"vector":{}', super().content())
        return self._content


class QueryTable(_QueryOperation):
    """Query a table by vectors, by text or by a filter.

    The answer is an Arrow IPC file with the rows. Without a vector and a text, the rows are
    scanned.
    """

    needs_data = True
    request_model = m.QueryTableRequest
    answer_type = FILE_TYPE

    def answer_key(self) -> bytes:
        """All that the answer depends on, besides the version of the table."""
        return self.content()

    def handle(
        self, actor: Principal, body: m.QueryTableRequest, *, id: Identifier
    ) -> HttpResponseBase:
        snapshot = lance_queries.find(
            actor=actor, table=id, query=body, branch=branch_name(body.branch)
        )
        request = self.answer_key()
        cached = datasets.cached_answer(snapshot, request)
        if cached is not None:
            return HttpResponse(cached, content_type=FILE_TYPE)
        rows = lance_queries.query(actor=actor, snapshot=snapshot, query=body)
        response = file_response(rows.schema, rows.batches)
        if isinstance(response, HttpResponse) and rows.may_be_cached:
            has_expressions = body.filter or body.columns
            expressions = f"{body.filter} {body.columns}" if has_expressions else ""
            datasets.cache_answer(snapshot, request, response.content, expressions=expressions)
        return response


class CountTableRows(LanceOperation):
    """Count the rows of a table.

    Counts all rows of a version, or those that ``predicate`` selects. The answer is the bare
    number.
    """

    needs_data = True
    request_model = m.CountTableRowsRequest
    response_schema: ClassVar[dict[str, Any]] = {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
    }

    def handle(self, actor: Principal, body: m.CountTableRowsRequest, *, id: Identifier) -> int:
        return lance_queries.count_rows(
            actor=actor,
            table=id,
            predicate=body.predicate,
            version=body.version,
            branch=branch_name(body.branch),
        )


class ExplainTableQueryPlan(_QueryOperation):
    """Explain how a query would be executed.

    The query is not executed. The answer is the plan as bare text.
    """

    needs_data = True
    request_model = m.ExplainTableQueryPlanRequest
    response_schema = _TEXT

    def handle(
        self, actor: Principal, body: m.ExplainTableQueryPlanRequest, *, id: Identifier
    ) -> str:
        repeated = body.query.id
        if repeated is not None:
            named = self.absolute(tuple(repeated))
            if identifiers.fold(named) != identifiers.fold(id):
                raise ContradictoryInput(f"The query's id {list(named)} is not the id {list(id)}")
        branches = {branch_name(name) for name in (body.branch, body.query.branch) if name}
        if len(branches) > 1:
            raise ContradictoryInput("The request and its query name different branches")
        return lance_queries.explain(
            actor=actor,
            table=id,
            query=body.query,
            branch=branches.pop() if branches else "",
            is_verbose=body.verbose is True,
        )


class AnalyzeTableQueryPlan(_QueryOperation):
    """Execute a query and measure each step of its plan.

    The answer is the plan with its figures as bare text, without the rows.
    """

    needs_data = True
    request_model = m.AnalyzeTableQueryPlanRequest
    response_schema = _TEXT

    def handle(
        self, actor: Principal, body: m.AnalyzeTableQueryPlanRequest, *, id: Identifier
    ) -> str:
        return lance_queries.analyze(
            actor=actor, table=id, query=body, branch=branch_name(body.branch)
        )
