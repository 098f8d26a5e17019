"""Locations: checking and resolving the paths and URIs that callers name.

A location is stored in its canonical form, without a slash at its end: an absolute local path, or a
URI such as ``s3://bucket/key`` (``object_locations``). Every location and every path from a caller is
normalised and checked here before anything is opened.
"""

import os
import re
import stat
import unicodedata
import uuid
from collections.abc import Iterable, Sequence
from urllib.parse import quote, unquote, urlsplit

from django.conf import settings

from catalog.errors import InvalidLocation, InvalidManifestPath, LocationFault
from catalog.storage import object_locations, stores

TEST_PREFIX = ".monodon-test-"
"""Begins the name of the directory that holds the objects of a test of a profile, which tests remove."""
_TRAVERSAL = "holds '..'"
_RESERVED = "is a name that the server uses itself"
_MAX_PATH_BYTES = 2000  # PostgreSQL indexes locations, and an index entry ends at 2,704 bytes
_NEEDS_CARE = re.compile(r"[%:]|\.\.|//|(?:^|/)\.(?:/|$)|/$|^$|^ +$")


def allowed_roots() -> list[str]:
    """The local directories that may hold tables, the warehouse first."""
    return [
        _resolved_root(root)
        for root in (settings.MONODON_WAREHOUSE, *settings.MONODON_ALLOWED_ROOTS)
    ]


_resolved_roots: dict[str, str] = {}


def _resolved_root(root: str | os.PathLike[str]) -> str:
    """The canonical path of a directory of the settings, resolved once for the process."""
    name = os.fspath(root)
    resolved = _resolved_roots.get(name)
    if resolved is None:
        resolved = os.path.realpath(name)
        if os.path.isdir(resolved):  # a link may still take the place of a missing directory
            _resolved_roots[name] = resolved
    return resolved


def new_location(stem: str, base: str | None = None) -> str:
    """A unique location for a new table: below a canonical directory, by default the warehouse."""
    return f"{base or allowed_roots()[0]}/{stem}-{uuid.uuid4().hex}"


def is_directly_in_warehouse(location: str) -> bool:
    """True if the parent of a location is the warehouse, so that no table can enclose it."""
    return location.rpartition("/")[0] == allowed_roots()[0]


def check_location(location: str) -> str:
    """The canonical form of a table location from a caller.

    A path without a scheme or a leading slash is relative to the warehouse. Raises InvalidLocation
    unless the location is strictly below an allowed root or a root of a storage profile.
    """
    if object_locations.scheme_of(location):
        return _allowed_object(location, object_locations.canonical_directory(location))
    path, cause = _read_path(location)
    if cause:
        fault = LocationFault.TRAVERSAL if cause == _TRAVERSAL else LocationFault.OTHER
        raise InvalidLocation(location, cause, fault=fault)
    if path is None:
        scheme = location.partition("://")[0]
        cause = f"uses {scheme}://, which this server does not serve yet"
        raise InvalidLocation(location, cause, fault=LocationFault.SCHEME)
    return _allowed(location, path if path.startswith("/") else f"{allowed_roots()[0]}/{path}")


def is_relative(location: str) -> bool:
    """True if a location from a caller is relative to the warehouse."""
    path = _local_path(location)
    return path is not None and not path.startswith("/")


def iceberg_path(location: str) -> str:
    """The canonical path of a location or file that Iceberg metadata names.

    Iceberg's readers do not decode such text, so neither does this function: ``file:///a%20b`` is a
    name with a percent sign. Raises InvalidLocation, before anything is opened, unless the path is
    strictly below an allowed root or a root of a storage profile.
    """
    if not isinstance(location, str):
        raise InvalidLocation(str(location), "is not a text")
    if object_locations.scheme_of(location):
        return _allowed_object(location, object_locations.canonical_directory(location))
    path = _without_scheme(location)
    if fault := _fault(path):
        raise InvalidLocation(location, fault)
    if not path.startswith("/"):
        scheme, colon, _ = location.partition(":")
        if colon and "/" not in scheme:
            raise InvalidLocation(location, f"uses {scheme}:, which this server does not serve yet")
        raise InvalidLocation(location, "is not absolute")
    return _allowed(location, path)


def _without_scheme(text: str) -> str:
    for prefix in ("file://localhost/", "file:///", "file:/"):
        if text.startswith(prefix):
            return "/" + text.removeprefix(prefix)
    return text


