"""What belongs to no protocol: health, figures, OpenAPI documents."""

from django.urls import path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from api import health
from api.lance.schema import SECURITY_SCHEMES, LanceSchemaGenerator

urlpatterns = [
    path("health/live", health.live),
    path("health/ready", health.ready),
    path("metrics", health.metrics),
    path(
        "schema/lance",
        SpectacularAPIView.as_view(
            urlconf="api.lance.document",
            generator_class=LanceSchemaGenerator,
            custom_settings={
                "APPEND_COMPONENTS": {"securitySchemes": SECURITY_SCHEMES},
                "TITLE": "Monodon: Lance Namespace",
                "DESCRIPTION": "The Lance Namespace REST protocol, as this server speaks it.",
            },
        ),
        name="schema-lance",
    ),
    path("docs", SpectacularSwaggerView.as_view(url_name="schema-lance"), name="docs"),
]
