"""The calls of Lance that the web processes of a server run, and the verdicts on their tables and principals.

They are in memory that is allocated with this module, before the server forks its processes: so what a process
was doing when it ended survives it. Another server, or the same after a restart, knows nothing of it.
"""

import fcntl
import mmap
import os
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from time import monotonic
from typing import Any

import numpy as np

from catalog.identifiers import Identifier, digest, label

SUSPECT_SECONDS = 600.0
"""How long the tables and principals of calls are suspect after a process has ended during the calls."""
MAX_SUSPICIONS = 3
"""The number of ended processes from which a call is refused if it can't run alone."""
REFUSED_SECONDS = 600.0
"""How long a table is refused after its calls alone have ended a process; twice as long each next time."""
MAX_REFUSED_SECONDS = 6 * 3600.0
MAX_BLAMES = 3
"""The number of processes that the calls of a principal end, without those of others, before they are refused."""
_FORGOTTEN_SECONDS = 24 * 3600.0
_REGIONS = 128
_REGION_SIZE = 256
"""The calls of a process that are noted at the same time: more than it has threads."""
_MAX_VERDICTS = 1024
_ANY_PROCESS = 0
"""The byte of the file that a process locks to change verdicts and owners."""
_FIRST_OWNER = 1
"""The byte that the owner of the first region locks as long as it lives; the next are those of the next regions."""

