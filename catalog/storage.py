"""Where tables lie: locations, and the few file operations that the catalog itself performs.

A location is kept as an absolute local path without a trailing slash. Every location and every
path that a caller names is normalised and checked here before anything is opened. Locations in
object stores are not served yet and are refused in plain words.
"""

import contextlib
import errno
import os
import re
import stat
import unicodedata
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from django.conf import settings

from catalog import regular_files
from catalog.errors import InvalidLocation, InvalidManifestPath, LocationFault

_TRAVERSAL = "holds '..'"
_MAX_PATH_BYTES = 2000  # PostgreSQL indexes locations, and an index entry ends at 2,704 bytes
IMPOSSIBLE = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}
"""Errors that tell of the path itself: no file is there, and none will be."""
_NEEDS_CARE = re.compile(r"[%:]|\.\.|//|(?:^|/)\.(?:/|$)|/$|^$|^ +$")


# --- locations ---------------------------------------------------------------------------------


def allowed_roots() -> list[str]:
    """The directories in which tables may lie, the warehouse first."""
    return [
        os.path.realpath(root)
        for root in (settings.MONODON_WAREHOUSE, *settings.MONODON_ALLOWED_ROOTS)
    ]


def new_location(stem: str) -> str:
    """A location of its own for a new table: never used before, never given out again."""
    return f"{allowed_roots()[0]}/{stem}-{uuid.uuid4().hex}"


def is_directly_in_warehouse(location: str) -> bool:
    """Whether no table can lie around a location, because its directory is the warehouse itself."""
    return location.rpartition("/")[0] == allowed_roots()[0]


def check_location(location: str) -> str:
    """The canonical form of a table location that a caller named.

    A path without a scheme or a leading slash is taken relative to the warehouse. Raises
    InvalidLocation for anything that is not a directory strictly below an allowed root.
    """
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
    """Whether a location that a caller named is relative to the warehouse."""
    path = _local_path(location)
    return path is not None and not path.startswith("/")


def iceberg_path(location: str) -> str:
    """The canonical local path of a location or file that Iceberg metadata names.

    Iceberg's readers take such text as it is and decode nothing, so neither does this:
    ``file:///a%20b`` is a name with a percent sign. Raises InvalidLocation for anything that does
    not lie strictly below an allowed root, before anything is opened.
    """
    if not isinstance(location, str):
        raise InvalidLocation(str(location), "is not a text")
    path = location
    for prefix in ("file://localhost/", "file:///", "file:/"):
        if location.startswith(prefix):
            path = "/" + location.removeprefix(prefix)
            break
    if fault := _fault(path):
        raise InvalidLocation(location, fault)
    if not path.startswith("/"):
        scheme, colon, _ = location.partition(":")
        if colon and "/" not in scheme:
            raise InvalidLocation(location, f"uses {scheme}:, which this server does not serve yet")
        raise InvalidLocation(location, "is not absolute")
    return _allowed(location, path)


def is_relative_iceberg_path(location: str) -> bool:
    """Whether Iceberg metadata's text names a path without a root, and no URI."""
    scheme, colon, _ = location.partition(":")
    return bool(location) and not location.startswith("/") and not (colon and "/" not in scheme)


def iceberg_uri(path: str) -> str:
    """A local path as Iceberg metadata names it: a URI of which nothing is encoded."""
    return "file://" + path


def home() -> str:
    """The directory of what belongs to the server itself."""
    return os.path.realpath(settings.MONODON_HOME)


def path_fault(path: str) -> str | None:
    """What is wrong with a path that somebody wrote, or None."""
    return _fault(path)


def local_path(text: str) -> str | None:
    """The path that Lance reads for a text: URIs are decoded. None: another storage's, or faulty."""
    path, fault = _read_path(text)
    return None if fault else path


def is_below_any(path: str, directories: Iterable[str]) -> bool:
    """Whether a canonical path is one of the directories, or lies in one."""
    return any(path == directory or _is_below(path, directory) for directory in directories)


def _allowed(location: str, path: str) -> str:
    """The canonical form of an absolute path, if tables may lie there."""
    roots = allowed_roots()
    # realpath, because a symbolic link below a root may lead out of it.
    canonical = os.path.realpath(path)
    home = os.path.realpath(settings.MONODON_HOME)
    if any(canonical == root or _is_below(root, canonical) for root in (*roots, home)) or (
        _is_below(canonical, home) and not _is_below(canonical, roots[0])
    ):
        raise InvalidLocation(location, "holds what belongs to the server itself")
    if not any(_is_below(canonical, root) for root in roots):
        raise InvalidLocation(
            location,
            "is outside the directories in which tables may lie",
            fault=LocationFault.OUTSIDE,
            detail="Tables may lie under MONODON_WAREHOUSE and MONODON_ALLOWED_ROOTS.",
        )
    return canonical


