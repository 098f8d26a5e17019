"""The interface to files: a store for each kind of storage, and the store of a location.

Paths are canonical locations (``locations``): ``/warehouse/t/data/1.lance`` or ``s3://lake/t/data/1.lance``.
Nothing outside this package opens a file of a table. The caller has checked that the path may be used;
the store makes sure that it opens that path and no other.

Stores raise OSError and its subclasses: FileNotFoundError, FileExistsError, ``NotRegular``, ``TooLarge``,
``AccessDenied`` and ``StorageUnavailable``. Any other OSError also means that the storage failed.
"""

import errno
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Generic, ParamSpec, TypeVar

from django.utils.module_loading import import_string

from catalog.storage import object_locations
from catalog.storage.configuration import StoreConfiguration, StoreKind
from catalog.token_bucket import TokenBucket

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file."""

    size: int
    """In bytes."""
    modified_at: float
    """Time of the last modification, in seconds since 1970. The owner of a local file can set it to any value."""
    changed_at: float
    """Time of the last change of the file or its attributes. Nobody can set it back."""
    identity: Hashable
    """Differs between two files that were at the same path: an ETag, or inode, size and time of the change."""
    names: int = 1
    """The number of names of the file, which is above 1 only for hard links."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a directory."""

    name: str
    """Relative to the listed directory."""
    size: int
    modified_at: float = 0.0
    """Seconds since 1970. The owner of a local file can set it to any value."""
    changed_at: float = math.inf
    """Of a local file: time of the last change of the file or its attributes, which nobody can choose."""


class Move(Enum):
    """The outcome of moving a staged manifest."""

    DONE = "done"
    MISSING = "missing"
    OCCUPIED = "occupied"


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """Results for several files, which the store may already be fetching."""

    results: Callable[[], list[T | OSError]]
    """Wait for the result of each file, or the error that occurred instead."""
    cancel: Callable[[], None] = lambda: None


class AccessDenied(PermissionError):
    """The store refuses the server's own credentials. The message names the profile, not the key."""

    def __init__(self, profile: str, cause: str) -> None:
        super().__init__(errno.EACCES, f"storage profile '{profile}' has no access: {cause}")


class StorageUnavailable(OSError):
    """The store does not answer, or asks for fewer requests, after several attempts."""

    def __init__(self, profile: str, cause: str, *, retry_seconds: int = 1) -> None:
        super().__init__(errno.EIO, f"storage profile '{profile}' is unavailable: {cause}")
        self.cause = cause
        self.retry_seconds = retry_seconds
        """When to try again."""


