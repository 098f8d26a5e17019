"""The web server: ``python -m config.web``.

The application is loaded once, before granian forks its processes. They share its memory, and a process
that replaces a dead one serves at once. The port is bound first, so nobody else can take it meanwhile.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import deque
from importlib import import_module
from typing import Any

from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer

_APPLICATION = "config.rsgi"
_LOOP_SECONDS = 60.0
_LOOP_DEATHS = 10
"""The server ends if this many processes for each of its workers die in _LOOP_SECONDS."""


class PatientServer(MPServer):
    """Replaces processes that die soon after each other.

    granian ends the whole server if a process dies within 5.5 seconds of its start. A client that can end a
    process, with a file that makes Lance allocate too much memory, could end the server with two requests.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deaths: deque[float] = deque(maxlen=_LOOP_DEATHS * self.workers)

    def _respawn_workers(self, workers: list[int], *args: Any, **options: Any) -> None:
        super()._respawn_workers(workers, *args, **options)
        now = time.monotonic()
        self._deaths.extend(now for _ in workers)
        is_loop = len(self._deaths) == self._deaths.maxlen and now - self._deaths[0] < _LOOP_SECONDS
        if not is_loop:
            self.respawned_wrks.clear()  # what granian judges by


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m config.web", description="Serve Monodon.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=2333)
    parser.add_argument(
        "--workers", type=int, default=_number("MONODON_WEB_WORKERS", 2), help="processes"
    )
    parser.add_argument(
        "--max-connections",
        type=int,
        default=_number("MONODON_MAX_CONNECTIONS", 4096),
        help="open connections of one process, including idle ones; others wait in the backlog",
    )
    options = parser.parse_args()
    server = PatientServer(
        f"{_APPLICATION}:application",
        address=options.host,
        port=options.port,
        interface=Interfaces.RSGI,
        workers=options.workers,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        websockets=False,
        backlog=2048,
        backpressure=options.max_connections,
        # Also the time after which an idle connection is closed.
        http1_settings=HTTP1Settings(header_read_timeout=30_000),
        log_level=LogLevels.warning,
        respawn_failed_workers=True,
        workers_kill_timeout=3,
    )
    if sys.platform.startswith("linux"):  # elsewhere, system libraries do not survive a fork
        multiprocessing.set_start_method("fork")
        server.on_startup(lambda: import_module(_APPLICATION))
    server.serve()


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


if __name__ == "__main__":
    main()
