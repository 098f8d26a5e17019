"""Reading many files of a table: those in object stores ahead of their use, and in parallel.

A file of an object store takes a round trip, during which others can be fetched. Local files are read
in the calling thread, because handing them over would take longer than reading them.

All requests of a process share the threads. They only read: callers have checked that the files may be
read, and the stores are looked up in the calling thread, so the threads use no database.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TypeVar

from catalog.regular_files import NotRegular, TooLarge
from catalog.storage import stores
from catalog.storage.locations import is_object
from catalog.storage.stores import Store

_T = TypeVar("_T")

_THREADS = 16
_AHEAD = 16
"""The most files of one caller that are fetched or wait for it."""
_MAX_AHEAD_BYTES = 10 * 1024 * 1024
"""The largest file that is fetched ahead. Writers produce manifests of 8 MB."""


def contents(paths: Sequence[str], limit: int) -> Iterator[bytes | OSError]:
    """The content of each file, in this order, or the error that occurred instead.

    ``paths`` are canonical. ``limit`` is the maximum size in bytes; the error of a larger file is
    TooLarge.
    """
    small = min(limit, _MAX_AHEAD_BYTES)
    results = _in_order(paths, lambda store, path: store.read(path, small)[0])
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, TooLarge) and small < limit:
            yield _attempt(lambda store, path: store.read(path, limit)[0], path)
        else:
            yield result


def sizes(paths: Sequence[str]) -> dict[str, int]:
    """The sizes in bytes of the regular files that exist, by canonical path. Raises OSError."""
    by_path = {}
    for path, size in zip(
        paths, _in_order(paths, lambda store, path: store.size(path)), strict=True
    ):
        if isinstance(size, OSError):
            if not isinstance(size, NotRegular):
                raise size
        elif size is not None:
            by_path[path] = size
    return by_path


def _in_order(paths: Sequence[str], call: Callable[[Store, str], _T]) -> Iterator[_T | OSError]:
    """The result of the call for each path, or its OSError."""
    waiting: deque[Future[_T | OSError] | Callable[[], _T | OSError]] = deque()
    remaining = iter(paths)
    try:
        while True:
            while len(waiting) < _AHEAD and (path := next(remaining, None)) is not None:
                waiting.append(
                    _begin(call, path)
                    if len(paths) > 1 and is_object(path)
                    else partial(_attempt, call, path)
                )
            if not waiting:
                return
            first = waiting.popleft()
            yield first.result() if isinstance(first, Future) else first()
    finally:
        for abandoned in waiting:
            if isinstance(abandoned, Future):
                abandoned.cancel()


def _begin(call: Callable[[Store, str], _T], path: str) -> Future[_T | OSError]:
    try:
        store = stores.store_of(path)
        store.occupy()  # this thread waits for the others
    except OSError as error:
        failed: Future[_T | OSError] = Future()
        failed.set_result(error)
        return failed
    return _threads().submit(_call, call, store, path)


def _call(call: Callable[[Store, str], _T], store: Store, path: str) -> _T | OSError:
    try:
        return call(store, path)
    except OSError as error:
        return error


def _attempt(call: Callable[[Store, str], _T], path: str) -> _T | OSError:
    try:
        store = stores.store_of(path)
    except OSError as error:
        return error
    return _call(call, store, path)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="parallel-reads")