class Store(ABC):
    """The files of one local file system, or of one bucket of an object store."""

    # -- reading

    @abstractmethod
    def read(self, path: str, limit: int) -> tuple[bytes, FileStatus]:
        """A whole file and its status. Raises NotRegular, TooLarge above ``limit`` bytes, OSError."""

    @abstractmethod
    def read_end(
        self, path: str, start_of: Callable[[bytes, int], int], limit: int
    ) -> tuple[bytes, FileStatus]:
        """The end of a file, from the position that ``start_of`` returns, and the file's status.

        ``start_of`` gets the file's last bytes and its size. Raises as ``read`` does.
        """

    @abstractmethod
    def read_range(self, path: str, start: int, length: int) -> bytes:
        """A part of a file; shorter if the file ends before. Raises NotRegular and OSError."""

    @abstractmethod
    def open(self, path: str) -> tuple[int, int | None]:
        """The size of a file, and a handle to read it, which the caller closes; None in object stores.

        Raises NotRegular and OSError.
        """

    @abstractmethod
    def status(self, path: str) -> FileStatus:
        """The status of a file, which is not opened. Raises NotRegular and OSError."""

    def size(self, path: str) -> int | None:
        """The size of a file in bytes; None if there is no such file. Raises OSError."""
        try:
            return self.status(path).size
        except OSError as error:
            if is_missing(error):
                return None
            raise

    def read_ahead(
        self,
        paths: Sequence[str],
        limit: int,
        sizes: Mapping[str, int],
    ) -> Pending[bytes]:
        """Begin to read whole files, each as ``read``. Raises OSError if none can be read.

        ``sizes`` are those that the caller expects of some of the files, which may have others.
        """
        return Pending(lambda: [attempt(self.content, path, limit) for path in paths])

    def content(self, path: str, limit: int) -> bytes:
        """The content of a file, as ``read``."""
        return self.read(path, limit)[0]

    def sizes_ahead(self, paths: Sequence[str]) -> Pending[int | None]:
        """Begin to find the sizes of files, each as ``size``. Raises OSError if none can be found."""
        return Pending(lambda: [attempt(self.size, path) for path in paths])

    # -- writing

    @abstractmethod
    def write_new(self, path: str, content: bytes) -> None:
        """Write a file durably that must not exist, and the directories above it.

        Raises FileExistsError, and OSError, after which the file may exist.
        """

    @abstractmethod
    def move_manifest(self, location: str, staged: str, final: str) -> Move:
        """Move a table's staged manifest to its final name; both are relative to the table.

        Safe to repeat and to run concurrently. DONE: the final name holds the manifest, possibly
        moved by another process. MISSING: neither file exists. OCCUPIED: the final name holds
        another file, which stays. Raises OSError if the storage fails; the manifest then still has
        one of the names.
        """

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Create a directory and those above it, if the storage has directories. Raises OSError."""

    # -- removing

    @abstractmethod
    def remove(self, path: str) -> bool:
        """Remove a file by its canonical path. Returns True if it existed. Raises OSError."""

    @abstractmethod
    def remove_many(self, paths: Iterable[str]) -> Iterator[str]:
        """Remove files; yields the path of each that is gone afterwards. Raises OSError."""

    @abstractmethod
    def set_aside(self, location: str, name: str) -> str | None:
        """Take a table's directory from its location before it is removed; returns where it is then.

        ``name`` identifies the owner: another call with the same name returns the same path. Returns
        None if there is nothing at the location. Object stores cannot rename and return the location
        itself: the caller must keep it reserved until the removal has ended. Raises OSError.
        """

    @abstractmethod
    def remove_tree(self, directory: str) -> Iterator[int]:
        """Remove a directory, yielding the number of removed files so far.

        May be interrupted and called again for the remaining files. Removes only what was written
        before the call. Raises OSError.
        """

    @abstractmethod
    def remove_empty_directories(self, directory: str) -> Iterator[str]:
        """Remove the empty directories among a directory and those below it; yields each visited one."""

    # -- listing

    @abstractmethod
    def list_files(self, location: str, directory: str) -> Iterator[StoredFile]:
        """The files directly in a directory of a table; none if it does not exist. Raises OSError."""

    @abstractmethod
    def list_tree(self, directory: str, *, with_foreign: bool = False) -> Iterator[StoredFile]:
        """All files below a directory; none if it does not exist. Raises OSError.

        Objects with names that no file of a table can have are left out, except ``with_foreign``.
        """

    @abstractmethod
    def list_directories(self, location: str, directory: str) -> list[str]:
        """The names of the directories directly in a directory of a table. Raises OSError."""

    @abstractmethod
    def list_branches(self, location: str) -> list[str]:
        """The branches of a Lance table in storage; their names may contain slashes."""

    # -- what only some storages have

    @abstractmethod
    def can_see(self, location: str) -> bool:
        """True if this process sees a table's directory; a volume may be mounted only elsewhere."""

    @abstractmethod
    def require_reachable(self, path: str) -> None:
        """Raise OSError if the storage of a path is missing, so that nothing can be removed there."""

    @abstractmethod
    def find_irregular(self, directory: str) -> str | None:
        """A symbolic link, a pipe or a device below a directory, relative to it; None if there is none.

        The empty path if a link is on the path of the directory itself. Raises OSError.
        """

    @abstractmethod
    def resolve(self, path: str) -> str:
        """The path without symbolic links."""

    def occupy(self) -> None:  # noqa: B027 -- only object stores count their users
        """Declare that a library uses the storage until the request of the current thread ends.

        Calls of the store itself need no declaration. Raises StorageUnavailable if the storage does not
        answer, or too many requests wait for it (``outages``).
        """

    def is_link(self, path: str) -> bool:
        """True if the path itself is a symbolic link."""
        return False

    def is_free_of_links(self, directory: str) -> bool:
        """True if no symbolic link is on the path of a directory, which may be missing; cheap."""
        return True

    def is_plain(self, directory: str) -> bool:
        """True if a directory and those below it hold only regular files; cheap, for frequent calls."""
        return True

    def irregular(self, paths: Iterable[str]) -> list[str]:
        """Those of the paths that are not regular files, or have a symbolic link on the way."""
        return []

    def irregular_below(self, directory: str) -> Iterator[str]:
        """The entries of a directory and those below it that are not regular files."""
        return iter(())

    def write_new_in_place(self, path: str, content: bytes) -> None:
        """Write a new file as ``write_new`` does, in an existing directory without links on its path.

        Raises NotRegular as well.
        """
        self.write_new(path, content)