def is_relative_iceberg_path(location: str) -> bool:
    """True if a text in Iceberg metadata is a relative path rather than a URI."""
    scheme, colon, _ = location.partition(":")
    return bool(location) and not location.startswith("/") and not (colon and "/" not in scheme)


def iceberg_uri(path: str) -> str:
    """A canonical path as Iceberg metadata names it: a URI without encoding."""
    return path if is_object(path) else "file://" + path


def home() -> str:
    """The directory of the server's own files."""
    return _resolved_root(settings.MONODON_HOME)


def path_fault(path: str) -> str | None:
    """The fault of a path from a caller; None if it is valid."""
    return _fault(path)


def lance_path(text: str) -> str | None:
    """The path that Lance reads for a text: URIs of local files are decoded.

    It may be relative, and end with slashes. None if the path is invalid or in a storage that is not
    served.
    """
    if object_locations.scheme_of(text):
        try:
            return object_locations.canonical_directory(text)
        except InvalidLocation:
            return None
    path, fault = _read_path(text)
    return None if fault else path


def is_object(path: str) -> bool:
    """True if a canonical path is in an object store."""
    return object_locations.is_object(path)


def is_absolute(path: str) -> bool:
    """True if a path is a local path from the root, or in an object store."""
    return path.startswith("/") or is_object(path)


def is_below_any(path: str, directories: Iterable[str]) -> bool:
    """True if a canonical path is one of the directories or below one."""
    return any(path == directory or is_below(path, directory) for directory in directories)


def _allowed(location: str, path: str) -> str:
    """The canonical form of an absolute path. Raises InvalidLocation if it may not hold tables."""
    roots = allowed_roots()
    canonical = _resolved(path, roots)
    own = home()
    if any(canonical == root or is_below(root, canonical) for root in (*roots, own)) or (
        is_below(canonical, own) and not is_below(canonical, roots[0])
    ):
        raise InvalidLocation(location, "holds what belongs to the server itself")
    if not any(is_below(canonical, root) for root in roots):
        raise InvalidLocation(
            location,
            "is outside the directories in which tables may lie",
            fault=LocationFault.OUTSIDE,
            detail="Tables may lie under MONODON_WAREHOUSE and MONODON_ALLOWED_ROOTS.",
        )
    return canonical


def _resolved(path: str, roots: Sequence[str]) -> str:
    """The canonical form of an absolute path: a symbolic link below a root may lead out of it.

    The paths of the roots have no links, so only what is below the outermost root is looked at.
    """
    root = min((root for root in roots if is_below(path, root)), key=len, default=None)
    if root is None or os.path.normpath(path) != path:
        return os.path.realpath(path)
    end = len(root)
    while end != -1:
        end = path.find("/", end + 1)
        try:
            status = os.lstat(path if end == -1 else path[:end])
        except FileNotFoundError:
            return path  # nothing is below it either
        except OSError:
            return os.path.realpath(path)
        if stat.S_ISLNK(status.st_mode):
            return os.path.realpath(path)
    return path


def _allowed_object(location: str, path: str) -> str:
    """A canonical path in an object store. Raises InvalidLocation if it may not hold tables."""
    configuration = stores.configuration_of(path)
    if configuration is None or path in configuration.roots:
        raise outside_profiles(location)
    if f"/{TEST_PREFIX}" in path:
        raise InvalidLocation(location, _RESERVED)
    return path


def outside_profiles(location: str) -> InvalidLocation:
    """The refusal of a location in an object store, in the same words wherever it is."""
    return InvalidLocation(
        location,
        "is outside the object storage that may be used here",
        fault=LocationFault.OUTSIDE_PROFILES,
        detail="Use a location below that of the namespace, or leave it out.",
    )


def literal_directory(text: str) -> str | None:
    """The canonical path of a directory as Iceberg's readers understand it, without decoding.

    None if no table's path is spelled like that.
    """
    if object_locations.scheme_of(text):
        try:
            return object_locations.canonical_file(text)
        except InvalidLocation:
            return None
    path = _without_scheme(text)
    if path.startswith("//") and not text.startswith(("file://localhost/", "file:///")):
        return None  # Java's file systems take what follows as a host
    if not path.startswith("/") or path_fault(path) is not None:
        return None
    return path


def uri(location: str) -> str:
    """A location as an encoded URI: ``file:///data/a%20b``. Locations in object stores need no encoding."""
    return location if is_object(location) else "file://" + quote(location)


def parents(location: str) -> list[str]:
    """Every directory above a location, nearest first, without the root of the file system.

    Of a location in an object store, the last one is the bucket.
    """
    first = object_locations.bucket_of(location) if is_object(location) else ""
    above = []
    while location != first and (location := location.rpartition("/")[0]) != "":
        above.append(location)
    return above


