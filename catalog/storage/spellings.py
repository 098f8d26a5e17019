"""The file that a reader opens for a text in Iceberg metadata, only to compare it with other files.

Nothing here is refused, and nothing is opened. Readers that understand a text differently have different files for it.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress

from catalog.storage import object_locations

_FILE_SCHEME = re.compile(r"^file:(//localhost(?=/))?", re.IGNORECASE)
_OBJECT = re.compile(r"[^/]*://(?!/)")
_MAX_PATH = 4096  # bytes of a path that the operating system opens


def readings(text: str) -> Iterator[str]:
    """The texts that readers derive from a text before they look for a local file.

    PyIceberg opens what is before the query and the fragment of a URI. Hadoop applies ``..`` before it follows links.
    """
    yield text
    if "?" in text or "#" in text:
        text = re.split("[?#]", text, maxsplit=1)[0]
        yield text
    if ".." in text and (path := _absolute(text)):
        yield os.path.normpath(path)


def local_file(text: str) -> str:
    """The path of a local file, with links followed; the text if it is of no local file."""
    path = _absolute(text)
    if path is None:
        return text
    if len(path) > _MAX_PATH:  # to follow links would take time with the square of the length
        path = os.path.normpath(path)
    if len(path) <= _MAX_PATH:
        with suppress(ValueError):  # it has a null character
            return os.path.realpath(path)
    return text


def object_of(text: str, location: str) -> str | None:
    """The canonical path of an object that a table at ``location`` names; None for other texts.

    Some readers ignore empty segments. Iceberg ignores the scheme, and what follows a question mark or a number sign.
    """
    scheme = object_locations.scheme_of(text)
    if object_locations.is_object(location) and (scheme or _OBJECT.match(text)):
        scheme = object_locations.scheme_of(location)
    if scheme is None:
        return None
    scheme = object_locations.canonical_scheme(scheme)
    authority, _, key = text.partition(":")[2].strip().lstrip("/").partition("/")
    if scheme == "abfss":
        authority = authority.replace(".blob.", ".dfs.")
    else:
        authority = authority.rpartition("@")[2].partition(":")[0]
    key = re.split("[?#]", key, maxsplit=1)[0]
    return f"{scheme}://{authority}{posixpath.normpath('/' + key.lstrip('/'))}"


def _absolute(text: str) -> str | None:
    """The absolute path in a text of a local file; None for other texts."""
    path = _FILE_SCHEME.sub("", text)
    return "/" + path.lstrip("/") if path.startswith("/") else None
