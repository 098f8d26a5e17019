"""The OpenAPI documents. Each is generated once per process, because that takes seconds and any
client may request it."""

import hashlib
import threading
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response
from drf_spectacular.views import SpectacularAPIView

_documents: dict[tuple[type, str], "_Document"] = {}
_lock = threading.Lock()


class _Document:
    def __init__(self, content: bytes, disposition: str) -> None:
        self.content = content
        self.headers = {
            "Content-Disposition": disposition,
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        }


class Document(SpectacularAPIView):
    """An OpenAPI document as YAML or JSON. It depends on the code alone, not on the request."""

    def get(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        renderer = request.accepted_renderer
        key = self.generator_class, renderer.media_type
        document = _documents.get(key)
        if document is None:
            with _lock:
                document = _documents.get(key)
                if document is None:
                    document = _documents[key] = self._make(request, renderer)
        response = HttpResponse(
            document.content, content_type=renderer.media_type, headers=document.headers
        )
        plain: HttpRequest = request._request  # noqa: SLF001 -- Django's own
        etag = document.headers["ETag"]
        return get_conditional_response(plain, etag=etag, response=response) or response

    def _make(self, request: Any, renderer: Any) -> _Document:
        made = super().get(request)  # type: ignore[no-untyped-call]
        content = renderer.render(made.data, renderer_context={"response": made})
        return _Document(content, made.headers["Content-Disposition"])

    def _get_version_parameter(self, request: Any) -> None:
        """Return no version, because each version would be a separate document."""