def uri(location: str) -> str:
    """The location as a complete URI: ``file:///data/a%20b``."""
    return "file://" + quote(location)


def parents(location: str) -> list[str]:
    """Every directory above a location, nearest first, without the file system's root."""
    above = []
    while (location := location.rpartition("/")[0]) != "":
        above.append(location)
    return above


def _read_path(text: str) -> tuple[str | None, str | None]:
    """The local path that somebody wrote (None: another storage's), and what is wrong with it.

    Looked at before and after its URI is read, because reading one drops line breaks.
    """
    fault = _fault(text)
    local = None if fault else _local_path(text)
    return local, fault if local is None else _fault(local)


def _local_path(text: str) -> str | None:
    """The local path that a location or path spells; None for another storage's URI."""
    if "://" not in text and not text.startswith("file:"):
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


def _fault(path: str) -> str | None:
    """What is wrong with a path that somebody wrote, or None."""
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
        return "is a name that the server uses itself"
    if len(path.encode()) > _MAX_PATH_BYTES:
        return f"is longer than {_MAX_PATH_BYTES} bytes"
    return None


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


# --- manifests ---------------------------------------------------------------------------------


def path_in_table(location: str, path: str) -> str | None:
    """The path relative to the table that a manifest path means; None when it is elsewhere.

    Clients spell it relative to the store (no leading slash), relative to the table, absolute, or
    as a URI. A relative path that is not this table's in the store is taken as relative to the
    table. Raises InvalidManifestPath for an empty path, ``..`` and control characters.
    """
    if len(path) < _MAX_PATH_BYTES // 4 and path.isprintable() and not _NEEDS_CARE.search(path):
        # As nearly all are spelled: nothing to decode, nothing to normalise, nothing to refuse.
        absolute = "/" + path.lstrip("/")
        if _is_below(absolute, location):
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
        if _is_below(absolute := os.path.normpath("/" + spelling.lstrip("/")), location)
    ]
    if len(inside) > 1:  # a name with a percent sign: the file that is there decides
        inside.sort(key=lambda name: not os.path.lexists(f"{location}/{name}"))
    if inside:
        return inside[0]
    if local.startswith("/") or "://" in path:
        return None
    # Relative to the table; or to the store, and then nothing is there.
    return os.path.normpath(local)


def is_surely_in_table(location: str, relative: str) -> bool:
    """Whether a relative path means this table, rather than something else in the store."""
    return relative.split("/", maxsplit=1)[0] in {"_versions", "tree"} or os.path.lexists(
        f"{location}/{relative}"
    )


def store_path(location: str, relative: str) -> str:
    """A table's file as an object store names it: no scheme, no leading slash."""
    return f"{location}/{relative}".lstrip("/")


class Move(Enum):
    """How moving a staged manifest ended."""

    DONE = "done"
    MISSING = "missing"
    OCCUPIED = "occupied"


def move_manifest(location: str, staged: str, final: str) -> Move:
    """Move a table's staged manifest to its final name; both paths are relative to the table.

    Safe to repeat and to run twice at once. DONE: the final name holds it, whoever moved it.
    MISSING: neither file is there. OCCUPIED: the final name holds something else, which stays.
    Raises OSError when the storage fails; then the staged file is still there.

    No link is followed: the directories are opened first, and all else is relative to them. Where a
    link is on the way, or anything but a regular file is staged, nothing is there to be moved.
    """
    above, _, source = f"{location}/{staged}".rpartition("/")
    directory, _, target = f"{location}/{final}".rpartition("/")
    try:
        with regular_files.directory(above) as source_at:
            if not _is_regular(source, source_at):
                return Move.MISSING
            if directory == above:
                return _move(source, source_at, target, source_at)
            regular_files.make_directories(location, final.rpartition("/")[0])
            with regular_files.directory(directory) as target_at:
                return _move(source, source_at, target, target_at)
    except regular_files.NotRegular:
        return Move.MISSING
    except OSError as error:
        if not is_missing(error):
            raise
    try:
        regular_files.status(f"{directory}/{target}")
    except OSError as error:
        if isinstance(error, regular_files.NotRegular) or is_missing(error):
            return Move.MISSING
        raise
    return Move.DONE


def _is_regular(name: str, at: int) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)


def _move(source: str, source_at: int, target: str, target_at: int) -> Move:
    try:
        _publish(source, source_at, target, target_at)
    except FileExistsError:
        if not _is_regular(target, target_at):
            return Move.MISSING
        if not _same_content(source, source_at, target, target_at):
            return Move.OCCUPIED
    with contextlib.suppress(FileNotFoundError):
        os.unlink(source, dir_fd=source_at)
    return Move.DONE


def _is_where_it_says(directory: str) -> bool:
    """Whether no symbolic link stands on the way to a directory, be it there or not."""
    if hasattr(os, "O_PATH"):
        # Linux tells where an open directory lies: 5 µs, where a look at each step takes 25.
        with contextlib.suppress(OSError):
            handle = os.open(directory, os.O_PATH | os.O_DIRECTORY)
            try:
                return os.readlink(f"/proc/self/fd/{handle}") == directory
            finally:
                os.close(handle)
    return os.path.realpath(directory) == directory


def _publish(source: str, source_at: int, target: str, target_at: int) -> None:
    """Give the file a second name, at once and only if the name is free."""
    try:
        os.link(source, target, src_dir_fd=source_at, dst_dir_fd=target_at, follow_symlinks=False)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        # No hard links on this file system: copy beside the target, then rename. The ledger has
        # settled which version this is, so a plain rename cannot overwrite a rival's manifest.
        with contextlib.suppress(FileNotFoundError):
            os.stat(target, dir_fd=target_at, follow_symlinks=False)
            raise FileExistsError(target) from error
        draft = f"{target}.{uuid.uuid4().hex}"
        content = regular_files.read_at(source, source_at)
        regular_files.write_at(draft, target_at, content)
        os.rename(draft, target, src_dir_fd=target_at, dst_dir_fd=target_at)


def _same_content(source: str, source_at: int, target: str, target_at: int) -> bool:
    try:
        staged = os.stat(source, dir_fd=source_at, follow_symlinks=False)
    except FileNotFoundError:
        return True  # somebody else finished this very move and removed the staged file
    final = os.stat(target, dir_fd=target_at, follow_symlinks=False)
    if (staged.st_dev, staged.st_ino) == (final.st_dev, final.st_ino):
        return True
    if staged.st_size != final.st_size:
        return False
    return regular_files.read_at(source, source_at) == regular_files.read_at(target, target_at)


@dataclass(frozen=True)
class StoredFile:
    """A file found in a directory of a table."""

    name: str
    size: int


def list_files(location: str, directory: str) -> Iterator[StoredFile]:
    """The files directly in a directory of a table; nothing when there is no such directory."""
    path = os.path.realpath(f"{location}/{directory}")
    if not _is_below(path, os.path.realpath(location)):
        return  # a symbolic link leads out of the table
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield StoredFile(entry.name, status.st_size)
    except (FileNotFoundError, NotADirectoryError):
        return


def list_directories(location: str, directory: str) -> list[str]:
    """The directories directly in a directory of a table; none when there is no such directory."""
    path = os.path.realpath(f"{location}/{directory}")
    if not _is_below(path, os.path.realpath(location)):
        return []
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def list_branches(location: str) -> list[str]:
    """The branches that a Lance table has on storage; their names may hold slashes."""
    tree = Path(location) / "tree"
    if regular_files.is_link(str(tree)):
        return []
    names = (str(found.parent.relative_to(tree)) for found in tree.glob("**/_versions"))
    # A name that is not UTF-8 is none that a client could ask for.
    return sorted(name for name in names if name.isprintable())


def set_aside(location: str, name: str) -> str | None:
    """Take a table's directory away from its location, at once; returns where it is now.

    ``name`` tells whose it is; called again with it, this goes on with what was set aside. None:
    there is nothing. What lies at the location afterwards is somebody else's, and stays. Raises
    OSError when the location is not what it was when it was declared, or cannot be seen.
    """
    aside = f"{location}.{name}"
    if os.path.lexists(aside):
        return aside
    if os.path.realpath(location) != location:
        raise OSError(f"{location} leads elsewhere now: a link stands on its way")
    try:
        os.rename(location, aside)
    except FileNotFoundError:
        require_reachable(location)
        return None
    return aside


def require_reachable(path: str) -> None:
    """Raises OSError when nothing can be said of a path, because what holds it is not mounted."""
    if not any(_is_below(path, root) and os.path.isdir(root) for root in allowed_roots()):
        raise OSError(f"the directory that holds {path} is not there")


