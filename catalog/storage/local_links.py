"""Links and special files on a local file system, of which object stores have none.

Lance follows links. Before it opens or writes a table, its directories must therefore hold only regular
files and directories.
"""

import os
import stat
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator

from catalog import regular_files

_MANY = 100
"""From so many files of one directory on, listing it is faster than looking at each."""

_lock = threading.Lock()
_listed: OrderedDict[str, tuple[tuple[int, int], tuple[str, ...] | None]] = OrderedDict()
"""The directories in a directory, by its state; None: it holds an entry that is not regular."""
_MOST_LISTED = 100_000
_SETTLED_NS = 1_000_000_000
"""A directory that changed so shortly ago may change again without another time."""


def is_plain(directory: str) -> bool:
    """True if a directory and its subdirectories hold only regular files and directories.

    A few µs, unless one of them has changed since the last call. True if the directory is missing.
    """
    waiting = [directory]
    while waiting:
        below = _directories_in(waiting.pop())
        if below is None:
            return False
        waiting.extend(below)
    return True


def _directories_in(directory: str) -> tuple[str, ...] | None:
    """The directories in a directory; None if it holds an entry that is not regular, or is no directory."""
    try:
        status = os.lstat(directory)
    except OSError:
        return ()
    if not stat.S_ISDIR(status.st_mode):
        return None
    state = (status.st_ino, status.st_ctime_ns)
    with _lock:
        listed_at = _listed.get(directory)
    if listed_at is not None and listed_at[0] == state:
        return listed_at[1]
    below = _plain_directories_in(directory)
    if time.time_ns() - status.st_ctime_ns > _SETTLED_NS:
        with _lock:
            _listed[directory] = (state, below)
            while len(_listed) > _MOST_LISTED:
                _listed.popitem(last=False)
    return below


def _plain_directories_in(directory: str) -> tuple[str, ...] | None:
    below = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    return None
    except OSError:
        return None
    return tuple(below)


def irregular_below(directory: str) -> Iterator[str]:
    """The entries of a directory and its subdirectories that are not regular files."""
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                listed = list(entries)
        except OSError:
            continue
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif not entry.is_file(follow_symlinks=False):
                yield entry.path


def irregular(paths: Iterable[str]) -> list[str]:
    """Those of the paths that are not regular files, or have a link on the way. Missing ones are not."""
    names = defaultdict(set)
    for path in paths:
        directory, _, name = path.rpartition("/")
        names[directory].add(name)
    irregular_paths = []
    for directory, files in names.items():
        if os.path.realpath(directory) != directory:
            irregular_paths += [f"{directory}/{name}" for name in files]
        else:
            irregular_paths += [f"{directory}/{name}" for name in _not_regular(directory, files)]
    return irregular_paths


def _not_regular(directory: str, names: set[str]) -> set[str]:
    if len(names) < _MANY:
        return {name for name in names if regular_files.is_special(f"{directory}/{name}")}
    try:
        with os.scandir(directory) as entries:
            special = {entry.name for entry in entries if not entry.is_file(follow_symlinks=False)}
    except OSError:
        return set()
    return names & special
