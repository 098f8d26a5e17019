"""Concurrent searches of one open version with the same options, executed as one batch of Lance.

Lance takes longer to plan a search and to read its rows than to compare vectors, and does both once for a batch: a
search takes 1.2 ms of CPU time alone, 0.65 in a batch of two, and 0.44 in a batch of four. A search starts at once
while a processor is free for it. Otherwise it waits, and those that wait start together when a running one ends.

A search has the same results alone and in a batch, except with an index of type IVF_RQ.
"""

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import pyarrow as pa

QUERY_INDEX = "query_index"
"""The first column of the results of a batch: the position of the vector."""
_SEPARATE_INDEX = "IVF_RQ"
_MOST_PROCESSES = 4
"""Web processes that share the processors, at most, unless an operator sets their number."""
MAX_RUNNING = max(1, (os.cpu_count() or 1) // _MOST_PROCESSES)
"""Running batches of equal searches in this process; further searches wait."""
MAX_VECTORS = 16
MAX_RESULTS = 1000
"""Maximum number of results of a search in a batch, whose rows are read at once."""

Execute = Callable[[list[pa.Array]], pa.Table]
"""Searches for vectors, and returns the rows, of several vectors with their ``query_index``."""


@dataclass(slots=True)
class _Search:
    """A search, and the thread that waits for it."""

    vector: pa.Array
    inbox: "SimpleQueue[pa.Table | None]" = field(default_factory=SimpleQueue)
    """Gets the rows, or None when the search may start."""


@dataclass(slots=True)
class _Group:
    """The searches with one key."""

    running: int = 0
    waiting: list[_Search] = field(default_factory=list)


_lock = threading.Lock()
_groups: dict[Hashable, _Group] = {}


def is_possible(schema: pa.Schema, index_types: frozenset[str], results: int) -> bool:
    """True if searches of a version with these columns and indexes may run in a batch."""
    return (
        results <= MAX_RESULTS
        and _SEPARATE_INDEX not in index_types
        and schema.get_field_index(QUERY_INDEX) < 0
    )


def search(key: Hashable, vector: pa.Array, execute: Execute) -> pa.Table:
    """Return the rows nearest to a vector.

    ``key`` identifies the open version and all options of the search; ``execute`` is called with the vectors of searches
    with this key. Raises what it raises for this vector alone.
    """
    own = _Search(vector)
    with _lock:
        group = _groups.setdefault(key, _Group())
        starts = group.running < MAX_RUNNING
        if starts:
            group.running += 1
        else:
            group.waiting.append(own)
    if starts:
        # If the processors are busy, threads that are about to search run first, and join.
        time.sleep(0)
    elif (rows := own.inbox.get()) is not None:
        return rows
    try:
        return _execute(own, group, execute)
    finally:
        _let_next_start(key, group)


def _execute(own: _Search, group: _Group, execute: Execute) -> pa.Table:
    """Search for the own vector, and for those of the searches that wait."""
    with _lock:
        others = group.waiting[: MAX_VECTORS - 1]
        del group.waiting[: MAX_VECTORS - 1]
    if not others:
        return execute([own.vector])
    try:
        vectors = [own.vector, *(other.vector for other in others)]
        rows, *others_rows = _divided(execute(vectors), len(vectors))
    except BaseException:  # noqa: BLE001 -- each search raises its own; a panic of Lance is not an Exception
        with _lock:
            group.running += len(others)
        for other in others:
            other.inbox.put(None)
        return execute([own.vector])
    for other, other_rows in zip(others, others_rows, strict=True):
        other.inbox.put(other_rows)
    return rows


def _divided(rows: pa.Table, count: int) -> list[pa.Table]:
    """The rows of each vector, without the column that numbers the vectors."""
    rows = rows.combine_chunks()
    numbers = rows.column(QUERY_INDEX).to_numpy()
    if np.any(np.diff(numbers) < 0):
        raise AssertionError("the rows of a vector are not together")
    rows = rows.drop_columns([QUERY_INDEX])
    bounds = np.searchsorted(numbers, np.arange(count + 1))
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


def _let_next_start(key: Hashable, group: _Group) -> None:
    """Let a search that waits start in place of one that has ended."""
    with _lock:
        if group.waiting:
            group.waiting.pop(0).inbox.put(None)
            return
        group.running -= 1
        if not group.running:
            _groups.pop(key, None)
