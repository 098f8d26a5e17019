"""Directories on a local file system: create, move and remove them."""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

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
    for handle, level in _leave(directory):
        for name in level.files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=handle)
            removed += 1
            yield removed
        for name in level.directories:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=handle)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(directory)


def remove_empty_directories(directory: str) -> Iterator[str]:
    """Remove the empty directories among a directory and those below it; yield the name of each visited one.

    Links are not followed, and count as files. Raises OSError.
    """
    parent, _, name = directory.rpartition("/")
    for handle, level in _leave(directory):
        for below in level.directories:
            _remove_if_empty(below, handle)
        yield level.name
    with (
        contextlib.suppress(FileNotFoundError, regular_files.NotRegular),
        regular_files.directory(parent) as above,
    ):
        _remove_if_empty(name, above)


def _remove_if_empty(name: str, at: int) -> None:
    try:
        os.rmdir(name, dir_fd=at)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}:
            raise


@dataclass(frozen=True, slots=True)
class _Level:
    """A directory on the way from the top of a tree to the one that is open."""

    name: str
    identity: tuple[int, int]
    directories: tuple[str, ...]
    """The names of the directories in it."""
    files: tuple[str, ...]
    """The names of everything else, such as links."""
    waiting: list[str]
    """Those of the directories that have not been visited yet."""


_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _leave(directory: str) -> Iterator[tuple[int, _Level]]:
    """Each directory of a tree after those in it, with its descriptor.

    A tree may be deeper than Python's recursion and a path may be, and than a process may have open files. So
    only one directory is open, and its parent is opened relative to it. Names are relative to it too, because a writer
    may replace a directory by a link meanwhile. No link is followed: a directory that is gone, or behind a link, is
    left out. Raises OSError, also if a directory was moved elsewhere while it was open.
    """
    parent, _, name = directory.rpartition("/")
    try:
        handle = regular_files.open_directory(parent)
    except (FileNotFoundError, regular_files.NotRegular):
        return
    levels: list[_Level] = []
    try:
        waiting = [name]
        while True:
            if waiting:
                name = waiting.pop()
                if (below := _open_listed(name, handle)) is None:
                    continue
                os.close(handle)
                handle = below
                levels.append(_level(name, handle))
            elif levels:
                yield handle, levels.pop()
                if not levels:
                    return
                above = os.open("..", _LISTED, dir_fd=handle)
                os.close(handle)
                handle = above
                if _identity(handle) != levels[-1].identity:
                    raise OSError(f"a directory below {directory} was moved while it was open")
            else:
                return
            waiting = levels[-1].waiting
    finally:
        os.close(handle)


def _open_listed(name: str, at: int) -> int | None:
    try:
        return os.open(name, _LISTED, dir_fd=at)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return None
        raise


def _level(name: str, handle: int) -> _Level:
    with os.scandir(handle) as entries:
        kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    directories = tuple(entry for entry, is_directory in kinds.items() if is_directory)
    files = tuple(entry for entry, is_directory in kinds.items() if not is_directory)
    return _Level(name, _identity(handle), directories, files, list(directories))


def _identity(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino
