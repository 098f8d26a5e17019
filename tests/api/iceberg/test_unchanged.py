"""The short path to a 304 answers like the ordinary path, and passes on all other requests."""

import gc
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import get_script_prefix
from prometheus_client import REGISTRY

from api.iceberg import unchanged
from catalog.access import SYSTEM
from catalog.services.iceberg import tables as iceberg_tables
from tests.api.iceberg.client import Iceberg
from tests.factories import make_iceberg_table, make_table

pytestmark = [pytest.mark.django_db, pytest.mark.operation("loadTable")]
PATH = "namespaces/ns/tables/t"


def environ(iceberg: Iceberg, etag: str, path: str = PATH, **more: str) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": f"/v1/{path}",
        "QUERY_STRING": "",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "HTTP_AUTHORIZATION": iceberg.headers["authorization"],
        "HTTP_IF_NONE_MATCH": etag,
        "wsgi.input": BytesIO(),
        "wsgi.url_scheme": "http",
        **more,
    }


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_a_304_takes_one_statement(iceberg: Iceberg, django_assert_num_queries, form):
    table = make_iceberg_table("ns", "t")
    iceberg.get(PATH)  # its key is known then
    request = environ(iceberg, form.format(table.etag), HTTP_X_REQUEST_ID="mine")
    with django_assert_num_queries(1):
        headers = dict(unchanged.headers(request) or {})
    assert headers == {"ETag": table.etag, "Cache-Control": "private", "x-request-id": "mine"}
    ordinary = iceberg.call("GET", PATH, headers={"if-none-match": form.format(table.etag)})
    assert ordinary.status_code == 304
    assert set(ordinary.headers) == {"ETag", "Cache-Control", "x-request-id"}


def test_a_304_in_both_snapshot_modes(iceberg: Iceberg):
    etag = make_iceberg_table("ns", "t").etag
    refs = f'{etag[:-1]}.refs"'
    assert unchanged.headers(environ(iceberg, etag, QUERY_STRING="snapshots=all"))
    assert unchanged.headers(environ(iceberg, etag, QUERY_STRING="snapshots=refs")) is None
    headers = unchanged.headers(environ(iceberg, refs, QUERY_STRING="snapshots=refs"))
    assert dict(headers or {})["ETag"] == refs
    assert iceberg.call("GET", f"{PATH}?snapshots=refs")["etag"] == refs


def test_through_a_warehouse(iceberg: Iceberg):
    etag = make_iceberg_table("prod", "ns", "t").etag
    assert unchanged.headers(environ(iceberg, etag, f"prod/{PATH}"))
    assert unchanged.headers(environ(iceberg, etag)) is None


def test_a_304_is_counted_as_its_operation(iceberg: Iceberg):
    def count() -> float:
        labels = {"operation": "LoadTable", "status": "3xx"}
        return REGISTRY.get_sample_value("monodon_requests_total", labels) or 0

    etag = make_iceberg_table("ns", "t").etag
    before = count()
    assert unchanged.headers(environ(iceberg, etag))
    assert unchanged.headers(environ(iceberg, '"old"')) is None
    assert count() == before + 1


@pytest.mark.parametrize(
    "more",
    [
        {"HTTP_IF_NONE_MATCH": '"old"'},
        {"HTTP_HOST": "evil.example.com"},
        {"HTTP_IF_NONE_MATCH": ""},
        {"REQUEST_METHOD": "HEAD"},
        {"REQUEST_METHOD": "POST"},
        {"QUERY_STRING": "snapshots=some"},
        {"QUERY_STRING": "x=y"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/missing"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/lance"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/\xc3\xa4"},
        {"PATH_INFO": "/v1/namespaces/ns/tables/\0"},
        {"PATH_INFO": "/v1/namespaces/ns"},
        {"PATH_INFO": "/v1/namespaces/ns/tables"},
        {"PATH_INFO": "/v1/table/ns$t/describe"},
        {"PATH_INFO": "/admin/"},
        {"HTTP_AUTHORIZATION": "Bearer wrong"},
        {"HTTP_AUTHORIZATION": ""},
    ],
)
def test_other_requests_take_the_ordinary_path(iceberg: Iceberg, more):
    make_table("ns", "lance")
    etag = make_iceberg_table("ns", "t").etag
    assert unchanged.headers(environ(iceberg, etag) | more) is None


def test_a_table_that_was_dropped_or_renamed(iceberg: Iceberg):
    etag = make_iceberg_table("ns", "t").etag
    iceberg_tables.rename_table(actor=SYSTEM, table=("ns", "t"), new=("ns", "u"))
    assert unchanged.headers(environ(iceberg, etag)) is None
    assert unchanged.headers(environ(iceberg, etag, "namespaces/ns/tables/u"))
    iceberg_tables.drop_table(actor=SYSTEM, table=("ns", "u"))
    assert unchanged.headers(environ(iceberg, etag, "namespaces/ns/tables/u")) is None


@pytest.fixture
def application() -> Iterator[Any]:
    thresholds = gc.get_threshold()
    from config import wsgi

    yield wsgi.application
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_a_304_over_http(iceberg: Iceberg, application, monkeypatch):
    # The test's connection is not to be closed.
    monkeypatch.setattr("config.wsgi.close_old_connections", lambda: None)
    answers: list[tuple[str, dict[str, str]]] = []

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        answers.append((status, dict(headers)))

    etag = make_iceberg_table("ns", "t").etag
    assert b"".join(application(environ(iceberg, etag), start_response)) == b""
    whole = b"".join(application(environ(iceberg, '"old"'), start_response))
    refused = environ(iceberg, etag) | {"HTTP_AUTHORIZATION": "Bearer wrong"}
    assert b"NotAuthorizedException" in b"".join(application(refused, start_response))
    assert [status for status, _ in answers] == [
        "304 Not Modified",
        "200 OK",
        "401 Unauthorized",
    ]
    assert answers[0][1]["ETag"] == answers[1][1]["ETag"] == etag
    assert b'"metadata-location"' in whole


def test_paths_below_a_mount_do_not_outlast_its_requests(
    iceberg: Iceberg, application, monkeypatch
):
    monkeypatch.setattr("config.wsgi.close_old_connections", lambda: None)
    monkeypatch.setattr(application, "_sets_prefix", False, raising=False)
    seen: list[str] = []
    real = application._middleware_chain

    def middleware(request: HttpRequest) -> HttpResponse:
        seen.append(get_script_prefix())
        return real(request)

    monkeypatch.setattr(application, "_middleware_chain", middleware)
    make_iceberg_table("ns", "t")
    for mount in ("", "/catalog", ""):
        answer = application.answer(environ(iceberg, '"old"', SCRIPT_NAME=mount))
        assert answer.status == 200
    assert seen == ["/", "/catalog/", "/"]
