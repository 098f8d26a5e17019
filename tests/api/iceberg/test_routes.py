"""Each path has one interpretation: patterns, the fast lookup, and refused names."""

import itertools

import pytest
from django.urls import resolve

from api.iceberg import prefixes, urls
from api.iceberg.views import fallback
from api.lance import urls as lance_urls
from catalog import identifiers
from catalog.errors import InvalidIdentifier
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases

NAMES = ["t", "a b+c", "größe 🧊", "a/b", "/", "a/", "/a", "tables", "views", "functions", "plan"]
NAMES += ["tables/x", "plan/x", "properties", "register", "metrics", "x/namespaces/y", "rename"]
NAMESPACES = [*NAMES, "a\x1fb", "tables\x1ftables", "namespaces", "config", "a/b\x1fc/d"]
PREFIXES = ["", "p/", "prod.ml/", ".table/", "a~20b/"]
PARTS = {"{namespace}": NAMESPACES, "{table}": NAMES, "{view}": NAMES, "{function}": NAMES}


@pytest.mark.parametrize("template", sorted(urls.ROUTES))
def test_every_path_resolves_to_its_decoded_names(template: str):
    names = [name for name in PARTS if name in template]
    for prefix in PREFIXES if "{prefix}/" in template else [""]:
        for values in itertools.product(*(PARTS[name] for name in names)):
            path = template.replace("{prefix}/", prefix).replace("{plan-id}", "0-1")
            for name, value in zip(names, values, strict=True):
                path = path.replace(name, value)
            expected = {name.strip("{}"): v for name, v in zip(names, values, strict=True)}
            if prefix:
                expected["prefix"] = prefix.removesuffix("/")
            if "{plan-id}" in template:
                expected["plan_id"] = "0-1"
            route = resolve(f"/v1/{path}")
            assert route.func is urls._VIEWS[template], path
            assert route.kwargs == expected, path
            quick = urls.find(f"/v1/{path}")
            assert quick is None or quick == (route.func, route.args, route.kwargs), path
            assert lance_urls.find(f"/v1/{path}") is None, path


def test_hot_routes_are_resolved_quickly():
    for path in (
        "config",
        "namespaces/a",
        "p/namespaces/a\x1fb",
        "namespaces/a/tables",
        "p/namespaces/a b/tables",
        "namespaces/a/tables/t",
        "p/namespaces/a\x1fb/tables/t u",
    ):
        assert urls.find(f"/v1/{path}") == resolve(f"/v1/{path}")[:3]
        assert urls.find(f"/v1/{path}") is not None


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/namespaces",
        "/v1/namespaces/a/",
        "/v1/namespaces/a/views",
        "/v1/namespaces/a/tables/",
        "/v1/namespaces/a/tables/t/metrics",
        "/v1/namespaces//tables/t",
        "/v1//namespaces/a/tables/t",
        "/v1/table/namespaces/a/tables/t",
        "/v1/a/b/namespaces/a/tables/t",
        "/v2/namespaces/a/tables/t",
        "/health/live",
    ],
)
def test_routes_known_only_to_the_patterns(path: str):
    assert urls.find(path) is None


def test_names_that_collide_with_routes_are_refused():
    """Names must not end with the suffix of a route, nor contain the separator of two names."""
    for template in urls.ROUTES:
        for placeholder in ("{namespace}", "{table}", "{view}", "{function}"):
            _, separator, suffix = template.partition(placeholder)
            if not separator or not suffix:
                continue
            literal, brace, _ = suffix.partition("{")
            names = [f"a{literal}b"] if brace else [f"a{literal}", f"a/b{literal}"]
            for name in names:
                with pytest.raises(InvalidIdentifier, match="cannot be addressed"):
                    identifiers.check_name(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name])
def test_other_names_are_accepted(name: str):
    assert identifiers.check_name(name) == name


def test_no_prefix_equals_the_start_of_a_route():
    first = {
        str(pattern.pattern).lstrip("^").partition("/")[0] for pattern in lance_urls.urlpatterns
    }
    words = {word.removesuffix("?$") for word in first if word}
    words |= {template.removeprefix("{prefix}/").partition("/")[0] for template in urls.ROUTES}
    assert {"table", "namespace", "config", "namespaces"} <= words
    assert words <= prefixes.RESERVED
    for word in words:
        assert prefixes.spell((word,)) == f".{word}"
        assert resolve(f"/v1/.{word}/namespaces").kwargs == {"prefix": f".{word}"}


@pytest.mark.parametrize(
    ("warehouse", "prefix"),
    [
        (("prod",), "prod"),
        (("prod", "ml"), "prod.ml"),
        (("a-b_C9",), "a-b_C9"),
        (("a.b", "c"), "a~2Eb.c"),
        (("a b", "c/d"), "a~20b.c~2Fd"),
        (("größe", "🧊"), "gr~C3~B6~C3~9Fe.~F0~9F~A7~8A"),
        (("a~20b",), "a~7E20b"),
        (("table",), ".table"),
        (("table", "x"), "table.x"),
        ((".",), "~2E"),
    ],
)
def test_prefixes(warehouse, prefix):
    assert prefixes.spell(warehouse) == prefix
    assert prefixes.read(prefix) == warehouse
    if len(warehouse) > 1:
        assert prefixes.read("\x1f".join(warehouse)) == warehouse


# --- paths without an operation --------------------------------------------------------------------


@shared_cases(
    "path",
    [
        "/v1/config/",
        "/v1/oauth",
        "/v1/oauth/authorize",
        "/v1/namespaces/",
        "/v1/p/namespaces/",
        "/v1/tables",
        "/v1/tables/x",
        "/v1/p/views/x",
        "/v1/transactions",
        "/v1/transactions/x",
        "/v1//namespaces",
        "/v1//namespaces/a/tables/t",
        "/v1///config",
        "/v1/p//namespaces/a",
    ],
)
@shared_cases("method", ["GET", "POST", "PUT", "HEAD"])
def test_unknown_paths(iceberg: Iceberg, path: str, method: str):
    assert resolve(path).func.view_class is fallback.NoRoute
    error = f"There is no operation at {path}"
    iceberg.refused(404, "NotFoundException", error, f"{method} {path}")


@shared_cases("template", sorted(urls.ROUTES))
def test_wrong_methods(iceberg: Iceberg, template: str):
    path = template.replace("{prefix}/", "")
    for name in ("namespace", "table", "view", "function", "plan-id"):
        path = path.replace(f"{{{name}}}", "x")
    served = urls.ROUTES[template]
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - set(served):
        error = f"{method} is not allowed here"
        response = iceberg.refused(405, "MethodNotAllowedException", error, f"{method} {path}")
        assert response["allow"] == ", ".join(served)
    response = Iceberg().call("PUT", path)
    assert response.status_code == 401


def test_other_paths_belong_to_the_lance_protocol(iceberg: Iceberg):
    for path in ("/v1/", "/v1/nothing", "/v1/table", "/v1/table/namespaces/x", "/v1/a/b/c"):
        form = iceberg.call("PUT", path).json()
        assert {"code", "instance"} <= set(form), path
