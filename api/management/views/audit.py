"""Searches and exports of the audit trail."""

import json
from collections.abc import Sequence
from typing import Any

from django.http import StreamingHttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import events as s
from api.management.serializers.base import EXAMPLES
from api.management.viewsets import ManagementViewSet
from catalog.services.audit import trail

_EXPORTED = OpenApiExample(
    "One line",
    json.dumps(EXAMPLES["ExportedEvent"]),
    response_only=True,
    media_type=trail.FORMATS["jsonl"],
)


class AuditViewSet(ManagementViewSet):
    results_field = "events"
    resource = "Audit"
    operation_ids = {"list": "ListAudit"}
    query_classes = {"list": s.AuditQuery, "export": s.ExportQuery}

    @extend_schema(responses=s.AuditEventSerializer(many=True))
    def list(self, request: Request) -> Response:
        """Search the audit trail, newest events first.

        A page may have fewer than ``limit`` events, or none, although there is a next page.
        """
        search = self._search()

        def rows(**page: Any) -> tuple[Sequence[Any], str | None]:
            events = trail.list_events(actor=self.principal, search=search, **page)
            return events.events, events.next_page_token

        return self.page(rows, s.AuditEventSerializer)

    @extend_schema(
        responses={(200, media): OpenApiTypes.STR for media in trail.FORMATS.values()},
        examples=[_EXPORTED],
    )
    @action(detail=False, methods=["get"])
    def export(self, request: Request) -> StreamingHttpResponse:
        """Export a search of the audit trail as a file, oldest events first.

        The audit trail records the export itself.
        """
        kind = self.query()["format"]
        chunks = trail.export(actor=self.principal, search=self._search(), format=kind)
        name = f"audit-{timezone.now():%Y%m%dT%H%M%SZ}.{kind}"
        return StreamingHttpResponse(
            chunks,
            content_type=trail.FORMATS[kind],
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    def _search(self) -> trail.Search:
        criteria = self.query()
        criteria.pop("format", None)
        table = criteria["table"]
        criteria["table"] = self.identify(table) if table else None
        criteria["transaction_id"] = criteria.pop("transaction")
        for name in ("interface", "outcome"):
            criteria[name] = criteria[name] and criteria[name].value
        return trail.Search(**criteria)
