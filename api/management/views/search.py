"""Search over names, columns, descriptions, labels and owners."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import annotations as s
from api.management.viewsets import ManagementViewSet
from catalog.services.search import search


class SearchViewSet(ManagementViewSet):
    operation_ids = {"retrieve": "Search"}
    query_classes = {"retrieve": s.SearchQuery}

    @extend_schema(responses=s.SearchPageSerializer)
    def retrieve(self, request: Request) -> Response:
        """Search namespaces, tables and views.

        The objects that match the query and that the caller may browse, best first. Words match
        everywhere, the last one as a prefix; "quoted words" match as a phrase. Filters: label:pii=yes,
        owner:ada, column:email, format:lance, kind:view, in:prod.sales, sensitivity:restricted. If
        nothing matches, similar words are searched for.
        """
        query = self.query()
        page = search.search(
            actor=self.principal,
            text=query["q"],
            limit=query["limit"],
            page_token=query["page_token"],
        )
        return Response(s.SearchPageSerializer.represent(page))
