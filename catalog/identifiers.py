"""Names of namespaces and tables: parsing, validation, and the digest for lookups."""

import hashlib
import re
import unicodedata
import uuid
from collections.abc import Sequence
from functools import lru_cache

from catalog.errors import InvalidIdentifier, label

Identifier = tuple[str, ...]
"""The parts of a name from the root down; the empty tuple is the root namespace."""

DEFAULT_DELIMITER = "$"
MAX_NAME_LENGTH = 255
_SEPARATOR = "\x1f"
# Route suffixes that follow an identifier. The server sees decoded paths, so it would read
# "/v1/table/a%2Fversion/describe" as the description of a version of "a".
_ROUTE_WORDS = (
    *("/table", "/version", "/tags", "/branches", "/index", "/schema_metadata"),
    # Iceberg's suffixes, which follow a namespace or a table.
    *("/tables", "/views", "/functions", "/properties", "/register", "/register-view"),
    *("/metrics", "/plan", "/tasks", "/sign", "/credentials", "/unregister"),
)
_ROUTE_PARTS = ("/index/", "/tables/", "/views/", "/functions/", "/plan/")
# Characters that are not displayed, and those that change the order in which others are displayed:
# a name with them could pass for another one, for example in an approval. The joiners of emoji and of
# several scripts are allowed.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\U000e0000-\U000e007f]"
)
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_SPECIAL = re.compile(r"""["$.]|^\s|\s$""")
_MAX_CACHED_LENGTH = 500  # characters
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


def check_name(name: str) -> str:
    """Return the name. Raises InvalidIdentifier if it is empty, too long or unprintable."""
    if not name:
        raise InvalidIdentifier("A name must not be empty")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidIdentifier(
            f"The name '{name[:40]}…' has {len(name)} characters; {MAX_NAME_LENGTH} are allowed"
        )
    if not name.isprintable() and any(unicodedata.category(c) in {"Cc", "Cs"} for c in name):
        raise InvalidIdentifier(f"The name {name!r} holds a control character")
    if not name.isascii() and _INVISIBLE.search(name):
        raise InvalidIdentifier(f"The name {name!r} holds a character that is not displayed")
    if "/" in name and (name.endswith(_ROUTE_WORDS) or any(word in name for word in _ROUTE_PARTS)):
        raise InvalidIdentifier(
            f"The name {name!r} cannot be addressed: a URL reads it as a part of the route"
        )
    return name


def check(parts: Sequence[str]) -> Identifier:
    """The parts as an identifier. Raises InvalidIdentifier for the first invalid name."""
    for name in parts:
        check_name(name)
    return tuple(parts)


def check_table(parts: Sequence[str]) -> Identifier:
    """Like ``check``, for the identifier of a table, which cannot be the root namespace."""
    if not parts:
        raise InvalidIdentifier("The root namespace is not a table: a table needs a name")
    return check(parts)


def parse(text: str, delimiter: str = DEFAULT_DELIMITER) -> Identifier:
    """The identifier in a request's path. The delimiter alone is the root namespace."""
    if not delimiter:
        raise InvalidIdentifier("The delimiter must not be empty")
    if text == delimiter:
        return ()
    return check(text.split(delimiter))


def typed(text: str) -> Identifier:
    """The identifier in a text that a person has typed, in the form of ``monodon.client.names``.

    Names are separated by dots, or by ``$`` if the text has one, and double quotes protect both:
    ``prod.users``, ``prod$users``, ``prod."a.b"``. A single name with a dot may also end with ``$``:
    ``a.b$``. An empty text, ``.`` and ``$`` are the root. Raises InvalidIdentifier.
    """
    text = text.strip()
    if text in {"", ".", DEFAULT_DELIMITER}:
        return ()
    chunks = _QUOTED.split(text)  # every second one was quoted
    if any('"' in chunk for chunk in chunks[::2]):
        raise InvalidIdentifier(f"A quote of '{text[:MAX_NAME_LENGTH]}' is not closed")
    separator = DEFAULT_DELIMITER if any(DEFAULT_DELIMITER in c for c in chunks[::2]) else "."
    parts = [""]
    for index, chunk in enumerate(chunks):
        if index % 2:
            parts[-1] += chunk.replace('""', '"')
        else:
            first, *more = chunk.split(separator)
            parts[-1] += first
            parts += more
    if separator == DEFAULT_DELIMITER and not parts[-1]:
        parts.pop()
    return check(parts)


def lookup(text: str) -> uuid.UUID:
    """The database key of a typed name. A text that is not a name has a key that no row has."""
    try:
        return digest(typed(text))
    except InvalidIdentifier:
        return uuid.UUID(int=0)


def spelled(identifier: Sequence[str]) -> str:
    """The identifier such that ``typed`` reads it."""
    if not identifier:
        return DEFAULT_DELIMITER
    return ".".join(
        '"' + name.replace('"', '""') + '"' if _SPECIAL.search(name) else name
        for name in identifier
    )


def fold(identifier: Sequence[str]) -> str:
    """The normal form in which identifiers are compared.

    Lance clients form-encode names in a path, others percent-encode them. In the decoded path that a
    server sees, ``a b`` and ``a+b`` are indistinguishable. So they are one name.
    """
    return _SEPARATOR.join(identifier).replace("+", " ")


def digest(identifier: Sequence[str]) -> uuid.UUID:
    """The database key of a namespace or a table.

    A B-tree cannot hold a path of any depth, and a lookup by digest is quicker than a join over the
    path. SHA-256 rather than a shorter hash, because clients choose the names.
    """
    parts = tuple(identifier)
    # Long identifiers are not cached: any client can request them, existing or not.
    return _cached_digest(parts) if sum(map(len, parts)) <= _MAX_CACHED_LENGTH else _digest(parts)


def _digest(identifier: Identifier) -> uuid.UUID:
    return uuid.UUID(bytes=hashlib.sha256(fold(identifier).encode()).digest()[:16])


_cached_digest = lru_cache(maxsize=16_384)(_digest)


def slug(identifier: Sequence[str], length: int) -> str:
    """A readable part of a storage path for a name, valid in every file system and URI."""
    return _UNSAFE.sub("_", "-".join(identifier))[:length].strip("_-") or "table"


__all__ = [
    "DEFAULT_DELIMITER",
    "MAX_NAME_LENGTH",
    "Identifier",
    "check",
    "check_name",
    "check_table",
    "digest",
    "fold",
    "label",
    "lookup",
    "parse",
    "slug",
    "spelled",
    "typed",
]
