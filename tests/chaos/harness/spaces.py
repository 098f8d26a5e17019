"""Namespaces that clients share, and the clients' assumptions about them.

A namespace gets a few hundred operations and is then replaced by a new one, so that its history is short
enough to be judged as a whole, across all its tables and both formats.
"""

import itertools
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

LANCE_NAMES = ("a", "b", "c")
ICEBERG_NAMES = ("x", "y", "z")
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}


@dataclass
class Belief:
    """The state that some client read last. It may be outdated, so that clients conflict.

    Snapshot and sequence belong together, so the whole object is replaced.
    """

    location: str
    version: int = 0
    snapshot: int = 0
    sequence: int = 0
    timestamp: int = 0


@dataclass
class Space:
    name: str
    root: Path
    tables: dict[str, Belief] = field(default_factory=dict)
    begun: int = 0
    users: int = 0
    """Number of clients with a running operation in it."""
    is_ready: bool = False
    """True if the namespace is known to exist."""
    is_over: bool = False
    """True if all its operations have begun, so no further one begins."""

    def location(self, value: str) -> str:
        """Location of the table that this operation creates; it identifies the table from then on."""
        return str(self.root / f"{self.name}-{value}")

    def present(self, names: tuple[str, ...], dice: random.Random) -> str:
        """A name that has a table; one time in ten any name."""
        existing = [name for name in names if name in self.tables]
        return dice.choice(existing if existing and dice.random() < 0.9 else names)

    def absent(self, names: tuple[str, ...], dice: random.Random) -> str:
        free = [name for name in names if name not in self.tables]
        return dice.choice(free if free and dice.random() < 0.9 else names)


class Spaces:
    """``width`` namespaces at a time, each for ``lifetime`` operations."""

    def __init__(self, root: Path, width: int, lifetime: int, prefix: str = "s") -> None:
        self._root, self._lifetime, self._prefix = root, lifetime, prefix
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.all: list[Space] = []
        self._current = [self._fresh() for _ in range(width)]

    def _fresh(self) -> Space:
        space = Space(f"{self._prefix}{next(self._numbers)}", self._root)
        self.all.append(space)
        return space

    def choose(self, dice: random.Random) -> tuple[Space, bool]:
        """A namespace, and True if the caller must create it, because it is the first to choose it.

        The caller releases it.
        """
        with self._lock:
            slot = dice.randrange(len(self._current))
            if self._current[slot].begun >= self._lifetime:
                self._current[slot].is_over = True
                self._current[slot] = self._fresh()
            space = self._current[slot]
            space.begun += 1
            space.users += 1
            return space, space.begun == 1

    def release(self, space: Space) -> None:
        with self._lock:
            space.users -= 1

    def replace(self, space: Space) -> None:
        """Use another instead of a namespace that could not be created."""
        with self._lock:
            space.begun = self._lifetime

    def over(self) -> list[Space]:
        """Namespaces in which no operation is running and none will begin."""
        with self._lock:
            return [space for space in self.all if space.is_over and not space.users]
