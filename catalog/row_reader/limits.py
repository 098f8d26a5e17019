"""The limits of a worker, which the system enforces. Some exist only on Linux."""

import contextlib
import math
import resource
from pathlib import Path

_MAX_FILES = 256


def apply(*, memory_bytes: int, seconds: float) -> None:
    """Limit this process for good: memory besides what it has already, processor time, files and writes."""
    with contextlib.suppress(OSError):
        # If the memory of the machine or the container is exhausted, this process ends first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    _limit(resource.RLIMIT_AS, _size() + memory_bytes)
    _limit(resource.RLIMIT_CPU, max(math.ceil(seconds), 1))
    _limit(resource.RLIMIT_NOFILE, _MAX_FILES)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(kind: int, value: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # lower already, or unknown to the system
        resource.setrlimit(kind, (value, value))


def _size() -> int:
    """The address space of this process, in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        return 0
    return pages * resource.getpagesize()
