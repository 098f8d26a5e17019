"""CPU and memory of a server's processes, read from /proc."""

import os
from collections.abc import Iterator
from pathlib import Path

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
