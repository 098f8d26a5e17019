"""Watches the calls of Lance in a web process, in a thread of its own."""

import logging
import os
import signal
import threading
import time
from functools import lru_cache
from pathlib import Path

from django.conf import settings

from catalog.identifiers import label
from catalog.services.lance.containment import calls

log = logging.getLogger(__name__)
_PERIOD_SECONDS = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def start() -> None:
    """Judge the calls during which earlier processes have ended, and watch those of this process."""
    for death in calls.journal.recover():
        log.error(
            "Web process %d ended during %s of Lance: %s",
            death.pid,
            "suspect calls" if death.is_certain else "calls",
            ", ".join(death.names),
        )
    threading.Thread(target=_run, name="lance-watcher", daemon=True).start()


def _run() -> None:
    limit = memory_limit()
    memory()
    while True:
        time.sleep(_PERIOD_SECONDS)
        look(limit)


def look(limit: int) -> None:
    """End this process if it uses more memory than the limit, in bytes, while it is calling Lance."""
    running = calls.running()
    if not running:
        return
    if memory() > limit:
        log.critical(
            "Web process %d uses more than %d MiB (MONODON_WEB_MEMORY_BYTES) during calls of Lance, and ends: %s",
            os.getpid(),
            limit // 1024**2,
            ", ".join(f"{label(call.table)} ({call.principal})" for call in running),
        )
        _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def memory() -> int:
    """The memory of this process in bytes, without files and memory that it shares; 0 if unknown."""
    try:
        _, resident, shared, *_ = map(int, os.pread(_statm(os.getpid()), 4096, 0).split())
    except OSError:
        return 0
    return (resident - shared) * _PAGE


@lru_cache(maxsize=1)
def _statm(pid: int) -> int:
    """The file with the memory of this process. It stays open: later the process may have no descriptor left."""
    return os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)


def memory_limit() -> int:
    """The bytes that MONODON_WEB_MEMORY_BYTES permits: by default 3/4 of the memory of the machine or container."""
    return settings.MONODON_WEB_MEMORY_BYTES or min(_machine_memory(), _container_memory()) // 4 * 3


def _machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _container_memory() -> int:
    try:
        return int(_CGROUP_LIMIT.read_text())
    except (OSError, ValueError):  # "max"
        return _machine_memory()
