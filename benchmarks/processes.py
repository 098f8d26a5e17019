"""CPU and memory of a server's processes, read from /proc."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, fields in _all():
        children.setdefault(int(fields[1]), []).append(pid)
    processes, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        processes.append(pid)
        waiting += children.get(pid, [])
    return processes


def cpu_seconds(roots: list[int]) -> float:
    """User and system time of these trees so far, with that of their members that ended meanwhile."""
    members = {pid for root in roots for pid in tree(root)}
    # Fields 14 to 17 of stat, counted behind the name: utime, stime, cutime, cstime.
    ticks = sum(
        sum(int(value) for value in fields[11:15]) for pid, fields in _all() if pid in members
    )
    return ticks / _TICKS


def idle_seconds() -> float:
    """Time in which the processors had nothing to do so far, added over all of them."""
    # The line of all processors: its name, user, nice, system, idle, iowait.
    fields = Path("/proc/stat").read_text().split(maxsplit=6)
    return (int(fields[4]) + int(fields[5])) / _TICKS


class ForeignLoad:
    """The share of the processors' time that other programs take while it is entered.

    ``measured``: processes that do not belong to the benchmark, but are measured by it.
    """

    def __init__(self, measured: Sequence[int] = ()) -> None:
        self._own = [os.getpid(), *measured]
        self.share = 0.0
        """From 0 to 1; known after the end."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._foreign = _foreign_seconds(self._own)
        return self

    def __exit__(self, *error: object) -> None:
        available = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        self.share = max(0.0, _foreign_seconds(self._own) - self._foreign) / available


def _foreign_seconds(own: list[int]) -> float:
    """CPU time so far of all programs but these trees."""
    # The line of all processors: its name, user, nice, system, idle …
    fields = Path("/proc/stat").read_text().split(maxsplit=5)
    busy = sum(int(value) for value in fields[1:4]) / _TICKS
    return busy - cpu_seconds(own)


def resident_megabytes(root: int) -> list[float]:
    """Resident memory of each process of the tree (VmRSS; shared pages count in full)."""
    sizes = []
    for pid in tree(root):
        status = Path(f"/proc/{pid}/status").read_text()
        sizes += [
            int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")
        ]
    return sorted(sizes, reverse=True)


def _all() -> Iterator[tuple[int, list[str]]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                text = Path(f"/proc/{entry.name}/stat").read_text()
            except OSError:  # it ended
                continue
            yield int(entry.name), text.rpartition(")")[2].split()
