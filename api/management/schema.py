"""How the OpenAPI document describes the views. drf-spectacular generates it from the routes.

The first line of an action's docstring is the summary, and the whole docstring the description.
"""

from inspect import getdoc
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from api.management import errors
from api.management.serializers.base import ProblemSerializer

FAILURES = {
    "400": "Malformed request",
    "401": "No valid credentials",
    "403": "Not permitted",
    "404": "Not found",
    "409": "Conflict with the current state",
    "413": "The body is too large",
    "503": "Try again later",
    "5XX": "Server error",
}
_NAMES = "The names from the root down, joined by the delimiter. The delimiter alone is the root."
_PATH = {
    "id": (OpenApiTypes.STR, _NAMES),
    "job": (OpenApiTypes.INT, "The number of a job."),
    "item": (OpenApiTypes.INT, "The number of an item of the trash."),
    "approval": (OpenApiTypes.INT, "The number of an approval request."),
    "label": (OpenApiTypes.STR, "The key of a label."),
    "principal": (OpenApiTypes.STR, "The name of a principal: etl, user:ada, group:analysts."),
    "member": (OpenApiTypes.STR, "The name of a principal."),
    "key": (OpenApiTypes.STR, "The name of an API key."),
    "webhook": (OpenApiTypes.STR, "The name of a webhook."),
    "profile": (OpenApiTypes.STR, "The name of a storage profile."),
    "test": (OpenApiTypes.INT, "The number of a test."),
}
_NAMED = {"namespace", "table"}
"""Query parameters with a name, which the delimiter applies to."""
_DELIMITER = OpenApiParameter(
    "delimiter", OpenApiTypes.STR, default="$", description="The delimiter of names."
)


def tag_of(module: str) -> str:
    """The tag of the operations of a module."""
    return module.rpartition(".")[2].capitalize()


class ManagementSchema(AutoSchema):
    """Describes an action of a viewset."""

    view: Any

    def get_operation_id(self) -> str:
        return str(self.view.operation_id(self.view.action))

    def get_summary(self) -> str:
        return self._docstring().partition("\n")[0].removesuffix(".")

    def get_description(self) -> str:  # type: ignore[override]
        return self._docstring()

    def _docstring(self) -> str:
        return getdoc(getattr(self.view, self.view.action)) or ""

    def get_tags(self) -> list[str]:
        return [tag_of(type(self.view).__module__)]

    def get_override_parameters(self) -> list[Any]:
        action = self.view.action
        query_class = self.view.query_classes.get(action)
        fields = dict(query_class.parameters()) if query_class else {}
        if self.view.pagination_class and self._is_list_view():
            fields |= self.view.pagination_class.query_class.parameters()
        parameters: list[Any] = [
            OpenApiParameter(name, kind, OpenApiParameter.PATH, description=description)
            for name, (kind, description) in _PATH.items()
            if f"{{{name}}}" in self.path
        ]
        parameters += [
            OpenApiParameter(
                name,
                self._map_serializer_field(field, "request"),  # type: ignore[no-untyped-call]
                required=field.required,
                description=str(field.help_text or ""),
            )
            for name, field in fields.items()
        ]
        return parameters + [_DELIMITER] * ("{id}" in self.path or bool(_NAMED & fields.keys()))

    def _get_paginator(self) -> Any:
        paginator = super()._get_paginator()  # type: ignore[no-untyped-call]
        if paginator is not None:
            paginator.results_field = self.view.results_field
        return paginator

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        for status, text in FAILURES.items():
            body = self._get_response_for_code(  # type: ignore[no-untyped-call]
                ProblemSerializer, status, [errors.MEDIA], direction
            )
            bodies[status] = {**body, "description": text}
        return bodies
