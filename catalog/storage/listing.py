"""Lists of the files, directories and Lance branches of a table on a local file system."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from catalog import regular_files
from catalog.storage.locations import is_below


@dataclass(frozen=True)
class StoredFile:
    """A file found in a directory of a table."""

    name: str
    size: int


def list_files(location: str, directory: str) -> Iterator[StoredFile]:
    """The files directly in a directory of a table; nothing when there is no such directory."""
    path = os.path.realpath(f"{location}/{directory}")
    if not is_below(path, os.path.realpath(location)):
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
    if not is_below(path, os.path.realpath(location)):
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
    names = (str(directory.parent.relative_to(tree)) for directory in tree.glob("**/_versions"))
    # A name that is not UTF-8 is none that a client could ask for.
    return sorted(name for name in names if name.isprintable())
