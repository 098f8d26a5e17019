"""The OpenAPI document of the Lance protocol."""

from collections.abc import Iterator
from typing import Any, ClassVar

from lance_namespace_urllib3_client.models import ErrorResponse

from api.lance.errors import answer
from api.lance.operation import LanceOperation
from api.lance.urls import ROUTES
from api.openapi import API_KEY, BEARER, ERRORS, JSON, Described, ProtocolSchemaGenerator
from catalog.errors import CatalogError

_NEEDS_DATA = "code 19 (InvalidTableState): the table was declared and has no data yet"


def _boolean(text: str, *, default: bool | None = None) -> Described:
    schema = {"type": "boolean"} if default is None else {"type": "boolean", "default": default}
    return {"description": text, "schema": schema}


def _text(text: str, **schema: Any) -> Described:
    return {"description": text, "schema": {"type": "string", **schema}}


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


class LanceSchemaGenerator(ProtocolSchemaGenerator):
    document_title = "Monodon: Lance Namespace"
    document_description = (
        "The Lance Namespace REST protocol, as this server speaks it. Identifiers in paths are the names from the"
        " root namespace down, joined by the delimiter: `sales$orders` is table `orders` of namespace `sales`, and"
        " `$` alone is the root. Errors carry the numeric codes of the specification. The version of this document is"
        " that of Monodon."
    )
    security_schemes: ClassVar = {"ApiKeyAuth": API_KEY, "BearerAuth": BEARER}
    security: ClassVar = [{"ApiKeyAuth": []}, {"BearerAuth": []}]
    errors: ClassVar = {**ERRORS, "406": "Not supported"}
    error_model = ErrorResponse

    def render_error(self, error: CatalogError) -> tuple[int, bytes]:
        status, body, _ = answer(error, "/v1/table/sales$orders/describe")
        return status, body

    mode = "serialization"
    path_parameters: ClassVar = {
        "id": _text("The names from the root down, joined by the delimiter: `sales$orders`."),
        "index_name": _text("The name of the index."),
    }
    query_parameters: ClassVar = {
        "delimiter": _text("What joins the names of `id`.", default="$"),
        "limit": {
            "description": "The largest number of entries to return.",
            "schema": {"type": "integer", "minimum": 1},
        },
        "page_token": _text("The `page_token` of the previous page."),
        "branch": _text("The branch; without it, `main`."),
        "descending": _boolean("Return the newest version first.", default=False),
        "include_declared": _boolean("Include declared tables without data.", default=True),
        "with_table_uri": _boolean("Return the location as a complete URI, too.", default=False),
        "load_detailed_metadata": _boolean(
            "Open the table, and return its version, schema and statistics.", default=False
        ),
        "check_declared": _boolean("Return whether the table has no data yet.", default=False),
        "mode": _text("The mode of the operation, in any case."),
        "properties": _text("A JSON object of strings."),
        "storage_options": _text("A JSON object of strings."),
        "on": _text("The column that rows are compared by.", minLength=1),
        "when_matched_update_all": _boolean("Update rows that match.", default=False),
        "when_matched_update_all_filt": _text(
            "An SQL condition on `source` and `target`: update rows that match only if it holds."
        ),
        "when_not_matched_insert_all": _boolean("Insert rows that match none.", default=False),
        "when_not_matched_by_source_delete": _boolean(
            "Delete rows of the table that no row of the body matches.", default=False
        ),
        "when_not_matched_by_source_delete_filt": _text(
            "An SQL condition: delete such rows only if it holds."
        ),
        "timeout": _text("A duration such as 30s or 5m."),
        "use_index": _boolean("Whether an index may find the rows that match."),
    }

    def routes(self) -> Iterator[tuple[str, type[LanceOperation]]]:
        for template, operation in ROUTES.items():
            yield f"/v1/{template}", operation

    def parameters(self, path: str, operation: type[LanceOperation]) -> list[Described]:
        parameters = super().parameters(path, operation)
        delimiter = {"name": "delimiter", "in": "query", **self.query_parameters["delimiter"]}
        return [*parameters, delimiter, *([_IDEMPOTENCY_KEY] if operation.is_idempotent else ())]

    def failures(self, operation: type[LanceOperation]) -> dict[str, str]:
        texts = super().failures(operation)
        return (
            texts | {"409": f"{texts['409']}, or {_NEEDS_DATA}"} if operation.needs_data else texts
        )

    def body(self, operation: type[LanceOperation]) -> Described | None:
        if operation.body_type != JSON:
            return _binary(operation.body_type)
        if operation.request_schema is not None:
            return {JSON: {"schema": operation.request_schema}}
        return super().body(operation) if operation.documents_body else None

    def answers(self, operation: type[LanceOperation]) -> dict[str, Described]:
        answer: Described = {"description": "Success"}
        if operation.answer_type != JSON:
            answer["content"] = _binary(operation.answer_type)
        elif operation.response_schema is not None:
            answer["content"] = {JSON: {"schema": operation.response_schema}}
        elif operation.response_model is not None:
            answer["content"] = self.content(operation.response_model)
        else:
            answer["description"] = "Success, no content"
        return {str(operation.status): answer}


def _binary(kind: str) -> Described:
    return {kind: {"schema": {"type": "string", "format": "binary"}}}