_SUSPECT, _MUST_RUN_ALONE = 1, 2
"""Values of ``suspicion``."""
_CALL = np.dtype([("table", "i8"), ("principal", "i8"), ("suspicion", "i8"), ("name", "S240")])
_VERDICT = np.dtype(
    [
        ("key", "i8"),
        ("suspicions", "i8"),
        ("blames", "i8"),
        ("suspect_until", "f8"),
        ("refused_until", "f8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a call may run now."""

    runs_alone: bool = False
    must_run_alone: bool = False
    """It is refused if it can't."""
    refused_seconds: float = 0.0
    """It is refused for this time."""


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended during calls of Lance."""

    pid: int
    names: tuple[str, ...]
    """The tables and principals of the calls."""
    is_certain: bool
    """True if the calls, or those of them that had to run alone, were suspect, and all for one table or of one
    principal."""


_NONE = Verdict()


class Journal:
    """Shared by the process that creates it and those that it forks."""

    def __init__(self) -> None:
        size = 8 + 8 * _REGIONS + _CALL.itemsize * _REGIONS * _REGION_SIZE
        file = _shared_file()
        os.ftruncate(file, size + _VERDICT.itemsize * _MAX_VERDICTS)
        memory = mmap.mmap(file, 0)
        self._file = file
        self._latest = np.frombuffer(memory, "f8", 1)
        """The time until which any verdict applies."""
        self._owners = np.frombuffer(memory, "i8", _REGIONS, 8)
        """The process of each region of calls; 0: none."""
        self._calls = np.frombuffer(memory, _CALL, _REGIONS * _REGION_SIZE, 8 + 8 * _REGIONS)
        self._verdicts = np.frombuffer(memory, _VERDICT, _MAX_VERDICTS, size)
        self._pid = 0
        self._free: deque[int] = deque()
        """The rows of this process without a call."""
        self._lock = threading.Lock()

    def begin(self, table: Identifier, principal: str, verdict: Verdict = _NONE) -> int | None:
        """Note a call that begins under a verdict; returns its row, or None if there is no room."""
        if self._pid != os.getpid():
            self._claim()
        try:
            row = self._free.popleft()
        except IndexError:
            return None
        name = f"{label(table)} ({principal})".encode()[:240]
        suspicion = _MUST_RUN_ALONE if verdict.must_run_alone else int(verdict.runs_alone)
        self._calls[row] = (_table_key(table), _principal_key(principal), suspicion, name)
        return row

    def end(self, row: int | None) -> None:
        """Note that a call has ended, whether or not it failed."""
        if row is not None:
            self._calls["table"][row] = 0
            self._free.append(row)

    def verdict(self, table: Identifier, principal: str) -> Verdict:
        """How a call for a principal that reads a table may run now."""
        now = monotonic()
        if self._latest[0] <= now:
            return _NONE
        keys = [_table_key(table), _principal_key(principal)]
        rows = np.flatnonzero(np.isin(self._verdicts["key"], keys) & (self._verdicts["key"] != 0))
        verdicts = self._verdicts[rows]
        suspects = verdicts[verdicts["suspect_until"] > now]
        return Verdict(
            runs_alone=bool(len(suspects)),
            must_run_alone=bool(np.any(suspects["suspicions"] >= MAX_SUSPICIONS)),
            refused_seconds=max([0.0, *(verdicts["refused_until"] - now).tolist()]),
        )

    def recover(self) -> list[Death]:
        """Judge the calls of processes that have ended since, and forget them."""
        with self._exclusive():
            return [
                death
                for region in np.flatnonzero(self._owners)
                if not self._is_owned(int(region))
                for death in self._judge(int(region))
            ]

    def _judge(self, region: int) -> Iterator[Death]:
        calls = self._calls[region * _REGION_SIZE : (region + 1) * _REGION_SIZE]
        running = calls[calls["table"] != 0]
        pid = int(self._owners[region])
        if len(running):
            for key in {*running["table"].tolist(), *running["principal"].tolist()} - {0}:
                self._suspect(self._verdict_row(key))
            is_certain = self._judge_suspects(running)
            names = sorted({name.decode(errors="replace") for name in running["name"].tolist()})
            yield Death(pid, tuple(names), is_certain)
        calls["table"] = 0
        self._owners[region] = 0

    def _judge_suspects(self, running: Any) -> bool:
        """Blame the cause, if it is certain.

        Calls of others join one that had to run alone after a second, but only if they are not strongly suspect
        themselves. So it is the cause, even if Lance took longer than that to end the process.
        """
        strong = running[running["suspicion"] == _MUST_RUN_ALONE]
        is_certain = bool(running["suspicion"].any()) and self._blame(
            strong if len(strong) else running
        )
        if is_certain:  # the others were there by chance
            np.minimum(self._verdicts["suspicions"], _SUSPECT, out=self._verdicts["suspicions"])
        return is_certain

    def _suspect(self, row: int) -> None:
        until = monotonic() + SUSPECT_SECONDS
        self._verdicts["suspicions"][row] += 1
        self._verdicts["suspect_until"][row] = until
        self._latest[0] = max(self._latest[0], until)

    def _blame(self, running: Any) -> bool:
        """Blame the only table, or the only principal, of calls; returns False if there are several of both."""
        tables, principals = set(running["table"].tolist()), set(running["principal"].tolist())
        if len(tables) == 1:
            row = self._verdict_row(tables.pop())
            if self._verdicts["refused_until"][row] > monotonic():
                return True  # another process has just ended in the same way
            self._refuse(row, from_blame=1)
        elif len(principals) > 1 or 0 in principals:
            return False
        if len(principals) == 1 and 0 not in principals:
            self._refuse(self._verdict_row(principals.pop()), from_blame=MAX_BLAMES)
        return True

    def _refuse(self, row: int, *, from_blame: int) -> None:
        self._verdicts["blames"][row] += 1
        times = int(self._verdicts["blames"][row]) - from_blame
        if times >= 0:
            seconds = min(REFUSED_SECONDS * 2.0**times, MAX_REFUSED_SECONDS)
            until = monotonic() + seconds
            self._verdicts["refused_until"][row] = until
            self._latest[0] = max(self._latest[0], until)

    def _verdict_row(self, key: int) -> int:
        """The row of a key; a new one takes the place of the one whose verdict ended the longest ago, or ends next."""
        now = monotonic()
        ends = np.maximum(self._verdicts["suspect_until"], self._verdicts["refused_until"])
        rows = np.flatnonzero(self._verdicts["key"] == key)
        row = int(rows[0]) if len(rows) else int(np.argmin(ends))
        is_old = ends[row] + _FORGOTTEN_SECONDS < now
        if not len(rows) or is_old:
            self._verdicts[row] = (key, 0, 0, 0.0, 0.0)
        return row

    def _claim(self) -> None:
        """Take a region of calls for this process, which may be a new fork."""
        pid = os.getpid()
        with self._exclusive():
            if self._pid == pid:
                return
            regions = np.flatnonzero(self._owners == 0)
            self._free.clear()
            if len(regions):
                self._owners[regions[0]] = pid
                fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _FIRST_OWNER + int(regions[0]))
                first = int(regions[0]) * _REGION_SIZE
                self._free.extend(range(first, first + _REGION_SIZE))
            self._pid = pid

    def _is_owned(self, region: int) -> bool:
        """True if the process that claimed a region lives: at its end, the system releases its lock.

        Numbers of processes are used again. A process must not close a duplicate of the file, which releases its locks.
        """
        if self._owners[region] == self._pid == os.getpid():
            return True  # a process gets its own locks
        byte = _FIRST_OWNER + region
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
        return False

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """The lock of all processes; the system releases that of a process that ends."""
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _ANY_PROCESS)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _ANY_PROCESS)


def _shared_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("monodon-lance-calls")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _table_key(table: Identifier) -> int:
    """The same for all spellings of a name, and never 0. Clients choose names, and labels are ambiguous."""
    return _number(digest(table).bytes)


@lru_cache(4096)
def _principal_key(principal: str) -> int:
    """0 for no principal."""
    return _number(sha256(principal.encode()).digest()) if principal else 0


def _number(content: bytes) -> int:
    return int.from_bytes(content[:8], signed=True) or 1
