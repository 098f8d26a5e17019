"""Routers of the management API: paths without a slash at the end."""

from collections.abc import Mapping
from typing import Any

from rest_framework.routers import DynamicRoute, Route, SimpleRouter


class ResourceRouter(SimpleRouter):
    """Routes collections, ``jobs``, and their items, ``jobs/{job}``."""

    def __init__(self) -> None:
        super().__init__(trailing_slash=False)


class SingletonRouter(ResourceRouter):
    """Routes resources of which there is one, such as the policy of a table."""

    routes = [
        Route(
            url=r"^{prefix}{trailing_slash}$",
            mapping={
                "get": "retrieve",
                "post": "create",
                "put": "update",
                "patch": "partial_update",
                "delete": "destroy",
            },
            name="{basename}",
            detail=True,
            initkwargs={},
        ),
        DynamicRoute(
            url=r"^{prefix}/{url_path}{trailing_slash}$",
            name="{basename}-{url_name}",
            detail=True,
            initkwargs={},
        ),
    ]

    def get_method_map(self, viewset: Any, method_map: Mapping[str, str]) -> dict[str, str]:
        """Let GET list, if the resource is a list of parts, such as the grants on a table."""
        if "get" in method_map and hasattr(viewset, "list"):
            method_map = {**method_map, "get": "list"}
        bound: dict[str, str] = super().get_method_map(viewset, method_map)
        return bound
