"""The OpenAPI document of the Iceberg protocol, drawn from the routes and their operations."""

from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.plumbing import ResolvedComponent
from pydantic import BaseModel

from api.iceberg import messages as m
from api.iceberg.operation import JSON, IcebergOperation
from api.iceberg.urls import ROUTES
from api.iceberg.views.oauth import GetToken

SECURITY_SCHEMES = {
    "OAuth2": {
        "type": "oauth2",
        "flows": {
            "clientCredentials": {
                "tokenUrl": "/v1/oauth/tokens",
                "scopes": {"catalog": "Everything; what a client may do, its key decides."},
            }
        },
    },
    "BearerAuth": {"type": "http", "scheme": "bearer"},
}
_ERRORS = {
    "400": "Malformed request",
    "401": "No valid credentials",
    "403": "Not permitted",
    "404": "Not found",
    "406": "Not supported",
    "409": "Conflict with the current state",
    "419": "The access token has expired",
    "422": "The request contradicts itself",
    "503": "Try again later",
    "5XX": "Server error",
}
_OAUTH_ERRORS = {status: _ERRORS[status] for status in ("400", "401", "5XX")}
_STATE_UNKNOWN = "The commit was sent, and whether it stands is not known"
_PATH = {
    "prefix": "The warehouse, as /v1/config tells it; without one the segment is left out.",
    "namespace": "The levels of the namespace, joined by 0x1F.",
    "table": "The table's name.",
    "view": "The view's name.",
    "function": "The function's name.",
    "plan-id": "The scan plan's id.",
}
_INTEGERS = {"pageSize"}
_BOOLEANS = {"purgeRequested"}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A UUID of version 7. The same request with it again gets the same answer.",
    "schema": {"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36},
}


class IcebergSchemaGenerator(SchemaGenerator):
    """Describes the routes as they are, instead of looking for them in the URL configuration."""

    def parse(self, input_request: Any, public: bool) -> dict[str, Any]:
        return {
            f"/v1/{path}": {
                method.lower(): self._describe(path, operation)
                for method, operation in operations.items()
            }
            for path, operations in ROUTES.items()
        }

    def _describe(self, path: str, operation: type[IcebergOperation]) -> dict[str, Any]:
        name = operation.__name__
        described: dict[str, Any] = {
            "operationId": name[0].lower() + name[1:],
            "description": (operation.__doc__ or "").strip(),
            "tags": [operation.__module__.rpartition(".")[2].rstrip("s").capitalize()],
            "parameters": _parameters(path, operation),
            "security": [{"OAuth2": ["catalog"]}, {"BearerAuth": []}],
            "responses": self._responses(operation),
        }
        if operation is GetToken:
            described["security"] = []
        if operation.request_model is not None:
            media = "application/x-www-form-urlencoded" if operation is GetToken else JSON
            described["requestBody"] = {
                "required": True,
                "content": self._content(operation.request_model, media),
            }
        return described

    def _responses(self, operation: type[IcebergOperation]) -> dict[str, Any]:
        responses: dict[str, Any] = {}
        if operation.response_model is None:
            responses["204"] = {"description": "Success, no content"}
        else:
            responses["200"] = {
                "description": "Success",
                "content": self._content(operation.response_model),
            }
        if "If-None-Match" in operation.request_headers:
            responses["304"] = {"description": "The client has what there is"}
        failures = dict(_OAUTH_ERRORS if operation is GetToken else _ERRORS)
        if operation.is_commit:
            failures["500"] = _STATE_UNKNOWN
        form = m.OAuthError if operation is GetToken else m.IcebergErrorResponse
        for status, text in failures.items():
            responses[status] = {"description": text}
            if operation.verb != "HEAD":
                responses[status]["content"] = self._content(form)
        return responses

    def _content(self, model: type[BaseModel] | str, media: str = JSON) -> dict[str, Any]:
        if isinstance(model, str):
            name = model
            self._register(name, {"type": "object", "additionalProperties": True})
        else:
            name = model.__name__
            template = "#/components/schemas/{model}"
            schema = model.model_json_schema(by_alias=True, ref_template=template)
            for definition_name, described in schema.pop("$defs", {}).items():
                self._register(definition_name, described)
            self._register(name, schema)
        return {media: {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    def _register(self, name: str, schema: dict[str, Any]) -> None:
        component = ResolvedComponent(  # type: ignore[no-untyped-call]
            name=name, type=ResolvedComponent.SCHEMA, object=name, schema=schema
        )
        self.registry.register_on_missing(component)


def _parameters(path: str, operation: type[IcebergOperation]) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": text,
            "schema": {"type": "string"},
        }
        for name, text in _PATH.items()
        if f"{{{name}}}" in path
    ]
    parameters += [{"name": n, "in": "query", "schema": _type(n)} for n in operation.query]
    parameters += [
        {"name": n, "in": "header", "schema": {"type": "string"}} for n in operation.request_headers
    ]
    return [*parameters, _IDEMPOTENCY_KEY] if operation.is_idempotent else parameters


def _type(name: str) -> dict[str, Any]:
    if name in _INTEGERS:
        return {"type": "integer", "minimum": 1}
    return {"type": "boolean" if name in _BOOLEANS else "string"}
