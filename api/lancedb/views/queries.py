"""Queries: searching, scanning and counting rows, and explaining plans."""

from collections.abc import Mapping
from typing import Any

from api.lance.views import queries as lance
from api.lancedb import queries, schemas
from api.lancedb.operation import DatabaseOperation


class QueryTable(DatabaseOperation, lance.QueryTable):
    """Query a table by vectors, by text or by a filter.

    ``vector`` is a list of numbers, or a list of vectors. ``columns`` is a list of names, or a map of
    names to expressions. ``full_text_query.query`` is a text or a structured query. The answer is an
    Arrow IPC file.
    """

    translates = True
    sent_schema = schemas.QUERY

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return queries.translate(body)


class ExplainTableQueryPlan(DatabaseOperation, lance.ExplainTableQueryPlan):
    """Explain how a query would be executed.

    ``query`` has the form of QueryTable.
    """

    translates = True
    sent_schema = schemas.EXPLAIN

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        query = body.get("query")
        return {**body, "query": queries.translate(query) if isinstance(query, dict) else query}


class AnalyzeTableQueryPlan(DatabaseOperation, lance.AnalyzeTableQueryPlan):
    """Execute a query and measure each step of its plan.

    The request has the form of QueryTable.
    """

    translates = True
    sent_schema = schemas.QUERY

    def translate(self, body: dict[str, Any]) -> Mapping[str, Any]:
        return queries.translate(body)
