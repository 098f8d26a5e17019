"""Reading many files of a table: those in object stores ahead of their use, and in parallel.

A file of an object store takes a round trip, during which others can be fetched. Local files are read
when it is their turn, because reading them takes no longer than handing them over.

Callers have checked that the files may be read.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from catalog.regular_files import NotRegular, TooLarge
from catalog.storage import stores
from catalog.storage.object_locations import is_object
from catalog.storage.stores import Pending, Store, attempt

_T = TypeVar("_T")

_BATCH = 8
_BATCHES_AHEAD = 2
"""The batches of one caller that are fetched at the same time."""
_MAX_AHEAD_BYTES = 10 * 1024 * 1024
"""The largest file that is fetched ahead. Writers produce manifests of 8 MB."""
_NO_SIZES: Mapping[str, int] = {}


def contents(
    paths: Sequence[str], limit: int, sizes: Mapping[str, int] = _NO_SIZES
) -> Generator[bytes | OSError]:
    """The content of each file, in this order, or the error that occurred instead.

    ``paths`` are canonical. ``limit`` is the maximum size in bytes; the error of a larger file is
    TooLarge. ``sizes`` are the expected ones of some files, which then cost less to fetch.
    """
    small = min(limit, _MAX_AHEAD_BYTES)
    results = _in_order(paths, lambda store, batch: store.read_ahead(batch, small, sizes))
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, TooLarge) and small < limit:
            yield attempt(_content, path, limit)
        else:
            yield result


def sizes(paths: Sequence[str]) -> dict[str, int]:
    """The sizes in bytes of the regular files that exist, by canonical path. Raises OSError."""
    by_path = {}
    results = _in_order(paths, lambda store, batch: store.sizes_ahead(batch))
    for path, size in zip(paths, results, strict=True):
        if isinstance(size, OSError):
            if not isinstance(size, NotRegular):
                raise size
        elif size is not None:
            by_path[path] = size
    return by_path


def _in_order(
    paths: Sequence[str], begin: Callable[[Store, Sequence[str]], Pending[_T]]
) -> Iterator[_T | OSError]:
    """The result for each path, or its OSError. ``begin`` gets paths of one store."""
    remaining = _batches(paths)
    waiting: deque[Pending[_T]] = deque()

    def fill() -> None:
        for store, batch in islice(remaining, _BATCHES_AHEAD - len(waiting)):
            waiting.append(_begin(begin, store, batch))

    try:
        fill()
        while waiting:
            results = waiting.popleft().results()
            fill()
            yield from results
    finally:
        for abandoned in waiting:
            abandoned.cancel()


def _content(path: str, limit: int) -> bytes:
    return stores.store_of(path).content(path, limit)


def _batches(paths: Sequence[str]) -> Iterator[tuple[Store | OSError, list[str]]]:
    """The paths in groups, each with its store. A local file is a group of its own."""
    batch: list[str] = []
    holder: Store | OSError = OSError()
    for path in paths:
        store = attempt(stores.store_of, path)
        if batch and (store is not holder or not is_object(path) or len(batch) == _BATCH):
            yield holder, batch
            batch = []
        batch.append(path)
        holder = store
    if batch:
        yield holder, batch


def _begin(
    begin: Callable[[Store, Sequence[str]], Pending[_T]],
    store: Store | OSError,
    batch: Sequence[str],
) -> Pending[_T]:
    if isinstance(store, Store):
        try:
            return begin(store, batch)
        except OSError as error:
            failure = error
    else:
        failure = store
    return Pending(lambda: [failure] * len(batch))
