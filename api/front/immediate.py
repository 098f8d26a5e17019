"""Requests that are answered in the event loop, because they need neither the database nor a thread."""

from typing import Any

from api import credentials, database_header
from catalog.access import Principal
from catalog.services.access import known_keys

_CONFIG = "/v1/config"


def principal_of(request: dict[str, Any]) -> Principal | None:
    """The principal of such a request: for the Iceberg configuration of the whole catalog, by a cached key.

    None: the request needs a thread.
    """
    if request["PATH_INFO"] != _CONFIG or request["REQUEST_METHOD"] != "GET":
        return None
    if request["QUERY_STRING"] or "HTTP_IF_NONE_MATCH" in request or database_header.KEY in request:
        return None
    key = credentials.key_of(request)
    return None if key is None else known_keys.cached_principal(key)
