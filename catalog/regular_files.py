"""Operations on regular files that do not follow links.

The directory of a path must be resolved already: it must be free of links. It is opened first and
must be at its path. All other steps are relative to the open directory, so that it cannot be replaced
by a link in between. Devices are never opened, and reads never wait for pipes.

A hard link to another user's file is indistinguishable from an own file, except by its link count,
which ``read_end`` returns in the status.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Status = os.stat_result
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TAIL = 16 * 1024


class NotRegular(OSError):
    """The path is not a regular file, or a link, a directory, a pipe or a device is on it."""


class TooLarge(OSError):
    """The file is larger than its reader allows."""


def open_directory(path: str) -> int:
    """Open a directory whose path must be free of links; the caller closes it.

    Raises NotRegular if a link is on the path, and OSError.
    """
    try:
        handle = os.open(path, _DIRECTORY)
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        raise NotRegular(f"{path} is not a directory, or a link is on the way") from error
    try:
        real = os.readlink(f"/proc/self/fd/{handle}")
    except OSError:  # not Linux
        real = os.path.realpath(path)
    if real != path:
        os.close(handle)
        raise NotRegular(f"a link is on the way to {path}")
    return handle


@contextmanager
def directory(path: str) -> Iterator[int]:
    """Open a directory as ``open_directory`` does, and close it at the end of the block."""
    handle = open_directory(path)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def readable_directory(path: str) -> Iterator[int]:
    """The same for a directory that is to be listed."""
    with directory(path) as above:
        handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
    try:
        yield handle
    finally:
        os.close(handle)


def read_end(path: str, start_of: Callable[[bytes, int], int], limit: int) -> tuple[bytes, Status]:
    """The end of a file, from the position that ``start_of`` returns, and its status.

    ``start_of`` gets the file's last bytes and its size. Raises NotRegular, TooLarge and OSError.
    """
    parent, _, name = path.rpartition("/")
    above = open_directory(parent)
    try:
        handle = _open(name, above)
    finally:
        os.close(above)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular(f"{path} is not a regular file")
        size = status.st_size
        first = max(size - _TAIL, 0)
        tail = os.pread(handle, _TAIL, first)
        start = start_of(tail, size)
        if size - start > limit:
            raise TooLarge(f"{path} is larger than {limit} bytes")
        if start >= first:
            return tail[start - first :], status
        return _pread(handle, start, size - start), status  # of the tail alone a copy would be made
    finally:
        os.close(handle)


def read_range(path: str, start: int, length: int) -> bytes:
    """A part of a file; shorter if the file ends before. Raises NotRegular and OSError."""
    parent, _, name = path.rpartition("/")
    with directory(parent) as above:
        handle = _open(name, above)
    try:
        return _pread(handle, start, length)
    finally:
        os.close(handle)


def open_file(path: str) -> tuple[int, int]:
    """The size of a file, and a handle to read it, which the caller closes. Raises NotRegular and OSError."""
    parent, _, name = path.rpartition("/")
    with directory(parent) as above:
        handle = _open(name, above)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise NotRegular(f"{path} is not a regular file")
    return status.st_size, handle


def status(path: str) -> Status:
    """The status of a regular file. Raises NotRegular and OSError; the file is not opened."""
    parent, _, name = path.rpartition("/")
    with directory(parent) as above:
        result = os.stat(name, dir_fd=above, follow_symlinks=False)
    if not stat.S_ISREG(result.st_mode):
        raise NotRegular(f"{path} is not a regular file")
    return result


def is_link(path: str) -> bool:
    """True if the path itself is a symbolic link."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False


def is_special(path: str) -> bool:
    """True if the path exists and is not a regular file; links are not regular."""
    try:
        return not stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def is_free_of_links(path: str) -> bool:
    """True if no symbolic link is on the path of a directory, which may be missing."""
    try:
        os.close(open_directory(path))
    except NotRegular:
        return False
    except OSError:
        return os.path.realpath(path) == path
    return True


def find_irregular(root: str) -> str | None:
    """A link, a pipe or a device below a directory, relative to it; None if there is none.

    The empty path if a link is on the path of the directory itself. Raises OSError for a directory
    that cannot be listed.
    """
    return _find(
        root,
        lambda entry: (
            not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        ),
    )


def find_linked_directory(root: str) -> str | None:
    """The same, for a link that leads to a directory only."""
    return _find(root, lambda entry: entry.is_symlink() and entry.is_dir())


def _find(root: str, is_sought: "Callable[[os.DirEntry[str]], bool]") -> str | None:
    if os.path.realpath(root) != root:
        return ""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(f"{root}/{below}") as entries:
                for entry in entries:
                    path = f"{below}{entry.name}"
                    if is_sought(entry):
                        return path
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{path}/")
        except FileNotFoundError:
            continue
    return None


def make_directories(root: str, relative: str) -> None:
    """Create missing directories below an existing directory.

    Raises NotRegular if a link is on the path, and OSError.
    """
    at = open_directory(root)
    try:
        for name in relative.split("/"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=at)
            try:
                below = os.open(name, _DIRECTORY, dir_fd=at)
            except OSError as error:
                raise NotRegular(f"{root}/{relative} is not a directory") from error
            os.close(at)
            at = below
    finally:
        os.close(at)


def read_at(name: str, at: int) -> bytes:
    """The content of a regular file in an open directory. Raises NotRegular and OSError."""
    with os.fdopen(_open(name, at), "rb") as file:
        return file.read()


def write_at(name: str, at: int, content: bytes) -> None:
    """Write a new file in an open directory, and flush it to disk. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o666, dir_fd=at)
    try:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[os.write(handle, remaining) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _open(name: str, above: int) -> int:
    # Check before opening: opening a device may have effects.
    if not stat.S_ISREG(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        raise NotRegular(f"{name} is not a regular file")
    return os.open(name, _FILE, dir_fd=above)


def _pread(handle: int, start: int, size: int) -> bytes:
    chunks = []
    while size > 0:
        chunk = os.pread(handle, size, start)
        if not chunk:
            break
        chunks.append(chunk)
        start += len(chunk)
        size -= len(chunk)
    return b"".join(chunks)
