"""Single files on a local file system: read, write, move and remove them."""

import contextlib
import errno
import os
import stat
import uuid
from enum import Enum

from catalog import regular_files
from catalog.errors import InvalidLocation

IMPOSSIBLE = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}
"""Errors that tell of the path itself: no file is there, and none will be."""


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
