"""``python -m catalog.row_reader``: forks a worker for each connection that its standard input sends.

It has loaded all libraries and has no threads of Python, so a fork takes milliseconds, and the workers share
its memory. It decodes nothing itself, ends workers whose time is over, and ends when the web process has closed
the socket, or after a time without a request.
"""

import gc
import os
import select
import signal
import socket
import struct
import time
import traceback
import warnings

import pyarrow as pa

from catalog.row_reader import limits, worker

REQUEST = struct.Struct("!Qd")
"""The bytes of memory and the seconds that a worker may use; its connection comes with them."""
READY = b"1"
_IDLE_SECONDS = 600
_CHECK_SECONDS = 0.1
_THREADS = 2
"""Of a worker, for decompression. Each takes address space, which is limited."""


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # The libraries have threads of their own, which do nothing here.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
    pa.set_cpu_count(min(os.cpu_count() or 1, _THREADS))
    gc.freeze()
    control.sendall(READY)
    workers = _Workers(control)
    try:
        workers.run()
    finally:
        workers.end_all()


class _Workers:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ends_at: dict[int, float] = {}
        """By process id, as the monotonic clock says it."""

    def run(self) -> None:
        used_at = time.monotonic()
        while self._ends_at or time.monotonic() - used_at < _IDLE_SECONDS:
            timeout = _CHECK_SECONDS if self._ends_at else _IDLE_SECONDS
            if select.select([self._control], [], [], timeout)[0]:
                used_at = time.monotonic()
                if not self._accept():
                    return
            self._end_late()

    def end_all(self) -> None:
        self._ends_at = dict.fromkeys(self._ends_at, 0.0)
        self._end_late()

    def _accept(self) -> bool:
        """Start a worker; False if the web process has ended."""
        try:
            request, handles, _, _ = socket.recv_fds(self._control, REQUEST.size, 1)
        except ConnectionError:
            return False
        if len(request) < REQUEST.size or not handles:
            return False
        memory_bytes, seconds = REQUEST.unpack(request)
        with socket.socket(fileno=handles[0]) as connection:
            pid = os.fork()
            if pid == 0:
                self._work(connection, memory_bytes, seconds)
        self._ends_at[pid] = time.monotonic() + seconds
        return True

    def _work(self, connection: socket.socket, memory_bytes: int, seconds: float) -> None:
        """Serve a connection in a new process, and end it."""
        try:
            self._control.close()
            limits.apply(memory_bytes=memory_bytes, seconds=seconds)
            worker.serve(connection)
        except (EOFError, OSError, MemoryError):  # the web process has left
            pass
        except Exception:  # noqa: BLE001 -- the outermost frame of this process
            traceback.print_exc()
        finally:
            os._exit(0)

    def _end_late(self) -> None:
        for pid, ends_at in list(self._ends_at.items()):
            if time.monotonic() > ends_at:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            elif os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
            del self._ends_at[pid]
