"""Queries: searching, scanning and counting rows, and explaining plans."""

from collections.abc import Mapping
from typing import Any

from lance_namespace_urllib3_client import models as m

from api.lance.views import queries as lance
from api.lancedb import queries, schemas
from api.lancedb.operation import DatabaseOperation
from catalog.services.lance.scans.scanners import SearchOptions


class SearchRequest(SearchOptions, m.QueryTableRequest):
    """A query of LanceDB's clients."""


class ExplainRequest(m.ExplainTableQueryPlanRequest):
    """The query to explain."""

    query: SearchRequest


class AnalyzeRequest(SearchOptions, m.AnalyzeTableQueryPlanRequest):
    """The query to execute and measure."""


class QueryTable(DatabaseOperation, lance.QueryTable):
    """Query a table by vectors, by text or by a filter.

    ``vector`` is a list of numbers, or a list of vectors. ``columns`` is a list of names, or a map of
    names to expressions. ``full_text_query.query`` is a text or a structured query. The answer is an
    Arrow IPC file.
    """

    translates = True
    request_model = SearchRequest
    sent_schema = schemas.QUERY

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return queries.translate(body)

    def answer_key(self) -> bytes:
        # The same body has another meaning in the Lance protocol.
        return b"lancedb " + super().answer_key()


class ExplainTableQueryPlan(DatabaseOperation, lance.ExplainTableQueryPlan):
    """Explain how a query would be executed.

    ``query`` has the form of QueryTable.
    """

    translates = True
    request_model = ExplainRequest
    sent_schema = schemas.EXPLAIN

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        query = body.get("query")
        return {**body, "query": queries.translate(query) if isinstance(query, dict) else query}


class AnalyzeTableQueryPlan(DatabaseOperation, lance.AnalyzeTableQueryPlan):
    """Execute a query and measure each step of its plan.

    The request has the form of QueryTable.
    """

    translates = True
    request_model = AnalyzeRequest
    sent_schema = schemas.QUERY

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return queries.translate(body)
