"""Directories on a local file system: create, move and remove them."""

import contextlib
import errno
import os
from collections.abc import Iterator

from catalog.storage.locations import allowed_roots, is_below


def make_directory(path: str) -> None:
    """Make a directory and those above it, as far as they are not there. Raises OSError."""
    os.makedirs(path, exist_ok=True)


def can_see(location: str) -> bool:
    """Whether this process sees the table's directory: its volume may be mounted elsewhere only."""
    return os.path.isdir(location)


def require_reachable(path: str) -> None:
    """Raises OSError when nothing can be said of a path, because what holds it is not mounted."""
    if not any(is_below(path, root) and os.path.isdir(root) for root in allowed_roots()):
        raise OSError(f"the directory that holds {path} is not there")


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
