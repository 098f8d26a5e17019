"""The store of S3, Google Cloud Storage and Azure, by obstore.

Objects have no links and no directories, and cannot be renamed. A request reads, writes or removes one
object as a whole, so a reader never sees half a file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions

from catalog.regular_files import TooLarge
from catalog.storage import object_batches, object_errors, object_listing, object_removal
from catalog.storage.configuration import StoreConfiguration, StoreKind
from catalog.storage.object_clients import ObjectClient
from catalog.storage.outages import large_inputs
from catalog.storage.outages.availability import Availability
from catalog.storage.stores import (
    FileStatus,
    Move,
    Pending,
    StorageUnavailable,
    Store,
    StoredFile,
    is_missing,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

_TAIL = 16 * 1024
_READ_ATTEMPTS = 3
_MAX_MANIFEST = 512 * 1024**2  # as the ledger reads them


class ObjectStore(Store):
    """One bucket of an object store, with the settings of a storage profile.

    Instances are safe to share between threads; ``stores`` keeps one for each profile and bucket.
    """

    def __init__(
        self,
        configuration: StoreConfiguration,
        bucket: str,
        *,
        availability: Availability | None = None,
    ) -> None:
        """``availability``: by default that of the storage profile in this process."""
        self._client = ObjectClient(configuration, bucket, availability=availability)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._client!r}>"

    # -- reading

    def read(self, path: str, limit: int) -> tuple[bytes, FileStatus]:
        key = self._client.key(path)

        def get() -> tuple[bytes, FileStatus]:
            result = obstore.get(self._client.store, key)
            # The size precedes the content, which is not fetched if it is too much.
            if result.meta["size"] > limit:
                raise TooLarge(f"{path} is larger than {limit} bytes")
            large_inputs.count(result.meta["size"])
            return bytes(result.bytes()), _status(result.meta)

        return self._client.call(get, key)

    def read_end(
        self, path: str, start_of: Callable[[bytes, int], int], limit: int
    ) -> tuple[bytes, FileStatus]:
        key = self._client.key(path)
        for _ in range(_READ_ATTEMPTS):
            meta, tail = self._tail(key)
            size = meta["size"]
            first = size - len(tail)
            start = start_of(tail, size)
            if start >= first:
                return tail[start - first :], _status(meta)
            if size - start > limit:
                raise TooLarge(f"{path} is larger than {limit} bytes")
            large_inputs.count(size - start)
            beginning = self._range_of_same(key, start, first, meta)
            if beginning is not None:
                return beginning + tail, _status(meta)
        raise StorageUnavailable(self._client.profile, "an object changes while it is read")

    def _tail(self, key: str) -> tuple["ObjectMeta", bytes]:
        """The last bytes of an object, and its metadata, by one request if the store can do that."""
        if self._client.configuration.kind == StoreKind.ADLS:  # which has no ranges from the end
            return self._tail_by_size(key)
        try:
            return self._get(key, {"range": {"suffix": _TAIL}})
        except (_NotSatisfiable, _NotPartial):
            return self._require_empty(key), b""

    def _require_empty(self, key: str) -> "ObjectMeta":
        """An empty object has no range, which stores express in different ways."""
        meta = self._head(key)
        if meta["size"]:
            raise StorageUnavailable(self._client.profile, "it does not serve parts of objects")
        return meta

    def _tail_by_size(self, key: str) -> tuple["ObjectMeta", bytes]:
        for _ in range(_READ_ATTEMPTS):
            meta = self._head(key)
            if meta["size"] == 0:
                return meta, b""
            first = max(meta["size"] - _TAIL, 0)
            tail = self._range_of_same(key, first, meta["size"], meta)
            if tail is not None:
                return meta, tail
        raise StorageUnavailable(self._client.profile, "an object changes while it is read")

    def _range_of_same(self, key: str, start: int, end: int, meta: "ObjectMeta") -> bytes | None:
        """A part of the object that ``meta`` describes; None if another one is there now."""
        options: GetOptions = {"range": (start, end)}
        if meta["e_tag"] is not None:
            options["if_match"] = meta["e_tag"]
        try:
            now, content = self._get(key, options)
        except (_Replaced, _NotSatisfiable):
            return None
        same = _identity(now) == _identity(meta) and now["last_modified"] == meta["last_modified"]
        return content if same and len(content) == end - start else None

    def read_range(self, path: str, start: int, length: int) -> bytes:
        key = self._client.key(path)
        if length <= 0:
            self._head(key)
            return b""
        try:
            return self._get(key, {"range": (start, start + length)})[1]
        except _NotSatisfiable:  # the object ends before
            return b""
        except _NotPartial:
            self._require_empty(key)
            return b""

    def _get(self, key: str, options: "GetOptions") -> tuple["ObjectMeta", bytes]:
        """Metadata and content. Raises _Replaced, _NotSatisfiable, _NotPartial and OSError."""

        def get() -> "tuple[ObjectMeta, bytes] | OSError":
            try:
                result = obstore.get(self._client.store, key, options=options)
                return result.meta, bytes(result.bytes())
            except exceptions.PreconditionError:
                return _Replaced()
            except exceptions.GenericError as error:
                status = object_errors.status_of(error, key)
                if status == object_errors.RANGE_NOT_SATISFIABLE:
                    return _NotSatisfiable()
                if object_errors.is_not_partial(error, key):
                    return _NotPartial()
                raise

        answer = self._client.call(get, key)
        if isinstance(answer, OSError):
            raise answer
        return answer

    def open(self, path: str) -> tuple[int, int | None]:
        return self.status(path).size, None

    def status(self, path: str) -> FileStatus:
        return _status(self._head(self._client.key(path)))

    def _head(self, key: str) -> "ObjectMeta":
        return self._client.call(lambda: obstore.head(self._client.store, key), key)

    def read_ahead(
        self, paths: Sequence[str], limit: int, sizes: Mapping[str, int]
    ) -> Pending[bytes]:
        pending = object_batches.contents(
            self._client, paths, limit, sizes, lambda path: self.read(path, limit)[0]
        )

        def counted() -> list[bytes | OSError]:
            results = pending.results()
            large_inputs.count(sum(len(r) for r in results if isinstance(r, bytes)))
            return results

        return Pending(counted, pending.cancel)

    def sizes_ahead(self, paths: Sequence[str]) -> Pending[int | None]:
        return object_batches.sizes(self._client, paths, self.size)

    # -- writing

    def write_new(self, path: str, content: bytes) -> None:
        """See ``Store.write_new``. Succeeds if the object exists with this content.

        A request may be executed and its answer be lost. When it is repeated, the store finds the
        object that the first attempt wrote. Names of new files contain random parts, so nobody else
        wrote the same content there; and if somebody did, the outcome would be the same.
        """
        key = self._client.key(path)
        try:
            self._create(key, content)
        except FileExistsError:
            if not self._holds(key, content):
                raise

    def _create(self, key: str, content: bytes) -> None:
        """Write an object that must not exist. Raises FileExistsError and OSError."""
        store = self._client.store
        if self._client.configuration.conditional_writes:
            self._client.call(
                lambda: obstore.put(store, key, content, mode="create"), key, of_file=False
            )
            return
        # Without conditional writes, two writers may both see that the name is free, and the later
        # one wins. Names of files are random and versions are assigned by the ledger, so two writers
        # of one name do not occur unless one of them is a retry with the same content.
        try:
            self._head(key)
        except OSError as error:
            if not is_missing(error):
                raise
            self._client.call(
                lambda: obstore.put(store, key, content, use_multipart=False), key, of_file=False
            )
            return
        raise FileExistsError(f"{key} exists")

    def _holds(self, key: str, content: bytes) -> bool:
        """True if an object exists with this content."""

        def get() -> bool:
            result = obstore.get(self._client.store, key)
            return result.meta["size"] == len(content) and bytes(result.bytes()) == content

        try:
            return self._client.call(get, key)
        except OSError as error:
            if is_missing(error):
                # The store refused the write because of another one that did not come to its end.
                raise StorageUnavailable(self._client.profile, "writes conflict") from None
            raise

    def move_manifest(self, location: str, staged: str, final: str) -> Move:
        """See ``Store.move_manifest``. Read, create and remove: at each point one of the names holds it."""
        source, target = (self._client.key(f"{location}/{name}") for name in (staged, final))
        try:
            content, _ = self.read(f"{location}/{staged}", _MAX_MANIFEST)
        except OSError as error:
            if not is_missing(error):
                raise
            return self._move_without_source(target)
        try:
            self._create(target, content)
        except FileExistsError:
            if not self._holds(target, content):
                return Move.OCCUPIED
        object_removal.delete(self._client, source)
        return Move.DONE

    def _move_without_source(self, target: str) -> Move:
        try:
            self._head(target)
        except OSError as error:
            if is_missing(error):
                return Move.MISSING
            raise
        return Move.DONE

    def make_directory(self, path: str) -> None:
        """Nothing: objects need no directories."""

    # -- removing

    def remove(self, path: str) -> bool:
        """See ``Store.remove``. Two requests, because S3 does not tell whether the object existed.

        Another process may remove it between them; then both return True.
        """
        key = self._client.key(path)
        try:
            self._head(key)
        except OSError as error:
            if is_missing(error):
                return False
            raise
        object_removal.delete(self._client, key)
        return True

    def remove_many(self, paths: Iterable[str]) -> Iterator[str]:
        """See ``Store.remove_many``. If one file of a page cannot be removed, the others are."""
        remaining = iter(paths)
        while page := list(islice(remaining, object_removal.PAGE)):
            keys = [self._client.key(path) for path in page]
            failure: OSError | None = None
            for path, error in zip(
                page, object_removal.delete_page(self._client, keys), strict=True
            ):
                if error is None:
                    yield path
                failure = failure or error
            if failure is not None:
                raise failure

    def set_aside(self, location: str, name: str) -> str | None:
        return location if object_listing.has_objects(self._client, location) else None

    def remove_tree(self, directory: str) -> Iterator[int]:
        return object_removal.remove_tree(self._client, directory)

    def remove_empty_directories(self, directory: str) -> Iterator[str]:
        return iter(())

    # -- listing

    def list_files(self, location: str, directory: str) -> Iterator[StoredFile]:
        return object_listing.list_files(self._client, _below(location, directory))

    def list_tree(self, directory: str, *, with_foreign: bool = False) -> Iterator[StoredFile]:
        return object_listing.list_tree(self._client, directory, with_foreign=with_foreign)

    def list_directories(self, location: str, directory: str) -> list[str]:
        return object_listing.list_directories(self._client, _below(location, directory))

    def list_branches(self, location: str) -> list[str]:
        return object_listing.list_branches(self._client, location)

    # -- what only some storages have

    def occupy(self) -> None:
        self._client.availability.occupy()

    def can_see(self, location: str) -> bool:
        return True

    def require_reachable(self, path: str) -> None:
        """Raise OSError if the bucket is missing or refuses its lists."""
        object_listing.has_objects(self._client, path)

    def find_irregular(self, directory: str) -> str | None:
        return None

    def resolve(self, path: str) -> str:
        return path


class _NotSatisfiable(OSError):
    """An object ends before the requested range."""


class _NotPartial(OSError):
    """The store answers with the whole object."""


class _Replaced(OSError):
    """Another object is at the key now."""


def _below(location: str, directory: str) -> str:
    return f"{location}/{directory}".removesuffix("/")


def _identity(meta: "ObjectMeta") -> tuple[str | None, str | None, int]:
    return meta["e_tag"], meta["version"], meta["size"]


def _status(meta: "ObjectMeta") -> FileStatus:
    written_at = meta["last_modified"].timestamp()
    return FileStatus(meta["size"], written_at, written_at, _identity(meta))
