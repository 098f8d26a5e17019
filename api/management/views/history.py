"""Past states of the catalog, and the changes between them."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import history as s
from api.management.viewsets import ManagementViewSet
from catalog.history import parse_moment
from catalog.services.audit import history


class HistoryViewSet(ManagementViewSet):
    resource = "History"
    operation_ids = {"changes_between": "ListChanges", "counts": "CountChanges"}
    query_classes = {
        "retrieve": s.StateQuery,
        "changes_between": s.ChangesPageQuery,
        "counts": s.ChangesQuery,
    }

    @extend_schema(responses=s.StatePageSerializer)
    def retrieve(self, request: Request) -> Response:
        """List the namespaces, tables and views that existed at a moment, with their versions."""
        query = self._moments("at")
        state = history.catalog_at(actor=self.principal, moment=query.pop("at"), **query)
        return Response(s.StatePageSerializer.represent(state))

    @extend_schema(responses=s.ChangesPageSerializer)
    @action(detail=True, methods=["get"], url_path="changes")
    def changes_between(self, request: Request) -> Response:
        """List the changes of namespaces, tables and views between two moments."""
        query = self._moments("from", "to")
        page = history.changes_between(
            actor=self.principal, since=query.pop("from"), until=query.pop("to"), **query
        )
        return Response(s.ChangesPageSerializer.represent(page))

    @extend_schema(responses=s.ChangeCountsSerializer)
    @action(detail=True, methods=["get"])
    def counts(self, request: Request) -> Response:
        """Count the changes of namespaces, tables and views between two moments."""
        query = self._moments("from", "to")
        counts = history.count_changes(
            actor=self.principal, since=query.pop("from"), until=query.pop("to"), **query
        )
        return Response(s.ChangeCountsSerializer.represent(counts))

    def _moments(self, *names: str) -> dict[str, Any]:
        """Return the query with its moments and its namespace parsed."""
        query = self.query()
        query["namespace"] = self.identify(query["namespace"]) if query["namespace"] else ()
        return query | {name: parse_moment(query[name]) for name in names}
