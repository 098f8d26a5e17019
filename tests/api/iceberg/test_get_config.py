import pytest

from api.iceberg import prefixes
from api.iceberg.urls import ROUTES
from tests.api.iceberg.client import Iceberg
from tests.cases import shared_cases
from tests.factories import make_namespace, make_table

pytestmark = pytest.mark.operation("getConfig")


def test_the_whole_catalog(iceberg: Iceberg):
    answer = iceberg.get("config")
    assert set(answer) == {"defaults", "overrides", "endpoints", "idempotency-key-lifetime"}
    assert answer["defaults"] == {}
    assert answer["overrides"] == {"namespace-separator": "%1F"}
    assert answer["idempotency-key-lifetime"] == "PT24H"


def test_the_endpoints_are_the_routes(iceberg: Iceberg):
    answer = iceberg.get("config")["endpoints"]
    assert "GET /v1/config" in answer
    assert sorted(answer) == sorted(
        f"{method} /v1/{path}" for path, operations in ROUTES.items() for method in operations
    )
    assert len(answer) == len(set(answer))


@pytest.mark.parametrize("warehouse", ["prod.ml", "prod%1Fml", "prod\x1fml"])
def test_a_warehouse(iceberg: Iceberg, warehouse):
    make_namespace("prod", "ml")
    overrides = iceberg.get(f"config?warehouse={warehouse}")["overrides"]
    assert overrides == {"namespace-separator": "%1F", "prefix": "prod.ml"}


def test_an_empty_warehouse_means_none(iceberg: Iceberg):
    assert "prefix" not in iceberg.get("config?warehouse=")["overrides"]


def test_the_root_has_a_name(iceberg: Iceberg, settings):
    """Some clients require a warehouse."""
    make_namespace("top")
    assert iceberg.get("config?warehouse=monodon") == iceberg.get("config")
    settings.MONODON_WAREHOUSE_NAME = "lake"
    assert iceberg.get("config?warehouse=lake") == iceberg.get("config")
    for name, warehouse in (("lake", "monodon"), ("", "lake")):
        settings.MONODON_WAREHOUSE_NAME = name
        request = f"GET config?warehouse={warehouse}"
        iceberg.refused(404, "NoSuchWarehouseException", "does not exist", request)


def test_the_name_of_the_root_precedes_a_namespace(iceberg: Iceberg, settings):
    """Otherwise a namespace of this name would redirect clients of the whole catalog."""
    make_namespace("monodon", "inner")
    assert "prefix" not in iceberg.get("config?warehouse=monodon")["overrides"]
    assert iceberg.get("config?warehouse=monodon.inner")["overrides"]["prefix"] == "monodon.inner"
    settings.MONODON_WAREHOUSE_NAME = ""
    assert iceberg.get("config?warehouse=monodon")["overrides"]["prefix"] == "monodon"


def test_a_name_that_holds_a_dot(iceberg: Iceberg):
    make_namespace("a.b", "c.d")
    assert iceberg.get("config?warehouse=a.b")["overrides"]["prefix"] == "a~2Eb"
    assert iceberg.get("config?warehouse=a.b%1Fc.d")["overrides"]["prefix"] == "a~2Eb.c~2Ed"
    make_namespace("a", "b")
    assert iceberg.get("config?warehouse=a.b")["overrides"]["prefix"] == "a.b"


def test_a_name_that_is_a_route(iceberg: Iceberg):
    for name in sorted(prefixes.RESERVED):
        make_namespace(name, "inner")
        assert iceberg.get(f"config?warehouse={name}")["overrides"]["prefix"] == f".{name}"
        inner = iceberg.get(f"config?warehouse={name}.inner")["overrides"]["prefix"]
        assert inner == f"{name}.inner"


@shared_cases(
    "warehouse",
    ["nothing", "prod.nothing", "prod.ml.t", "..", "%00", "/"],
    prepare=lambda: make_table("prod", "ml", "t"),
)
def test_an_unknown_warehouse(iceberg: Iceberg, warehouse):
    iceberg.refused(
        404, "NoSuchWarehouseException", "does not exist", f"GET config?warehouse={warehouse}"
    )


def test_credentials_are_required(db):
    response = Iceberg().refused(
        401, "NotAuthorizedException", "No API key was given", "GET config"
    )
    assert response["www-authenticate"] == "Bearer"
