"""The header that selects the dialect of LanceDB's clients (``api.lancedb``)."""

from django.http import HttpRequest

KEY = "HTTP_X_LANCEDB_DATABASE"
"""The header, in WSGI's spelling. ``db://prod`` sends ``prod``."""
PATHS = "/v1/"
"""The beginning of the paths to which the header applies."""
ROUTES = "api.lancedb.urls"


def selects_dialect(request: HttpRequest) -> bool:
    """True for a request of the dialect."""
    return KEY in request.META and request.path_info.startswith(PATHS)
