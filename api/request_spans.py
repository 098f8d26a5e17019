"""The OpenTelemetry spans of requests, if tracing is on."""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from api import request_facts
from catalog import tracing

_Handler = Callable[[HttpRequest], HttpResponseBase]


def traced(get_response: _Handler) -> _Handler:
    """Record a span for each request that ``get_response`` answers. Its id must be set.

    The span has the name of the operation. It contains the path, but no query string, header or body.
    It ends before the body of a streamed answer is sent.
    """
    if not tracing.is_on():
        return get_response

    def respond(request: HttpRequest) -> HttpResponseBase:
        request_id: str = request.request_id  # type: ignore[attr-defined]
        with tracing.request(
            request.method or "HTTP",
            request_id=request_id,
            traceparent=request.META.get("HTTP_TRACEPARENT", ""),
        ) as span:
            response = get_response(request)
            if operation := request_facts.operation(request):
                span.update_name(operation)
            tracing.annotate(
                {
                    "http.request.method": request.method or "",
                    "http.response.status_code": response.status_code,
                    "url.path": request.path,
                    "enduser.id": request_facts.actor(request),
                    "monodon.request_id": request_id,
                },
                error=response.reason_phrase if response.status_code >= 500 else "",
            )
            return response

    return respond
