"""The fast lookup of routes agrees with the patterns."""

import pytest
from django.urls import Resolver404, resolve

from api.lance.urls import find, urlpatterns

IDS = ["$", "ws$t", "a b+c", "größe 🧊", "a/b", "a/b/c$d/e", "list", "describe", "v/list", "table"]


def endings() -> list[str]:
    endings_of_routes = []
    for pattern in urlpatterns:
        regex = str(pattern.pattern)
        if "(?P<id>" in regex and "/index/" not in regex:
            kind, _, remainder = regex.removeprefix("^").partition("/")
            endings_of_routes.append(
                f"{kind}/{{id}}/{remainder.rpartition('+)/')[2].removesuffix('/?$')}"
            )
    return endings_of_routes


@pytest.mark.parametrize("template", endings())
@pytest.mark.parametrize("slash", ["", "/"])
def test_every_route_is_found(template: str, slash: str):
    for identifier in IDS:
        path = f"/v1/{template.replace('{id}', identifier)}{slash}"
        expected = resolve(path)
        route = find(path)
        assert route is not None, path
        view, args, kwargs = route
        assert view is expected.func, path
        assert (args, kwargs) == (expected.args, expected.kwargs), path


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/table",
        "/v1/table/",
        "/v1/table/describe",
        "/v1/table//describe",
        "/v1/table/batch-commit",
        "/v1/table/version/batch-create",
        "/v1/table/t/index/list",
        "/v1/table/t/index/i/drop",
        "/v1/table/t/index/i/stats",
        "/v1/table/t/nothing",
        "/v1/nothing/t/describe",
        "/health/live",
        "/admin/catalog/table/",
    ],
)
def test_routes_known_only_to_the_patterns(path: str):
    route = find(path)
    if route is not None:
        try:
            expected = resolve(path)
        except Resolver404:
            pytest.fail(f"{path} is found and has no pattern")
        assert (route[0], route[2]) == (expected.func, expected.kwargs)
