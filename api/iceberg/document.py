"""The OpenAPI document of the Iceberg protocol."""

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import BaseModel

from api.iceberg import commits
from api.iceberg import messages as m
from api.iceberg.errors import answer
from api.iceberg.operation import IcebergOperation
from api.iceberg.urls import ROUTES
from api.iceberg.views.oauth import GetToken
from api.openapi import API_KEY, BEARER, ERRORS, Described, ProtocolSchemaGenerator
from catalog.errors import CatalogError

_FORM = "application/x-www-form-urlencoded"
_STATE_UNKNOWN = "The commit was sent, and whether it stands is not known"


def _text(text: str, **schema: Any) -> Described:
    return {"description": text, "schema": {"type": "string", **schema}}


_HEADERS: dict[str, Described] = {
    "If-None-Match": _text("ETags of answers that the client has."),
    "X-Iceberg-Access-Delegation": _text(
        "With `vended-credentials` the answer has credentials for the table's files."
    ),
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A UUID of version 7. The same request with it again gets the same answer.",
    "schema": {"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36},
}


class IcebergSchemaGenerator(ProtocolSchemaGenerator):
    document_title = "Monodon: Apache Iceberg REST catalog"
    document_description = (
        "The Iceberg REST catalog protocol, as this server speaks it. The levels of a namespace in a path are joined"
        " by the separator that `/v1/config` returns (0x1F). Clients decide by the status and type of an error."
        " The version of this document is that of Monodon."
    )
    security_schemes: ClassVar = {
        "OAuth2": {
            "type": "oauth2",
            "description": "Exchange an API key for an access token of an hour.",
            "flows": {
                "clientCredentials": {
                    "tokenUrl": "/v1/oauth/tokens",
                    "scopes": {"catalog": "Everything that the key permits."},
                }
            },
        },
        "BearerAuth": BEARER,
        "ApiKeyAuth": API_KEY,
    }
    security: ClassVar = [{"OAuth2": ["catalog"]}, {"BearerAuth": []}, {"ApiKeyAuth": []}]
    errors: ClassVar = {
        **ERRORS,
        "406": "Not supported",
        "419": "The access token has expired",
        "422": "The request contradicts itself",
    }
    error_model = m.IcebergErrorResponse
    path_parameters: ClassVar = {
        "prefix": _text(
            "The warehouse, as `/v1/config` returns it. Without a prefix the segment is left out."
        ),
        "namespace": _text("The levels of the namespace, joined by 0x1F."),
        "table": _text("The table's name."),
        "view": _text("The view's name."),
        "function": _text("The function's name."),
        "plan-id": _text("The scan plan's id."),
    }
    query_parameters: ClassVar = {
        "warehouse": _text(
            "A namespace, its levels joined by dots; without it, the whole catalog."
        ),
        "parent": _text("The namespace to list; without it, the top of the warehouse."),
        "pageToken": _text("Empty for the first page, else the `next-page-token` of the previous."),
        "pageSize": {
            "description": "The largest number of entries to return.",
            "schema": {"type": "integer", "minimum": 1},
        },
        "snapshots": _text(
            "`refs`: only the snapshots that branches and tags name.",
            enum=["all", "refs"],
            default="all",
        ),
        "referenced-by": _text("The views through which the client came to this object."),
        "purgeRequested": {
            "description": "Also remove the table's files, afterwards.",
            "schema": {"type": "boolean", "default": False},
        },
    }

    def routes(self) -> Iterator[tuple[str, type[IcebergOperation]]]:
        for path, operations in ROUTES.items():
            for operation in operations.values():
                yield f"/v1/{path}", operation

    def operation_id(self, operation: type[Any]) -> str:
        name = operation.__name__
        return name[0].lower() + name[1:]

    def security_of(self, operation: type[Any]) -> list[dict[str, list[str]]]:
        return [] if operation is GetToken else self.security

    def parameters(self, path: str, operation: type[IcebergOperation]) -> list[Described]:
        headers = [
            {"name": name, "in": "header", **_HEADERS[name]} for name in operation.request_headers
        ]
        key = [_IDEMPOTENCY_KEY] if operation.is_idempotent else []
        return [*super().parameters(path, operation), *headers, *key]

    def body(self, operation: type[IcebergOperation]) -> Described | None:
        if operation is GetToken:
            return self.content(str(operation.request_model), _FORM)
        model = commits.REQUESTS.get(str(operation.request_model))
        return super().body(operation) if model is None else self.content(model)

    def answers(self, operation: type[IcebergOperation]) -> dict[str, Described]:
        if operation.response_model is None:
            return {"204": {"description": "Success, no content"}}
        content = self.content(operation.response_model)
        answers: dict[str, Described] = {"200": {"description": "Success", "content": content}}
        if "If-None-Match" in operation.request_headers:
            answers["304"] = {"description": "The client has the current answer"}
        return answers

    def failures(self, operation: type[IcebergOperation]) -> dict[str, str]:
        texts = super().failures(operation)
        if operation is GetToken:
            return {status: texts[status] for status in ("400", "401", "413", "429", "503", "5XX")}
        return texts | {"500": _STATE_UNKNOWN} if operation.is_commit else texts

    def error_of(self, operation: type[IcebergOperation]) -> type[BaseModel]:
        return m.OAuthError if operation is GetToken else self.error_model

    def render_error(self, error: CatalogError) -> tuple[int, bytes]:
        status, body, _ = answer(error, error.message, {})
        return status, body
