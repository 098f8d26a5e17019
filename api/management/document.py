"""The OpenAPI document of the management API."""

from collections.abc import Iterator
from typing import Any, ClassVar

from api.management import errors
from api.management import messages as m
from api.management.operation import ManagementOperation
from api.management.urls import ROUTES
from api.openapi import API_KEY, BEARER, Described, ProtocolSchemaGenerator
from catalog.models import JobStatus, TableFormat, job_kinds
from catalog.services.maintenance import health, job_control
from catalog.services.search import query as search_query

_ID = "The names from the root down, joined by the delimiter. The delimiter alone is the root."
_PATH: dict[str, dict[str, Any]] = {
    "id": {"description": _ID, "schema": {"type": "string"}},
    "job": {"schema": {"type": "integer", "minimum": 1}},
    "item": {"schema": {"type": "integer", "minimum": 1}},
    "approval": {"schema": {"type": "integer", "minimum": 1}},
    "label": {"description": "Its key.", "schema": {"type": "string"}},
    "principal": {"description": "Its name: etl, user:ada.", "schema": {"type": "string"}},
    "member": {"description": "The name of a principal.", "schema": {"type": "string"}},
    "key": {"description": "The name of an API key.", "schema": {"type": "string"}},
}


def _count(most: int, default: int | None = None) -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": most}
    return limit if default is None else limit | {"default": default}


_QUERY: dict[str, dict[str, Any]] = {
    "delimiter": {"schema": {"type": "string", "default": "$"}},
    "namespace": {
        "description": "With all below it; spelled as in a path.",
        "schema": {"type": "string"},
    },
    "table": {"description": "Spelled as in a path.", "schema": {"type": "string"}},
    "format": {"schema": {"type": "string", "enum": TableFormat.values}},
    "at": {
        "description": "A time, or the id of a transaction: the state right after it.",
        "schema": {"type": "string"},
    },
    "from": {"description": "As at.", "schema": {"type": "string"}},
    "to": {"description": "As at; not before from.", "schema": {"type": "string"}},
    "max_score": {"schema": {"type": "integer", "minimum": 0, "maximum": 100}},
    "status": {
        "description": f"Some of {', '.join(JobStatus.values)}, between commas.",
        "schema": {"type": "string"},
    },
    "since": {
        "description": "Jobs that are active, or ended since then.",
        "schema": {"type": "string", "format": "date-time"},
    },
    "days": {
        "description": f"Of a table's health {health.MAX_DAYS} at most.",
        "schema": _count(job_control.MAX_DAYS, 30),
    },
    "points": {
        "description": "At most so many measurements, evenly chosen.",
        "schema": _count(health.MAX_POINTS, health.POINTS),
    },
    "limit": {
        "description": f"Larger ones count as {health.MAX_PAGE}.",
        "schema": {"type": "integer", "minimum": 1, "default": health.PAGE_SIZE},
    },
    "q": {
        "description": "What is searched for: words, phrases, filters.",
        "schema": {"type": "string", "maxLength": search_query.MAX_QUERY},
    },
    "page_token": {
        "description": "The next_page_token of the page before.",
        "schema": {"type": "string"},
    },
}


class ManagementSchemaGenerator(ProtocolSchemaGenerator):
    document_title = "Monodon: management"
    document_description = "Policies, health and jobs of maintenance, for tables of both formats."
    security_schemes: ClassVar = {"ApiKeyAuth": API_KEY, "BearerAuth": BEARER}
    security: ClassVar = [{"ApiKeyAuth": []}, {"BearerAuth": []}]
    path_parameters: ClassVar = _PATH
    error_model = m.Problem
    error_media = errors.MEDIA

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        kinds = f"Some of {', '.join(job_kinds())}, between commas."
        self.query_parameters = _QUERY | {
            "kind": {"description": kinds, "schema": {"type": "string"}}
        }

    def routes(self) -> Iterator[tuple[str, type[ManagementOperation]]]:
        for path, operations in ROUTES.items():
            for operation in operations.values():
                yield f"/management/v1/{path}", operation

    def parameters(self, path: str, operation: type[ManagementOperation]) -> list[Described]:
        parameters = super().parameters(path, operation)
        if "{id}" in path or set(operation.query) & {"namespace", "table"}:
            parameters.append({"name": "delimiter", "in": "query", **_QUERY["delimiter"]})
        return parameters

    def answers(self, operation: type[ManagementOperation]) -> dict[str, Described]:
        if operation.media:
            content: Described = {
                media: {"schema": {"type": "string"}} for media in operation.media
            }
            return {"200": {"description": "A file", "content": content}}
        if operation.response_model is None:
            return {"204": {"description": "Success, no content"}}
        content = self.content(operation.response_model)
        status = operation.status
        return {str(status.value): {"description": status.phrase, "content": content}}
