"""Lists of the files, directories and Lance branches of a table on a local file system."""

import errno
import os
from collections.abc import Iterator

from catalog import regular_files
from catalog.storage.locations import is_below
from catalog.storage.stores import StoredFile

_VERSIONS = "_versions"
_NO_BRANCH = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG})
"""Errors at directories that hold no branch: Lance cannot open paths that are too long either."""


def list_files(location: str, directory: str) -> Iterator[StoredFile]:
    """The files directly in a directory of a table; none if the directory does not exist."""
    path = os.path.realpath(f"{location}/{directory}")
    root = os.path.realpath(location)
    if path != root and not is_below(path, root):
        return  # a symbolic link leads out of the table
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield StoredFile(entry.name, status.st_size, status.st_mtime)
    except (FileNotFoundError, NotADirectoryError):
        return


def list_tree(directory: str) -> Iterator[StoredFile]:
    """All files below a directory, without links and what is behind them; none if it does not exist."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            # The open directory, because a writer may replace one by a link meanwhile.
            with (
                regular_files.readable_directory(f"{directory}/{below}".rstrip("/")) as handle,
                os.scandir(handle) as entries,
            ):
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{below}{entry.name}/")
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        times = status.st_mtime, status.st_ctime
                        yield StoredFile(f"{below}{entry.name}", status.st_size, *times)
        except (FileNotFoundError, NotADirectoryError, regular_files.NotRegular):
            continue


def list_directories(location: str, directory: str) -> list[str]:
    """The directories directly in a directory of a table; none if it does not exist."""
    path = os.path.realpath(f"{location}/{directory}")
    root = os.path.realpath(location)
    if path != root and not is_below(path, root):
        return []
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def list_branches(location: str) -> list[str]:
    """The branches of a Lance table in storage; their names may contain slashes."""
    tree = f"{location}/tree"
    if regular_files.is_link(tree):
        return []
    names, waiting = list[str](), [""]
    while waiting:
        name = waiting.pop()
        try:
            with os.scandir(f"{tree}/{name}") as entries:
                below = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno not in _NO_BRANCH:
                raise
            continue
        if name and _VERSIONS in below:
            names.append(name)
        waiting += [f"{name}/{directory}" if name else directory for directory in below]
    # A client cannot request a name that is not UTF-8.
    return sorted(name for name in names if name.isprintable())
