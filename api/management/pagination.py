"""Pages of lists, addressed by tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers.base import PageQuery

List = Callable[..., tuple[Sequence[Any], str | None]]
"""A list function of a service: takes ``limit`` and ``page_token``, returns rows and the next token."""


class TokenPagination(BasePagination):
    """Asks a service for a page. The service knows the order, and what its tokens mean.

    A response has the rows under the view's ``results_field``, and ``next_page_token``, null on the last page.
    """

    results_field = "results"
    query_class = PageQuery
    next_page_token: str | None = None

    def paginate_queryset(  # type: ignore[override]
        self, queryset: List, request: Request, view: Any = None
    ) -> list[Any]:
        """Return the rows of a page. Raises InvalidInput for a bad limit or token."""
        self.results_field = view.results_field
        rows, self.next_page_token = queryset(**self.query_class.read(view.query_values))
        return list(rows)

    def get_paginated_response(self, data: Any) -> Response:
        return Response({self.results_field: data, "next_page_token": self.next_page_token})

    def get_paginated_response_schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": [self.results_field, "next_page_token"],
            "properties": {
                self.results_field: schema,
                "next_page_token": {
                    "type": ["string", "null"],
                    "description": "The token of the next page; null on the last page.",
                    "example": None,
                },
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        return []  # api.management.schema describes all parameters
