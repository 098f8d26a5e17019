"""The OpenAPI document of the management API, which drf-spectacular generates from the routes."""

import sys
from typing import Any

from django.urls import include, path
from drf_spectacular.generators import SchemaGenerator

from api.management.errors import answer
from api.management.schema import FAILURES, tag_of
from api.openapi import add_error_examples, error_examples
from api.request_id import request_id
from catalog.errors import CatalogError

DESCRIPTION = """\
Operations that neither protocol defines, for tables of both formats: access, annotations, protection,
approvals, the audit trail, history, events and maintenance.

Send an API key in the header `x-api-key`, or as a bearer token. Unknown fields of a body and values of
another type are refused. Errors are problem details (RFC 9457). Lists have pages of `limit` entries;
send `next_page_token` as `page_token` to get the next page.
"""
SETTINGS = {
    "TITLE": "Monodon: management",
    "DESCRIPTION": DESCRIPTION,
    "SERVERS": [{"url": "/", "description": "This server"}],
    "COMPONENT_SPLIT_PATCH": False,
    "SCHEMA_PATH_PREFIX": "/management/v1",
    "POSTPROCESSING_HOOKS": [],
}


class ManagementSchemaGenerator(SchemaGenerator):
    """Generates the document of the routes under ``/management/v1`` alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["patterns"] = [path("management/v1/", include("api.management.urls"))]
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]

    def get_schema(self, request: Any = None, public: bool = False) -> dict[str, Any]:
        document: dict[str, Any] = super().get_schema(request, public)  # type: ignore[no-untyped-call]
        document["tags"] = _described_tags(document)
        add_error_examples(document, error_examples(_render_error, FAILURES), "Problem")
        return document


def _described_tags(document: dict[str, Any]) -> list[dict[str, str]]:
    """The tags of the document with the first lines of the modules that they stand for."""
    names = {
        tag
        for operations in document["paths"].values()
        for operation in operations.values()
        for tag in operation["tags"]
    }
    first_lines = {
        tag_of(module): (sys.modules[module].__doc__ or "").partition("\n")[0]
        for module in list(sys.modules)
        if module.startswith("api.management.views.")
    }
    return [{"name": name, "description": first_lines[name]} for name in sorted(names)]


def _render_error(error: CatalogError) -> tuple[int, bytes]:
    # The document must not contain the id of the request that generates it.
    token = request_id.set("4bf92f3577b34da6a3ce929d0e0e4736")
    try:
        status, body, _ = answer(error, "/management/v1/tables/sales$orders/annotations")
    finally:
        request_id.reset(token)
    return status, body
