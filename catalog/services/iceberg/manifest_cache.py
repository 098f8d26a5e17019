"""Manifests of object stores that were read lately, so that repeated scans do not fetch them again.

Manifests never change: a commit writes new ones. A cached manifest is identified by the configuration of
its storage profile, its path, and what the manifest list says about it, so the manifest of a table that
was created again at the same location is another one. The cache does not know whose files these are:
callers check at every use that a manifest may be read, and also the files that it names.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from catalog.services.iceberg import parallel_reads
from catalog.storage import stores
from catalog.storage.locations import is_object

_MAX_BYTES = 32 * 1024 * 1024
_MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ManifestIdentity:
    """What a manifest list says about a manifest."""

    length: int
    snapshot_id: int
    """The snapshot that added the manifest."""
    sequence_number: int | None


class ManifestCache:
    """The least recently used manifests are dropped. Safe for threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._contents: OrderedDict[Hashable, bytes] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            content = self._contents.get(key)
            if content is not None:
                self._contents.move_to_end(key)
            return content

    def put(self, key: Hashable, content: bytes) -> None:
        with self._lock:
            self._size += len(content) - len(self._contents.pop(key, b""))
            self._contents[key] = content
            while self._size > self._max_bytes:
                _, dropped = self._contents.popitem(last=False)
                self._size -= len(dropped)

    def clear(self) -> None:
        with self._lock:
            self._contents.clear()
            self._size = 0


cache = ManifestCache(_MAX_BYTES)


def contents(
    paths: Sequence[str], identities: Sequence[ManifestIdentity | None], limit: int
) -> Iterator[bytes | OSError]:
    """As ``parallel_reads.contents``, for manifests. Those without an identity are not cached."""
    keys = [_key(path, identity) for path, identity in zip(paths, identities, strict=True)]
    cached = [None if key is None else cache.get(key) for key in keys]
    missing = [path for path, content in zip(paths, cached, strict=True) if content is None]
    lengths = {
        path: identity.length
        for path, identity in zip(paths, identities, strict=True)
        if identity is not None
    }
    with closing(parallel_reads.contents(missing, limit, lengths)) as fetched:
        for key, identity, content in zip(keys, identities, cached, strict=True):
            if content is not None:
                yield content
                continue
            result = next(fetched)
            if key is not None and isinstance(result, bytes) and _is_cacheable(result, identity):
                cache.put(key, result)
            yield result


def _is_cacheable(content: bytes, identity: ManifestIdentity | None) -> bool:
    """True unless it is large, or of another length than the file that the list describes."""
    return identity is not None and len(content) == identity.length <= _MAX_FILE_BYTES


def _key(path: str, identity: ManifestIdentity | None) -> Hashable | None:
    """None for a local file, which is read as fast as a cached one."""
    if identity is None or not is_object(path):
        return None
    configuration = stores.configuration_of(path)
    return None if configuration is None else (configuration, path, identity)
