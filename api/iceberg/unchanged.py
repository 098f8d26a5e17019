"""loadTable for clients that have the current answer: 304 without Django's request, response and handler.

These took twice as long as the remaining work. Other requests take the ordinary path, which checks them
again and alone sends refusals. This module only decides that a table's ETag is one of those in the request.
"""

from http import HTTPStatus
from typing import Any, cast

from django.db import Error
from django.http import HttpRequest, HttpResponse

from api.hosts import check_host
from api.iceberg import prefixes, urls
from api.iceberg.views.tables import SNAPSHOTS, LoadTable, has_current, tag_of
from api.middleware import RequestMiddleware
from catalog.errors import CatalogError
from catalog.services.iceberg import tables as iceberg_tables
from catalog.services.tables import usage
from catalog.services.tables.usage import Read


class _OrdinaryWay(Exception):
    """The answer is not a 304."""


class _Request:
    """The parts of a request that authentication and logging use."""

    __slots__ = (
        *("META", "actor_name", "method", "operation", "path", "path_info", "request_id"),
        *("target", "urlconf"),
    )

    def __init__(self, environ: dict[str, Any]) -> None:
        self.META = environ
        self.method = "GET"
        self.path = self.path_info = environ["PATH_INFO"]
        self.operation = LoadTable.__name__


class _NotModified:
    __slots__ = ("headers",)

    status_code = HTTPStatus.NOT_MODIFIED.value

    def __init__(self, etag: str) -> None:
        self.headers = {"ETag": etag}


def headers(environ: dict[str, Any]) -> list[tuple[str, str]] | None:
    """The headers of the 304 to a request with If-None-Match; None if the answer is not a 304."""
    if environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].isascii():
        return None
    try:
        response: Any = _through_middleware(cast(HttpRequest, _Request(environ)))
    except (_OrdinaryWay, CatalogError, Error):
        return None
    return list(response.headers.items())


def _answer(request: HttpRequest) -> HttpResponse:
    check_host(request)
    meta = request.META
    snapshots = SNAPSHOTS.get(meta.get("QUERY_STRING", ""))
    route = urls.find(request.path)
    if snapshots is None or route is None or "table" not in route[2]:
        raise _OrdinaryWay
    path = route[2]
    operation = LoadTable()
    operation.request = request
    request.target = path, None  # type: ignore[attr-defined]
    actor = operation.authenticate()
    if "prefix" in path:
        operation.warehouse = prefixes.read(path["prefix"])
    identifier = operation.identify(path["namespace"], path["table"])
    etag = iceberg_tables.find_etag(actor=actor, table=identifier)
    if etag is None or not has_current(meta["HTTP_IF_NONE_MATCH"], etag, snapshots):
        raise _OrdinaryWay
    usage.count(actor, identifier, Read.LOAD)
    return cast(HttpResponse, _NotModified(tag_of(etag, snapshots)))


_through_middleware = RequestMiddleware(_answer)
