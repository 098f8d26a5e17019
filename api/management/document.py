"""The OpenAPI document of the management API, drawn from the routes and their operations."""

from http import HTTPStatus
from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.plumbing import ResolvedComponent
from pydantic import BaseModel

from api.management import errors
from api.management import messages as m
from api.management.operation import JSON, ManagementOperation
from api.management.urls import ROUTES
from catalog.models import JobStatus, TableFormat, job_kinds
from catalog.services.maintenance import health, job_control
from catalog.services.search import query as search_query

SECURITY_SCHEMES = {
    "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "BearerAuth": {"type": "http", "scheme": "bearer"},
}
_ERRORS = {
    "400": "Malformed request",
    "401": "No valid credentials",
    "403": "Not permitted",
    "404": "Not found",
    "409": "Conflict with the current state",
    "503": "Try again later",
    "5XX": "Server error",
}
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


class ManagementSchemaGenerator(SchemaGenerator):
    """Describes the routes as they are, instead of looking for them in the URL configuration."""

    def parse(self, input_request: Any, public: bool) -> dict[str, Any]:
        return {
            f"/management/v1/{path}": {
                method.lower(): self._describe(path, operation)
                for method, operation in operations.items()
            }
            for path, operations in ROUTES.items()
        }

    def _describe(self, path: str, operation: type[ManagementOperation]) -> dict[str, Any]:
        described: dict[str, Any] = {
            "operationId": operation.__name__,
            "description": (operation.__doc__ or "").strip(),
            "tags": [operation.__module__.rpartition(".")[2].capitalize()],
            "parameters": _parameters(path, operation),
            "security": [{"ApiKeyAuth": []}, {"BearerAuth": []}],
            "responses": self._responses(operation),
        }
        if operation.request_model is not None:
            content = self._content(operation.request_model)
            described["requestBody"] = {"required": True, "content": content}
        return described

    def _responses(self, operation: type[ManagementOperation]) -> dict[str, Any]:
        responses: dict[str, Any] = {}
        if operation.media:
            content = {media: {"schema": {"type": "string"}} for media in operation.media}
            responses[str(HTTPStatus.OK.value)] = {"description": "A file", "content": content}
        elif operation.response_model is None:
            responses[str(HTTPStatus.NO_CONTENT.value)] = {"description": "Success, no content"}
        else:
            content = self._content(operation.response_model)
            status = str(operation.status.value)
            responses[status] = {"description": operation.status.phrase, "content": content}
        failures = dict(_ERRORS)
        if operation.request_model is not None:
            failures["413"] = "The body is too large"
        for status, text in failures.items():
            content = self._content(m.Problem, errors.MEDIA)
            responses[status] = {"description": text, "content": content}
        return responses

    def _content(self, model: type[BaseModel], media: str = JSON) -> dict[str, Any]:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        for name, definition in (schema.pop("$defs", {}) | {model.__name__: schema}).items():
            component = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, object=name, schema=definition
            )
            self.registry.register_on_missing(component)
        return {media: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}


def _parameters(path: str, operation: type[ManagementOperation]) -> list[dict[str, Any]]:
    parameters = [
        {"name": name, "in": "path", "required": True, **described}
        for name, described in _PATH.items()
        if f"{{{name}}}" in path
    ]
    names = set(operation.query) & {"namespace", "table"}
    spelled = ("delimiter",) if "{id}" in path or names else ()
    kinds = f"Some of {', '.join(job_kinds())}, between commas."
    kind = {"description": kinds, "schema": {"type": "string"}}
    parameters_described = _QUERY | {"kind": kind} | dict(operation.described)
    described = [
        {"name": n, "in": "query", **parameters_described[n]} for n in (*operation.query, *spelled)
    ]
    return parameters + described
