"""The OpenAPI document of the management API, which drf-spectacular generates from the routes."""

from typing import Any

from django.urls import include, path
from drf_spectacular.generators import SchemaGenerator

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
