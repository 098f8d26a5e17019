"""The quick look-up of routes agrees with the patterns."""

import pytest
from django.urls import Resolver404, resolve

from api.lance.urls import find, urlpatterns

IDS = ["$", "ws$t", "a b+c", "größe 🧊", "a/b", "a/b/c$d/e", "list", "describe", "v/list", "table"]


def endings() -> list[str]:
    found = []
    for pattern in urlpatterns:
        regex = str(pattern.pattern)
        if "(?P<id>" in regex and "/index/" not in regex:
            kind, _, rest = regex.removeprefix("^").partition("/")
            found.append(f"{kind}/{{id}}/{rest.rpartition('+)/')[2].removesuffix('/?$')}")
    return found


@pytest.mark.parametrize("template", endings())
@pytest.mark.parametrize("slash", ["", "/"])
def test_every_route_is_found(template: str, slash: str):
    for identifier in IDS:
        path = f"/v1/{template.replace('{id}', identifier)}{slash}"
        expected = resolve(path)
        found = find(path)
        assert found is not None, path
        view, args, kwargs = found
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
def test_what_only_the_patterns_know(path: str):
    found = find(path)
    if found is not None:
        try:
            expected = resolve(path)
        except Resolver404:
            pytest.fail(f"{path} is found and has no pattern")
        assert (found[0], found[2]) == (expected.func, expected.kwargs)
