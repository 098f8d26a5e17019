"""What every request passes: an id, one log line, the figures. And what only the admin passes."""

import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

from django.conf import settings
from django.core.handlers.exception import convert_exception_to_response
from django.db import DEFAULT_DB_ALIAS, connections
from django.http import HttpRequest, HttpResponseBadRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string
from prometheus_client import Counter, Histogram, Summary

from api import aliases, database_header, request_facts
from api.hosts import check_host
from api.request_id import request_id
from api.request_spans import traced
from catalog import tracing
from catalog.errors import InvalidInput

log = logging.getLogger("monodon.request")
_Handler = Callable[[HttpRequest], HttpResponseBase]

REQUEST_ID_HEADER = "x-request-id"
API_PATHS = ("/v1/", "/management/", "/oauth/", "/health/", "/metrics", "/schema/")
"""Paths of programs: no session, no cookie, no CSRF token, no static files."""

# A histogram has a series for each bucket, so there is one per interface only. Of an operation, there are
# the number, the sum and the classes of statuses.
REQUEST_SECONDS = Histogram(
    "monodon_request_seconds",
    "Duration of requests by interface.",
    ["interface"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
OPERATION_SECONDS = Summary(
    "monodon_operation_seconds", "Duration and number of requests by operation.", ["operation"]
)
REQUESTS = Counter(
    "monodon_requests",
    "Requests by operation and class of status, such as 2xx.",
    ["operation", "status"],
)

_PRIVATE = {"protocols", "management"}
"""The interfaces whose answers depend on the principal."""
_SLOW_SECONDS = 1.0
GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")


class RequestMiddleware:
    """Sets the id of each request, by default the client's, and logs the result.

    The id is in the answer's ``x-request-id``, in every log line and in the audit rows. Successful
    requests are logged at debug level unless MONODON_LOG_REQUESTS is "all": at thousands per second, a
    line takes a tenth of the work, and every change is in the audit trail anyway.
    """

    def __init__(self, get_response: _Handler) -> None:
        self.get_response = traced(get_response)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        # Looking up the connection takes as long as a small function.
        database: Any = connections[DEFAULT_DB_ALIAS]
        started, statements = time.perf_counter(), database.statements
        request.path_info = aliases.path_of(request.path_info)
        current = id_of_request(
            request.META.get("HTTP_X_REQUEST_ID", ""), request.META.get("HTTP_TRACEPARENT", "")
        )
        token = request_id.set(current)
        request.request_id = current  # type: ignore[attr-defined]  # for the admin, which knows no api
        if settings.MONODON_PROXIES:
            meta = request.META
            meta["REMOTE_ADDR"] = client_address(
                meta.get("HTTP_X_FORWARDED_FOR", ""), meta.get("REMOTE_ADDR", "")
            )
        if database_header.selects_dialect(request):
            request.urlconf = database_header.ROUTES
        try:
            response = self.get_response(request)
            if response.status_code == HTTPStatus.CONTINUE:  # the request is repeated with its body
                return response
            response.headers[REQUEST_ID_HEADER] = current
            seconds = time.perf_counter() - started
            operation = getattr(request, "operation", "other")
            interface = _interface(request.path_info)
            if interface in _PRIVATE:
                # A shared cache distinguishes principals by Authorization, but not by x-api-key.
                response.headers.setdefault("Cache-Control", "private")
            count(interface, operation, response.status_code, seconds)
            log_result(
                request.method,
                request.path,
                response.status_code,
                seconds,
                lambda: {
                    "operation": request_facts.operation(request) or "other",
                    "target": request_facts.target(request) or "-",
                    "queries": database.statements - statements,
                    "actor": request_facts.actor(request) or "-",
                },
            )
            return response
        finally:
            request_id.reset(token)


def id_of_request(sent: str, traceparent: str) -> str:
    """The id of a request: the one that the client has sent if it is valid, otherwise a new one."""
    return sent if GIVEN_ID.fullmatch(sent) else tracing.new_request_id(traceparent)


def count(interface: str, operation: str, status: int, seconds: float) -> None:
    """Count a request in the metrics."""
    by_interface, by_operation, by_status = _figures(interface, operation, status // 100)
    by_interface.observe(seconds)
    by_operation.observe(seconds)
    by_status.inc()


def log_result(
    method: str | None, path: str, status: int, seconds: float, facts: Callable[[], dict[str, Any]]
) -> None:
    """Log the result of a request. ``facts``: the other fields of the line, if there is one."""
    if status >= 500:
        level = logging.ERROR
    elif status >= 400 or seconds > _SLOW_SECONDS:
        level = logging.WARNING if seconds > _SLOW_SECONDS else logging.INFO
    else:
        level = logging.INFO if settings.LOG_REQUESTS == "all" else logging.DEBUG
    if log.isEnabledFor(level):
        extra = {**facts(), "status": status, "ms": round(seconds * 1000, 1)}
        log.log(level, "%s %s", method, path, extra=extra)


@lru_cache(maxsize=4096)
def _figures(interface: str, operation: str, hundreds: int) -> tuple[Histogram, Summary, Counter]:
    """The series of a request. Looking them up takes as long as counting."""
    return (
        REQUEST_SECONDS.labels(interface),
        OPERATION_SECONDS.labels(operation),
        REQUESTS.labels(operation, f"{hundreds}xx"),
    )


def _interface(path: str) -> str:
    """The group of a path, of which there are few."""
    if path.startswith("/v1/"):
        return "protocols"
    if path.startswith("/management/"):
        return "management"
    return "admin" if path.startswith("/admin") else "other"


def client_address(forwarded: str, peer: str) -> str:
    """The address of the client, from the entries of trusted proxies only.

    Each proxy appends the address of its peer to X-Forwarded-For.
    """
    proxies = settings.MONODON_PROXIES
    if not proxies:
        return peer
    addresses = [address.strip() for address in forwarded.split(",")]
    return (addresses[-proxies] if len(addresses) >= proxies else "") or peer


class AdminMiddleware:
    """The middleware of the web admin (settings.ADMIN_MIDDLEWARE), which API paths skip.

    One class instead of one wrapper for each, because eight wrappers take a tenth of the time of a read.
    """

    def __init__(self, get_response: _Handler) -> None:
        self._api = get_response
        self._process_view: list[Callable[..., HttpResponseBase | None]] = []
        for path in reversed(settings.ADMIN_MIDDLEWARE):
            middleware = import_string(path)(get_response)
            if hasattr(middleware, "process_view"):
                self._process_view.insert(0, middleware.process_view)
            get_response = cast(_Handler, convert_exception_to_response(middleware))
        self._admin = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        path = request.path_info
        if not path.startswith(API_PATHS):
            return self._admin(request)
        if path.startswith("/schema/"):  # operations check the host themselves
            try:
                check_host(request)
            except InvalidInput as error:
                return HttpResponseBadRequest(error.message, content_type="text/plain")
        return self._api(request)

    def process_view(
        self, request: HttpRequest, view: Any, args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        if request.path_info.startswith(API_PATHS):
            return None
        for process in self._process_view:
            response = process(request, view, args, kwargs)
            if response is not None:
                return response
        return None
