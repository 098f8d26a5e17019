"""Paths of files, as Hadoop and other readers understand them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_FILE_SCHEME = re.compile(r"^file:(//localhost(?=/))?", re.IGNORECASE)
_MAX_PATH = 4096  # bytes of a path that the operating system opens


def is_metadata_file(path: str) -> bool:
    return ".metadata.json" in path.rpartition("/")[2]


def is_below(directory: str, prefix: str) -> bool:
    return f"{directory}/".startswith(prefix.rstrip("/") + "/")


def is_plain(path: str) -> bool:
    """True if a path has no empty part and no ``.`` or ``..``, which could point elsewhere."""
    parts = path.partition(":")[2] or path
    names = parts.lstrip("/").split("/")
    return not any(name in {"", ".", ".."} for name in names)


def local_path(path: str) -> str | None:
    """The local path that Hadoop reads for a path or URI; None for other storage."""
    for prefix in ("file://localhost/", "file:///", "file:/"):
        if path.startswith(prefix):
            local_path = "/" + path.removeprefix(prefix)
            return None if local_path.startswith("//") else local_path
    return path if path.startswith("/") and not path.startswith("//") else None


def lenient_path(path: str) -> str:
    """The same local path for readers that take no host from it, and any letters as those of the scheme."""
    path = _FILE_SCHEME.sub("", path)
    return "/" + path.lstrip("/") if path.startswith("/") else path


def real_path(path: str) -> str:
    local = local_path(path)
    if local is not None and len(local) > _MAX_PATH:
        local = os.path.normpath(
            local
        )  # to follow links would take time with the square of the length
    if local is None or len(local) > _MAX_PATH or "\0" in local:  # no file has such a name
        return path.rstrip("/")
    return os.path.realpath(local)


def is_local(path: str) -> bool:
    """True for local files, as any reader understands a path; False for objects."""
    return lenient_path(path).startswith("/")


def readings(path: str) -> Iterator[str]:
    """The paths that readers of local files derive from a path.

    PyIceberg opens what is before the query and the fragment of a URI. Hadoop applies ``..`` before it follows links.
    """
    yield path
    if "?" in path or "#" in path:
        path = re.split("[?#]", path, maxsplit=1)[0]
        yield path
    if ".." in path:
        yield os.path.normpath(lenient_path(path))


def is_link(path: str) -> bool:
    """True if a local path is that of a symbolic link."""
    try:
        return Path(path).is_symlink()
    except OSError:  # no file has such a long name
        return False
