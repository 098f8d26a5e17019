"""The database of a request: the namespace that all names in the request are relative to."""

from urllib.parse import unquote

from django.http import HttpRequest

from api.database_header import KEY
from catalog import identifiers
from catalog.errors import InvalidIdentifier
from catalog.identifiers import Identifier

_PREFIX = "HTTP_X_LANCEDB_DATABASE_PREFIX"
"""``db://prod/eu/hr`` sends ``eu/hr``."""


def of_request(request: HttpRequest) -> Identifier:
    """Return the namespace of the database, which may not exist. Raises InvalidIdentifier.

    The database is one name, whatever characters it has; an empty one (``db://``) is the root namespace.
    Each segment of the prefix is the name of a namespace inside the previous one.
    """
    database = request.META[KEY]
    prefix = request.META.get(_PREFIX, "").strip("/")
    names = ([database] if database else []) + (prefix.split("/") if prefix else [])
    return identifiers.check([_decoded(name) for name in names])


def _decoded(text: str) -> str:
    """A name as the user wrote it. The clients percent-encode what a URL's host may not contain."""
    if not text.isascii():
        raise InvalidIdentifier("A database's name must be percent-encoded if it is not ASCII")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidIdentifier(f"The database's name {text[:40]!r} is not UTF-8") from None
