"""Directories on a local file system: create, move and remove them."""

import contextlib
import errno
import os
from collections.abc import Iterator

from catalog import regular_files
from catalog.storage.locations import allowed_roots, is_below


def make_directory(path: str) -> None:
    """Create a directory and its missing parents, by its canonical path.

    Raises NotRegular if a link is on the path, and OSError.
    """
    existing, missing = path, list[str]()
    while not os.path.lexists(existing):
        existing, _, name = existing.rpartition("/")
        missing.insert(0, name)
    if missing:
        regular_files.make_directories(existing or "/", "/".join(missing))
    else:
        os.close(regular_files.open_directory(path))


def can_see(location: str) -> bool:
    """True if this process sees the table's directory; its volume may be mounted only elsewhere."""
    return os.path.isdir(location)


def require_reachable(path: str) -> None:
    """Raise OSError if the allowed root above a path is missing, so that it may not be mounted."""
    if not any(is_below(path, root) and os.path.isdir(root) for root in allowed_roots()):
        raise OSError(f"the directory that holds {path} is not there")


def set_aside(location: str, name: str) -> str | None:
    """Rename a table's directory away from its location, atomically; return its new path.

    ``name`` identifies the owner: another call with the same name returns the same path. Returns
    None if the directory does not exist. Files that appear at the location later belong to another
    table and are kept. Raises OSError if the location now leads through a link, or is unreachable.
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


def remove_tree(directory: str) -> Iterator[int]:
    """Remove a directory that was set aside, yielding the number of removed files so far.

    May be interrupted and called again for the remaining files. Links are removed, not followed.
    Raises OSError for a file that cannot be removed.
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


def remove_empty_directories(directory: str) -> Iterator[str]:
    """Remove the empty directories among a directory and those below it; yield each visited path.

    Links are not followed, and count as files. Raises OSError.
    """
    parent, _, name = directory.rpartition("/")
    try:
        above = regular_files.open_directory(parent)
    except (FileNotFoundError, regular_files.NotRegular):
        return
    try:
        # Relative to open directories: a writer may replace one by a link meanwhile.
        yield from _remove_empty_below(name, above, parent)
        _remove_if_empty(name, above)
    finally:
        os.close(above)


def _remove_empty_below(name: str, at: int, parent: str) -> Iterator[str]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(name, flags, dir_fd=at)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return
        raise
    path = f"{parent}/{name}"
    try:
        with os.scandir(handle) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for below in names:
            yield from _remove_empty_below(below, handle, path)
            _remove_if_empty(below, handle)
    finally:
        os.close(handle)
    yield path


def _remove_if_empty(name: str, at: int) -> None:
    try:
        os.rmdir(name, dir_fd=at)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}:
            raise
