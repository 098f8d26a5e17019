"""Single files on a local file system: read, write, move and remove them."""

import contextlib
import os
import stat
import uuid

from catalog import regular_files
from catalog.storage.local_directories import make_directory
from catalog.storage.stores import Move, is_missing


def write_new_file(path: str, content: bytes) -> None:
    """Write a file that must not exist, by its canonical path, and flush it to disk.

    Missing directories are created. Raises NotRegular if a link is on the path, and OSError.

    The directory is not flushed: ext4, XFS and Btrfs write a new file's name with the file. A flush
    would add 0.1 to 0.15 ms to the 1.2 ms of a commit, and far more on disks with a slow flush.
    """
    parent, _, name = path.rpartition("/")
    try:
        above = regular_files.open_directory(parent)
    except FileNotFoundError:
        make_directory(parent)
        above = regular_files.open_directory(parent)
    try:
        regular_files.write_at(name, above, content)
    finally:
        os.close(above)


def remove_file_in_place(path: str) -> bool:
    """Remove a file by its canonical path. Returns True if it existed. Raises OSError.

    If a symbolic link has been put on the path, it leads to another file, which is not removed.
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
    """True if an open directory is at this canonical path."""
    if hasattr(os, "O_PATH"):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{handle}") == directory
    return os.path.realpath(directory) == directory


def move_manifest(location: str, staged: str, final: str) -> Move:
    """Move a table's staged manifest to its final name; both paths are relative to the table.

    Safe to repeat and to run concurrently. DONE: the final name holds the manifest, possibly moved
    by another process. MISSING: neither file exists. OCCUPIED: the final name holds another file,
    which is kept. Raises OSError if the storage fails; then the staged file still exists.

    No link is followed: the directories are opened first, and everything else is relative to them.
    A link on the path, or a staged file that is not regular, counts as missing.
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
    """Link the file to the target name, atomically and only if the name is free."""
    try:
        os.link(source, target, src_dir_fd=source_at, dst_dir_fd=target_at, follow_symlinks=False)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        # No hard links on this file system: copy beside the target, then rename. The ledger has
        # already assigned the version, so a rename cannot overwrite another writer's manifest.
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
        return True  # another process finished the same move and removed the staged file
    final = os.stat(target, dir_fd=target_at, follow_symlinks=False)
    if (staged.st_dev, staged.st_ino) == (final.st_dev, final.st_ino):
        return True
    if staged.st_size != final.st_size:
        return False
    return regular_files.read_at(source, source_at) == regular_files.read_at(target, target_at)
