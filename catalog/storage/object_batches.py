"""Requests for many objects at once, which only read.

One thread of the process sends them for all stores and callers. So a caller hands over a batch and not
each request, and a store that is slow delays only those who wait for it. Whoever waits for the results
settles the failures, by the ordinary requests.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import obstore

from catalog.storage import object_errors
from catalog.storage.object_clients import FAILURES, ObjectClient
from catalog.storage.stores import Pending, attempt, is_missing

T = TypeVar("T")
_Request = Callable[[str, str], Awaitable[T]]
"""Sends a request for a path and its key."""


class _TooMuch(Exception):
    """An object is larger than expected."""


def contents(
    client: ObjectClient,
    paths: Sequence[str],
    limit: int,
    sizes: Mapping[str, int],
    read: Callable[[str], bytes],
) -> Pending[bytes]:
    """Begin to read objects. See ``Store.read_ahead``; ``read`` reads one by an ordinary request."""

    async def get(path: str, key: str) -> bytes:
        size = sizes.get(path)
        if size is None or not 0 <= size <= limit:  # a client may have written anything
            return await _whole(client, key, limit)
        return await _of_size(client, key, size)

    return _begin(client, paths, get, read)


def sizes(
    client: ObjectClient, paths: Sequence[str], size: Callable[[str], int | None]
) -> Pending[int | None]:
    """Begin to find the sizes of objects. See ``Store.sizes_ahead``; ``size`` is an ordinary request."""

    async def head(_path: str, key: str) -> int | None:
        return (await obstore.head_async(client.store, key))["size"]

    pending = _begin(client, paths, head, size)

    def results() -> list[int | OSError | None]:
        return [
            None if isinstance(result, OSError) and is_missing(result) else result
            for result in pending.results()
        ]

    return Pending(results, pending.cancel)


async def _whole(client: ObjectClient, key: str, limit: int) -> bytes:
    result = await obstore.get_async(client.store, key)
    if result.meta["size"] > limit:
        raise _TooMuch
    return bytes(await result.bytes_async())


async def _of_size(client: ObjectClient, key: str, size: int) -> bytes:
    """An object with at most this size. One step, while ``_whole`` fetches the content in a second one."""
    # One byte more shows whether the object is larger.
    content = bytes(await obstore.get_range_async(client.store, key, start=0, end=size + 1))
    if len(content) > size:
        raise _TooMuch
    return content


def _begin(
    client: ObjectClient, paths: Sequence[str], request: _Request[T], again: Callable[[str], T]
) -> Pending[T]:
    """Send a request for each path. ``again`` repeats one that an ordinary request must settle.

    Raises AccessDenied and StorageUnavailable.
    """
    client.availability.occupy()  # the calling thread waits for the store
    client.require_credentials()
    keys = [attempt(client.key, path) for path in paths]
    files = [(path, key) for path, key in zip(paths, keys, strict=True) if isinstance(key, str)]
    batch = asyncio.run_coroutine_threadsafe(_send(request, files), _loop(os.getpid()))

    def results() -> list[T | OSError]:
        outcomes = iter(batch.result())
        return [
            key if isinstance(key, OSError) else _settle(client, path, key, next(outcomes), again)
            for path, key in zip(paths, keys, strict=True)
        ]

    def cancel() -> None:
        batch.cancel()

    return Pending(results, cancel)


def _settle(
    client: ObjectClient, path: str, key: str, outcome: T | Exception, again: Callable[[str], T]
) -> T | OSError:
    if not isinstance(outcome, Exception):
        return outcome
    if isinstance(outcome, _TooMuch) or _must_repeat(outcome, key):
        return attempt(again, path)
    return client.translated(outcome, key)


def _must_repeat(failure: Exception, key: str) -> bool:
    """True if the answer was lost, or a store has no such range: that of an empty object, for example."""
    return (
        object_errors.is_lost(failure, key)
        or object_errors.is_not_partial(failure, key)
        or object_errors.status_of(failure, key) == object_errors.RANGE_NOT_SATISFIABLE
    )


async def _send(request: _Request[T], files: Sequence[tuple[str, str]]) -> list[T | Exception]:
    return await asyncio.gather(*(_outcome(request, path, key) for path, key in files))


async def _outcome(request: _Request[T], path: str, key: str) -> T | Exception:
    try:
        return await request(path, key)
    except (*FAILURES, _TooMuch) as error:
        return error


@lru_cache(maxsize=1)
def _loop(pid: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 -- a fork lacks the thread of its parent
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="object batches", daemon=True).start()
    return loop