def attempt(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | OSError:
    """The result of a call, or its OSError."""
    try:
        return call(*args, **options)
    except OSError as error:
        return error


def is_missing(error: OSError) -> bool:
    """True if an error means that a file does not exist."""
    return error.errno in _MISSING


def retry_seconds(error: OSError) -> int:
    """When to try again after a failure of the storage."""
    return error.retry_seconds if isinstance(error, StorageUnavailable) else 1


IMPOSSIBLE = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}
"""Errors that mean that no file can exist at the path."""
_UNREADABLE_SECONDS = 60
"""When to try again after a key could not be read: an administrator has to act first."""
REREADS_A_SECOND = 20
rereads = TokenBucket(REREADS_A_SECOND, REREADS_A_SECOND)
"""How often this process reads the profiles again for a path below none of them."""
_MISSING = {errno.ENOENT, *IMPOSSIBLE}


# --- the store of a location -------------------------------------------------------------------

_LOCAL = "catalog.storage.local_store.LocalStore"
_OBJECT = "catalog.storage.object_store.ObjectStore"
# By dotted path, and imported at the first use: processes without tables in object stores, such as
# beat and most commands, start without their client.


def store_of(path: str) -> Store:
    """The store that holds a canonical path.

    Raises StorageUnavailable if no storage profile has the path any more.
    """
    if path.startswith("/"):
        return _local()
    configuration = configuration_of(path)
    if configuration is None:
        raise StorageUnavailable("", f"no profile has {object_locations.bucket_of(path)}")
    return _open(configuration, object_locations.bucket_of(path))


def configuration_of(path: str) -> StoreConfiguration | None:
    """The configuration of the object store below whose roots a canonical path is.

    If none is known, the profiles are read again: another process may just have created one. A process
    does this at most REREADS_A_SECOND times a second, because clients may name any number of such paths;
    otherwise it decides by the profiles that it read last.
    """
    configuration = _configuration_above(path, fresh=False)
    if configuration is None and rereads.take():
        configuration = _configuration_above(path, fresh=True)
    return configuration


def _configuration_above(path: str, *, fresh: bool) -> StoreConfiguration | None:
    for configuration in _source(fresh):
        for root in configuration.roots:
            if path == root or path.startswith(root + "/"):
                return configuration
    return None


def require_key(configuration: StoreConfiguration) -> None:
    """Refuse a profile whose key cannot be read. Raises StorageUnavailable, which names the profile."""
    if configuration.key_error:
        raise StorageUnavailable(
            configuration.profile, configuration.key_error, retry_seconds=_UNREADABLE_SECONDS
        )


def object_roots(*, fresh: bool = False) -> list[str]:
    """The roots of all profiles of object stores; ``fresh`` reads them again."""
    return [
        root
        for configuration in _source(fresh)
        if configuration.kind != StoreKind.FILE
        for root in configuration.roots
    ]


Source = Callable[[bool], Iterable[StoreConfiguration]]
"""Returns the present configurations; True reads them again instead of returning what is cached."""


def _no_configurations(fresh: bool) -> Iterable[StoreConfiguration]:  # noqa: ARG001
    return ()


_source: Source = _no_configurations


def connect(source: Source) -> None:
    """Set the function that returns the present configurations; the start of Django calls this."""
    global _source  # noqa: PLW0603 -- one source for the process
    _source = source


@lru_cache(maxsize=1)
def _local() -> Store:
    store: Store = import_string(_LOCAL)()
    return store


@lru_cache(maxsize=512)  # 0.1 MB each, and 7 ms to make one
def _open(configuration: StoreConfiguration, bucket: str) -> Store:
    store: Store = import_string(_OBJECT)(configuration, bucket)
    return store