def remove_tree(directory: str) -> Iterator[int]:
    """Remove a directory that was set aside, yielding how many files are gone so far.

    May be stopped and called again: it goes on with what is left. Links are removed, not followed.
    Raises OSError for what cannot be removed.
    """
    if os.path.islink(directory) or not os.path.isdir(directory):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directory)
            yield 1
        return
    removed = 0
    for path, directories, files, handle in os.fwalk(
        directory, topdown=False, onerror=_unless_gone, follow_symlinks=False
    ):
        links = [name for name in directories if os.path.islink(f"{path}/{name}")]
        for name in (*files, *links):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=handle)
            removed += 1
            yield removed
        for name in directories:
            if name not in links:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(name, dir_fd=handle)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(directory)


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def write_new_file(path: str, content: bytes) -> None:
    """Write a file that must not be there yet, and see it onto the disk. Raises OSError.

    Its directory is not flushed as well: ext4, XFS and Btrfs write a new file's name with it, and
    it takes 0.1 to 0.15 ms of a commit's 1.2, on disks with a slow flush far more.
    """
    try:
        handle = open(path, "xb")  # noqa: SIM115 -- closed below, after the second way to open it
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = open(path, "xb")  # noqa: SIM115
    with handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def make_directory(path: str) -> None:
    """Make a directory and those above it, as far as they are not there. Raises OSError."""
    os.makedirs(path, exist_ok=True)


def read_file(path: str, limit: int) -> bytes:
    """A file's content. Raises InvalidLocation when it cannot be read or is larger than that."""
    try:
        return read_whole_file(path, limit)
    except OSError as error:
        raise InvalidLocation(path, f"cannot be read: {error.strerror}") from error


def read_whole_file(path: str, limit: int) -> bytes:
    """A file's content. Raises InvalidLocation when it is no file or larger, and OSError."""
    # Opening a pipe would otherwise wait for somebody who writes to it.
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    ) as handle:
        if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            raise InvalidLocation(path, "is no file")
        content = handle.read(limit + 1)
    if len(content) > limit:
        raise InvalidLocation(path, f"is larger than {limit} bytes")
    return content


def read_real_file(path: str, limit: int) -> bytes:
    """The content of a regular file at a path without links. Raises OSError, InvalidLocation.

    The path was checked before. What was put in its place since is noticed: a link is not followed,
    a pipe does not block, and a directory above that became a link leads to another path.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InvalidLocation(path, "is no file")
        if _path_of_handle(handle, path) != path:
            raise InvalidLocation(path, "was replaced while it was opened")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InvalidLocation(path, f"is larger than {limit} bytes")
    return content


def _path_of_handle(handle: int, path: str) -> str:
    """Where an open file lies. A file that was removed meanwhile keeps its path."""
    try:
        return os.readlink(f"/proc/self/fd/{handle}").removesuffix(" (deleted)")
    except OSError:  # not Linux
        return os.path.realpath(path)


def modified_at(path: str) -> float | None:
    """When a file was last written, in seconds since 1970; None for what is no file, or by a link."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if is_missing(error):
            return None
        raise
    is_plain = stat.S_ISREG(status.st_mode) and _is_where_it_says(os.path.dirname(path))
    return status.st_mtime if is_plain else None


def file_size(path: str) -> int | None:
    """How many bytes a file has; None where there is none. Raises OSError."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        if is_missing(error):
            return None
        raise


def remove_file(path: str) -> bool:
    """Remove a file, if it is there; returns whether it was. Raises OSError."""
    try:
        os.unlink(path)
    except OSError as error:
        if is_missing(error):
            return False
        raise
    return True


def remove_file_in_place(path: str) -> bool:
    """Remove a file by its canonical path; returns whether it was there. Raises OSError.

    What is reached by a symbolic link that was put in its way meanwhile is another file, and stays.
    """
    directory, _, name = path.rpartition("/")
    try:
        handle = os.open(directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
    except OSError as error:
        if is_missing(error):
            return False
        raise
    try:
        if not _is_open_at(handle, directory):
            return False
        os.unlink(name, dir_fd=handle)
    except OSError as error:
        if is_missing(error):
            return False
        raise
    finally:
        os.close(handle)
    return True


def _is_open_at(handle: int, directory: str) -> bool:
    """Whether an open directory lies at this canonical path."""
    if hasattr(os, "O_PATH"):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{handle}") == directory
    return os.path.realpath(directory) == directory


def is_missing(error: OSError) -> bool:
    """Whether an error tells that a file is not there."""
    return error.errno == errno.ENOENT or error.errno in IMPOSSIBLE


def remove_empty_directories(directory: str) -> Iterator[str]:
    """Remove a directory and those below it, as far as they hold no file; yields what it looks at.

    Links are not followed, and count as files. Raises OSError.
    """
    if os.path.islink(directory):
        return
    for path, _, _ in os.walk(directory, topdown=False, onerror=_unless_gone):
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}:
                raise
        yield path


def can_see(location: str) -> bool:
    """Whether this process sees the table's directory: its volume may be mounted elsewhere only."""
    return os.path.isdir(location)
