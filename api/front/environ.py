"""The WSGI environment of an RSGI request."""

import sys
from io import BytesIO
from typing import Any

from api import aliases
from catalog.errors import InvalidInput

_BASE: dict[str, Any] = {
    "GATEWAY_INTERFACE": "CGI/1.1",
    "SCRIPT_NAME": "",
    "SERVER_SOFTWARE": "Granian",
    "wsgi.errors": sys.stderr,
    "wsgi.input_terminated": True,
    "wsgi.multiprocess": False,
    "wsgi.multithread": True,
    "wsgi.run_once": False,
    "wsgi.version": (1, 0),
}
_SINGLE = frozenset(
    {
        "CONTENT_TYPE",
        "CONTENT_LENGTH",
        "HTTP_AUTHORIZATION",
        "HTTP_CONTENT_ENCODING",
        "HTTP_HOST",
        "HTTP_IDEMPOTENCY_KEY",
        "HTTP_TRANSFER_ENCODING",
        "HTTP_X_API_KEY",
        "HTTP_X_LANCEDB_DATABASE",
        "HTTP_X_LANCEDB_DATABASE_PREFIX",
    }
)
"""Headers that may occur only once, because a proxy might use another occurrence than this server."""
_MAX_KEYS = 1000
_keys: dict[str, str] = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}


def build(scope: Any) -> tuple[dict[str, Any], InvalidInput | None]:
    """Return the environment, and the error in the head of the request, if there is one."""
    environ = _BASE.copy()
    path = aliases.path_of(scope.path)
    environ["REQUEST_METHOD"] = scope.method
    # PEP 3333: bytes as Latin-1. RSGI gives the decoded text.
    environ["PATH_INFO"] = path if path.isascii() else path.encode().decode("latin-1")
    environ["QUERY_STRING"] = scope.query_string
    environ["SERVER_NAME"], _, environ["SERVER_PORT"] = scope.server.rpartition(":")
    environ["SERVER_PROTOCOL"] = "HTTP/1.1" if scope.http_version == "1.1" else "HTTP/1.0"
    environ["REMOTE_ADDR"] = scope.client.rpartition(":")[0].strip("[]")
    environ["wsgi.url_scheme"] = scope.scheme
    error = None
    for name, value in scope.headers.items():
        key = _keys.get(name)
        if key is None:
            if "_" in name:
                # A proxy that filters X-Api-Key may let x_api_key pass; WSGI makes them one key.
                error = InvalidInput(f"The name of the header '{name}' contains an underscore")
                continue
            key = _key(name)
        if key not in environ:
            environ[key] = value
        elif key in _SINGLE:
            error = InvalidInput(f"The header '{name}' occurs more than once")
        else:
            joint = "; " if key == "HTTP_COOKIE" else ","
            environ[key] = f"{environ[key]}{joint}{value}"
    if "\ufffd" in path:
        # Invalid UTF-8 is replaced by this character, so two paths could name one table.
        error = InvalidInput("The path is not valid UTF-8")
    return environ, error


def _key(name: str) -> str:
    key = "HTTP_" + name.upper().replace("-", "_")
    if len(_keys) < _MAX_KEYS:
        _keys[name] = key
    return key


def set_body(request: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Set the complete body of a request, and return the request."""
    request["wsgi.input"] = BytesIO(body)
    request["CONTENT_LENGTH"] = str(len(body))
    request.pop("HTTP_TRANSFER_ENCODING", None)
    return request
