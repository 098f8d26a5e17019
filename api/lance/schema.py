"""The OpenAPI document of the Lance protocol, drawn from the same models that the views use."""

from typing import Any

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from lance_namespace_urllib3_client.models import ErrorResponse
from pydantic import BaseModel

SECURITY_SCHEMES = {
    "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "BearerAuth": {"type": "http", "scheme": "bearer"},
}
_JSON = "application/json"
_ERRORS = {
    "400": "Malformed request",
    "401": "No valid credentials",
    "403": "Not permitted",
    "404": "Not found",
    "406": "Not supported",
    "409": "Conflict with the current state",
    "503": "Try again later",
    "5XX": "Server error",
}
NEEDS_DATA: frozenset[str] = frozenset(
    {
        "AlterTableAddColumns",
        "AlterTableAlterColumns",
        "AlterTableBackfillColumns",
        "AlterTableDropColumns",
        "AnalyzeTableQueryPlan",
        "CountTableRows",
        "CreateTableBranch",
        "CreateTableIndex",
        "CreateTableScalarIndex",
        "CreateTableTag",
        "DeleteFromTable",
        "DeleteTableBranch",
        "DeleteTableTag",
        "DescribeTableIndexStats",
        "DropTableIndex",
        "ExplainTableQueryPlan",
        "GetTableStats",
        "GetTableTagVersion",
        "ListTableBranches",
        "ListTableIndices",
        "ListTableTags",
        "MergeInsertIntoTable",
        "QueryTable",
        "UpdateFieldMetadata",
        "UpdateTable",
        "UpdateTableSchemaMetadata",
        "UpdateTableTag",
    }
)
"""Operations that refuse a table which was declared and has no data, with 409 and code 19.

The specification has the code in its list of errors, and no 409 at most of these operations.
"""
_NEEDS_DATA_TEXT = "code 19 (InvalidTableState): the table was declared and has no data yet"
_QUERY: dict[str, dict[str, Any]] = {
    "delimiter": {"type": "string", "default": "$"},
    "limit": {"type": "integer", "minimum": 1},
    "page_token": {"type": "string"},
    "branch": {"type": "string"},
    "descending": {"type": "boolean", "default": False},
    "include_declared": {"type": "boolean", "default": True},
    "with_table_uri": {"type": "boolean", "default": False},
    "load_detailed_metadata": {"type": "boolean", "default": False},
    "check_declared": {"type": "boolean", "default": False},
    "mode": {"type": "string"},
    "properties": {"type": "string", "description": "A JSON object of strings."},
    "storage_options": {"type": "string", "description": "A JSON object of strings."},
    "on": {"type": "string", "minLength": 1},
    "when_matched_update_all": {"type": "boolean", "default": False},
    "when_matched_update_all_filt": {"type": "string"},
    "when_not_matched_insert_all": {"type": "boolean", "default": False},
    "when_not_matched_by_source_delete": {"type": "boolean", "default": False},
    "when_not_matched_by_source_delete_filt": {"type": "string"},
    "timeout": {"type": "string", "description": "A duration such as 30s or 5m."},
    "use_index": {"type": "boolean"},
}


_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": (
        "A UUID of the client's choice. A request that is repeated under its key within 24 hours gets"
        " the answer to the first and changes nothing; another request under it is refused."
    ),
    "schema": {"type": "string", "format": "uuid"},
}


class LanceSchemaGenerator(SchemaGenerator):
    """Writes paths as the specification does: without the optional slash at the end."""

    def coerce_path(self, path: str, method: str, view: Any) -> str:
        return path.rstrip("/")


class LanceSchema(AutoSchema):
    """Describes an operation by its class: name, models, path and query parameters."""

    def get_operation(
        self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any
    ) -> dict[str, Any] | None:
        self.registry = registry
        view: Any = self.view
        if method != view.verb:
            return None
        operation: dict[str, Any] = {
            "operationId": type(view).__name__,
            "description": (type(view).__doc__ or "").strip(),
            "tags": [type(view).__module__.rpartition(".")[2].rstrip("s").capitalize()],
            "parameters": [
                *(
                    {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                    for name in ("id", "index_name")
                    if f"{{{name}}}" in path
                ),
                *(
                    {"name": name, "in": "query", "schema": _QUERY[name]}
                    for name in ("delimiter", *view.query)
                ),
                *([_IDEMPOTENCY_KEY] if view.is_idempotent else ()),
            ],
            "security": [{"ApiKeyAuth": []}, {"BearerAuth": []}],
            "responses": {
                str(view.status): self._answer(view),
                **{
                    status: {"description": text, "content": self._content(ErrorResponse)}
                    for status, text in _errors(type(view).__name__).items()
                },
            },
        }
        if view.body_type != _JSON:
            operation["requestBody"] = {"required": True, "content": _binary(view.body_type)}
        elif view.request_schema is not None:
            content = {_JSON: {"schema": view.request_schema}}
            operation["requestBody"] = {"required": True, "content": content}
        elif view.request_model is not None and view.documents_body:
            operation["requestBody"] = {
                "required": True,
                "content": self._content(view.request_model),
            }
        return operation

    def _answer(self, view: Any) -> dict[str, Any]:
        if view.answer_type != _JSON:
            return {"description": "Success", "content": _binary(view.answer_type)}
        if view.response_schema is not None:
            content = {_JSON: {"schema": view.response_schema}}
            return {"description": "Success", "content": content}
        if view.response_model is None:
            return {"description": "Success, no content"}
        return {"description": "Success", "content": self._content(view.response_model)}

    def _content(self, model: type[BaseModel]) -> dict[str, Any]:
        self._register(model)
        reference = {"$ref": f"#/components/schemas/{model.__name__}"}
        return {_JSON: {"schema": reference}}

    def _register(self, model: type[BaseModel]) -> None:
        schema = model.model_json_schema(
            by_alias=True, ref_template="#/components/schemas/{model}", mode="serialization"
        )
        parts = schema.pop("$defs", {}) | {model.__name__: schema}
        for name, definition in parts.items():
            component = ResolvedComponent(  # type: ignore[no-untyped-call]
                name=name, type=ResolvedComponent.SCHEMA, object=name, schema=definition
            )
            self.registry.register_on_missing(component)


def _errors(operation: str) -> dict[str, str]:
    if operation not in NEEDS_DATA:
        return _ERRORS
    return {**_ERRORS, "409": f"{_ERRORS['409']}, or {_NEEDS_DATA_TEXT}"}


def _binary(kind: str) -> dict[str, Any]:
    return {kind: {"schema": {"type": "string", "format": "binary"}}}
