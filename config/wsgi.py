"""Django's WSGI handler, made for many small requests.

`config.rsgi` serves it behind `api.front`, which reads bodies and keeps the limits. Another WSGI server
can serve `application`, but then a slow body holds a thread.
"""

import gc
import os
from collections.abc import Iterable
from http import HTTPStatus
from http.client import responses
from io import BytesIO
from typing import Any

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler, get_script_name
from django.db import close_old_connections
from django.http import HttpRequest
from django.urls import get_resolver, set_script_prefix

from catalog.postgresql import limits

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")


class Handler(WSGIHandler):
    """Django's handler with less around a request: together a third of what a read took.

    - The signals at both ends are not sent. Their receivers keep a log of queries, close caches and
      age connections; none of that happens here, and what remains to do is done directly.
    - The hot routes are looked up, not searched for.
    - What a client has already is not even a request to Django.
    """

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:  # type: ignore[override]
        """A whole answer is returned as a list, which granian sends at once with its length."""
        if (
            "CONTENT_LENGTH" not in environ
            and environ.get("HTTP_TRANSFER_ENCODING")
            and environ.get("CONTENT_TYPE") != STREAM_TYPE  # which is read batch by batch
        ):
            # Django reads nothing of a body without a length. One byte over the limit is enough to
            # have it refused.
            content = environ["wsgi.input"].read(settings.MONODON_MAX_BODY_BYTES + 1)
            environ |= {"wsgi.input": BytesIO(content), "CONTENT_LENGTH": str(len(content))}
        answer = self.answer(environ)
        start_response(f"{answer.status} {responses.get(answer.status, '')}", answer.headers)
        return answer.stream if answer.stream is not None else [answer.content]

    def answer(self, environ: dict[str, Any]) -> "Answer":
        """The answer to a request whose body is whole, or is a stream of Arrow batches."""
        if "HTTP_IF_NONE_MATCH" in environ and (headers := unchanged.headers(environ)) is not None:
            close_old_connections()
            return Answer(HTTPStatus.NOT_MODIFIED, headers)
        set_script_prefix(get_script_name(environ))
        request = self.request_class(environ)
        response: Any = self._middleware_chain(request)  # type: ignore[attr-defined]
        headers = [
            *response.items(),
            *(("Set-Cookie", cookie.OutputString()) for cookie in response.cookies.values()),
        ]
        if response.streaming:
            return Answer(response.status_code, headers, stream=response)
        request.close()
        close_old_connections()
        return Answer(
            response.status_code,
            headers,
            response.content,
            principal=getattr(request, "actor_name", ""),
        )

    def resolve_request(self, request: HttpRequest) -> Any:
        path = request.path_info
        return lance_urls.find(path) or iceberg_urls.find(path) or super().resolve_request(request)


# Imports leave no garbage to collect: looking for it would take a fifth of the start.
gc.disable()
django.setup(set_prefix=False)
limits.serve_requests()
# The routes need the applications.
from api.front.answer import Answer  # noqa: E402
from api.iceberg import unchanged  # noqa: E402
from api.iceberg import urls as iceberg_urls  # noqa: E402
from api.lance import urls as lance_urls  # noqa: E402
from api.lance.arrow import STREAM_TYPE  # noqa: E402
from catalog.storage import object_store  # noqa: E402, F401 -- before the first request

application = Handler()
# Load every view now: the first caller would wait seconds for it.
get_resolver().url_patterns  # noqa: B018
# What is loaded by now stays, so the collector need not look at it again and again; and requests
# leave few cycles behind.
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20, 20)
gc.enable()