def _read_path(text: str) -> tuple[str | None, str | None]:
    """The local path of a text (None for another storage), and its fault.

    Checked before and after the URI is parsed, because parsing drops line breaks.
    """
    fault = _fault(text) or _uri_fault(text)
    local = None if fault else _local_path(text)
    return local, fault if local is None else _fault(local)


def _local_path(text: str) -> str | None:
    """The local path of a location or path; None for a URI of another storage."""
    if not _is_uri(text):
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    if parts.query or parts.fragment:
        return None
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        return None
    return unquote(parts.path)


def _is_uri(text: str) -> bool:
    return "://" in text or text.startswith("file:")


def _uri_fault(text: str) -> str | None:
    """The fault of a URI that its readers understand differently; None if they all agree.

    Lance takes a backslash in a URI for a slash, and drops spaces around it.
    """
    if _is_uri(text) and ("\\" in text or text != text.strip()):
        return "is a URI with a backslash, or with spaces around it"
    return None


def _fault(path: str) -> str | None:
    """The fault of a path from a caller; None if it is valid."""
    if not path.strip("/ "):
        return "is empty"
    for spelling in {path, unquote(path)}:
        if not spelling.isprintable() and any(
            unicodedata.category(c) in {"Cc", "Cs"} for c in spelling
        ):
            return "holds a control character"
        if ".." in spelling.split("/"):
            return _TRAVERSAL
    if re.search(r"\.purged-\d+(/|$)", path):
        return _RESERVED
    if len(path.encode()) > _MAX_PATH_BYTES:
        return f"is longer than {_MAX_PATH_BYTES} bytes"
    return None


def is_below(path: str, directory: str) -> bool:
    """True if a canonical path is strictly below a directory."""
    return path.startswith(directory.rstrip("/") + "/")


def path_in_table(location: str, path: str) -> str | None:
    """A manifest path relative to the table; None if it is outside the table.

    Clients send it relative to the store (no leading slash), relative to the table, absolute, or as
    a URI. A relative path that is not in this table, if read relative to the store, is relative to
    the table. Raises InvalidManifestPath for an empty path, ``..`` and control characters.
    """
    if is_object(location):
        return _path_in_object_table(location, path)
    if len(path) < _MAX_PATH_BYTES // 4 and path.isprintable() and not _NEEDS_CARE.search(path):
        # Nearly all paths: nothing to decode, to normalise or to refuse.
        absolute = "/" + path.lstrip("/")
        if is_below(absolute, location):
            return absolute[len(location) + 1 :]
        return None if path.startswith("/") else path
    local, fault = _read_path(path)
    if fault:
        raise InvalidManifestPath(path, fault)
    if local is None:
        return None
    inside = [
        absolute[len(location) + 1 :]
        for spelling in dict.fromkeys((local, unquote(local)))
        if is_below(absolute := os.path.normpath("/" + spelling.lstrip("/")), location)
    ]
    if len(inside) > 1:  # a name with a percent sign: prefer the file that exists
        inside.sort(key=lambda name: not os.path.lexists(f"{location}/{name}"))
    if inside:
        return inside[0]
    if local.startswith("/") or "://" in path:
        return None
    # Relative to the table, or relative to the store; the latter does not exist in the table.
    return os.path.normpath(local)


def _path_in_object_table(location: str, path: str) -> str | None:
    bucket = object_locations.bucket_of(location)
    try:
        if object_locations.scheme_of(path):
            absolute = object_locations.canonical_file(path)
        else:
            absolute = object_locations.canonical_file(f"{bucket}/{path.removeprefix('/')}")
    except InvalidLocation as error:
        raise InvalidManifestPath(path, error.cause) from None
    if is_below(absolute, location):
        return absolute[len(location) + 1 :]
    # Relative to the table, or to the bucket; the latter does not exist in the table.
    return None if path.startswith("/") or "://" in path else path


def is_surely_in_table(location: str, relative: str) -> bool:
    """True if a relative path is certainly relative to this table, not to the store."""
    if relative.split("/", maxsplit=1)[0] in {"_versions", "tree"}:
        return True
    return not is_object(location) and os.path.lexists(f"{location}/{relative}")


def store_path(location: str, relative: str) -> str:
    """The path of a table's file relative to its store: no scheme, no bucket, no leading slash."""
    path = f"{location}/{relative}"
    return object_locations.key_of(path) if is_object(location) else path.lstrip("/")
