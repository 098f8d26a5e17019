"""What belongs to no protocol: health, figures, OpenAPI documents."""

from django.urls import path
from drf_spectacular.views import SpectacularSwaggerSplitView

from api import health
from api.documents import Document
from api.iceberg import schema as iceberg
from api.lance import schema as lance
from api.management import document as management

urlpatterns = [
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("metrics", health.metrics),
    path(
        "schema/lance",
        Document.as_view(
            urlconf="api.lance.document",
            generator_class=lance.LanceSchemaGenerator,
            custom_settings={
                "APPEND_COMPONENTS": {"securitySchemes": lance.SECURITY_SCHEMES},
                "TITLE": "Monodon: Lance Namespace",
                "DESCRIPTION": "The Lance Namespace REST protocol, as this server speaks it.",
            },
        ),
        name="schema-lance",
    ),
    path(
        "schema/iceberg",
        Document.as_view(
            generator_class=iceberg.IcebergSchemaGenerator,
            custom_settings={
                "APPEND_COMPONENTS": {"securitySchemes": iceberg.SECURITY_SCHEMES},
                "TITLE": "Monodon: Apache Iceberg REST catalog",
                "DESCRIPTION": "The Iceberg REST catalog protocol, as this server speaks it.",
            },
        ),
        name="schema-iceberg",
    ),
    path(
        "schema/management",
        Document.as_view(
            generator_class=management.ManagementSchemaGenerator,
            custom_settings=management.SETTINGS,
        ),
        name="schema-management",
    ),
    path(
        "docs/management",
        SpectacularSwaggerSplitView.as_view(url_name="schema-management"),
        name="docs-management",
    ),
    path(
        "docs/iceberg",
        SpectacularSwaggerSplitView.as_view(url_name="schema-iceberg"),
        name="docs-iceberg",
    ),
    path("docs", SpectacularSwaggerSplitView.as_view(url_name="schema-lance"), name="docs"),
]
