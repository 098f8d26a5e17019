"""The store of local file systems. No symbolic link is followed on the way to a file."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from catalog import regular_files
from catalog.storage import listing, local_directories, local_files, local_links
from catalog.storage.outages import large_inputs
from catalog.storage.stores import FileStatus, Move, Store, StoredFile

_ATTEMPTS = 3


class LocalStore(Store):
    """Files below the allowed roots of this machine, which may be on volumes of several machines."""

    def read(self, path: str, limit: int) -> tuple[bytes, FileStatus]:
        return self.read_end(path, lambda tail, size: 0, limit)

    def read_end(
        self, path: str, start_of: Callable[[bytes, int], int], limit: int
    ) -> tuple[bytes, FileStatus]:
        def counted(tail: bytes, size: int) -> int:
            start = start_of(tail, size)
            large_inputs.count(min(size - start, limit))
            return start

        content, status = regular_files.read_end(path, counted, limit)
        return content, _status(status)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return regular_files.read_range(path, start, length)

    def open(self, path: str) -> tuple[int, int | None]:
        return regular_files.open_file(path)

    def status(self, path: str) -> FileStatus:
        return _status(regular_files.status(path))

    def write_new(self, path: str, content: bytes) -> None:
        local_files.write_new_file(path, content)

    def move_manifest(self, location: str, staged: str, final: str) -> Move:
        return local_files.move_manifest(location, staged, final)

    def make_directory(self, path: str) -> None:
        local_directories.make_directory(path)

    def remove(self, path: str) -> bool:
        return local_files.remove_file_in_place(path)

    def remove_many(self, paths: Iterable[str]) -> Iterator[str]:
        for path in paths:
            local_files.remove_file_in_place(path)
            yield path

    def set_aside(self, location: str, name: str) -> str | None:
        return local_directories.set_aside(location, name)

    def remove_tree(self, directory: str) -> Iterator[int]:
        return local_directories.remove_tree(directory)

    def remove_empty_directories(self, directory: str) -> Iterator[str]:
        return local_directories.remove_empty_directories(directory)

    def list_files(self, location: str, directory: str) -> Iterator[StoredFile]:
        return listing.list_files(location, directory)

    def list_tree(self, directory: str, *, with_foreign: bool = False) -> Iterator[StoredFile]:
        return listing.list_tree(directory)

    def list_directories(self, location: str, directory: str) -> list[str]:
        return listing.list_directories(location, directory)

    def list_branches(self, location: str) -> list[str]:
        return listing.list_branches(location)

    def can_see(self, location: str) -> bool:
        return Path(location).is_dir()

    def require_reachable(self, path: str) -> None:
        local_directories.require_reachable(path)

    def find_irregular(self, directory: str) -> str | None:
        return regular_files.find_irregular(directory)

    def resolve(self, path: str) -> str:
        for _ in range(_ATTEMPTS):
            # A link that is replaced by a directory while it is read is no link any more.
            with contextlib.suppress(OSError):
                return os.path.realpath(path)
        return os.path.realpath(path)

    def is_link(self, path: str) -> bool:
        return regular_files.is_link(path)

    def is_free_of_links(self, directory: str) -> bool:
        return regular_files.is_free_of_links(directory)

    def is_plain(self, directory: str) -> bool:
        return local_links.is_plain(directory)

    def irregular(self, paths: Iterable[str]) -> list[str]:
        return local_links.irregular(paths)

    def irregular_below(self, directory: str) -> Iterator[str]:
        return local_links.irregular_below(directory)

    def write_new_in_place(self, path: str, content: bytes) -> None:
        directory, _, name = path.rpartition("/")
        with regular_files.directory(directory) as at:
            regular_files.write_at(name, at, content)


def _status(status: os.stat_result) -> FileStatus:
    return FileStatus(
        status.st_size,
        status.st_mtime,
        status.st_ctime,
        (status.st_ino, status.st_size, status.st_ctime_ns),
        status.st_nlink,
    )
