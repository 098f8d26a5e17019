"""What belongs to no protocol: health, figures, OpenAPI documents."""

from typing import Any

from django.urls import URLPattern, path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularSwaggerSplitView

from api import health, metrics
from api.documents import Document
from api.iceberg.document import IcebergSchemaGenerator
from api.lance.document import LanceSchemaGenerator
from api.lancedb.document import LanceDBSchemaGenerator
from api.management import document as management
from api.management.document import ManagementSchemaGenerator
from api.openapi import ProtocolSchemaGenerator


def _document(
    protocol: str, page: str, generator: type[SchemaGenerator], settings: dict[str, Any]
) -> list[URLPattern]:
    """The routes of an OpenAPI document, and of the page that shows it."""
    document = Document.as_view(generator_class=generator, custom_settings=settings)
    name = f"schema-{protocol}"
    return [
        path(f"schema/{protocol}", document, name=name),
        path(
            page,
            SpectacularSwaggerSplitView.as_view(
                url_name=name, template_name="help/api_document.html"
            ),
            name=page.replace("/", "-"),
        ),
    ]


def _settings(generator: type[ProtocolSchemaGenerator]) -> dict[str, Any]:
    return {
        "TITLE": generator.document_title,
        "DESCRIPTION": generator.document_description,
        "SERVERS": [{"url": "/", "description": "This server"}],
        "APPEND_COMPONENTS": {"securitySchemes": generator.security_schemes},
    }


urlpatterns = [
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("metrics", metrics.metrics),
    *_document("lance", "docs", LanceSchemaGenerator, _settings(LanceSchemaGenerator)),
    *_document(
        "iceberg", "docs/iceberg", IcebergSchemaGenerator, _settings(IcebergSchemaGenerator)
    ),
    *_document(
        "lancedb", "docs/lancedb", LanceDBSchemaGenerator, _settings(LanceDBSchemaGenerator)
    ),
    *_document("management", "docs/management", ManagementSchemaGenerator, management.SETTINGS),
]
