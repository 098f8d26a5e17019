"""A `python -m server up` with its own home, for the tests in this directory."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

from tests.ports import free_port

PROJECT = Path(__file__).resolve().parents[2]
OUR_NAMES = ("MONODON_", "DATABASE_URL", "REDIS_URL", "PYTEST_", "DJANGO_", "PROMETHEUS_")
# Limits assume an idle machine, and are extended on a busy one.
_IS_BUSY = "PYTEST_XDIST_WORKER" in os.environ or os.getloadavg()[0] > (os.cpu_count() or 1)
PATIENCE = 6.0 if _IS_BUSY else 1.0


def eventually(holds: Callable[[], bool], *, within: float, description: str) -> float:
    """Wait until the condition holds; return the seconds. `within` assumes an otherwise idle
    machine."""
    within *= PATIENCE
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        assert waited < within, f"not within {within} s: {description}"
        time.sleep(0.05)
    return time.monotonic() - began


class Running:
    def __init__(
        self, home: Path, port: int | None = None, *arguments: str, **settings: str
    ) -> None:
        self.home = home
        self.port = port or free_port()
        self.lines: list[str] = []
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(OUR_NAMES)
        }
        # One web process, because each start of one takes five seconds of a processor.
        environment |= {"MONODON_WEB_WORKERS": "1", **settings}
        environment |= {"MONODON_HOME": str(home), "MONODON_PORT": str(self.port)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server", "up", *arguments],
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._read, daemon=True)
        self._pump.start()
        self._processes: dict[int, psutil.Process] = {}

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._pump.join(5)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{self.port}/health/ready"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        return False

    def wait_ready(self, within: float = 60.0) -> float:
        def ready() -> bool:
            assert self.process.poll() is None, self.output
            return self.is_ready()

        try:
            return eventually(ready, within=within, description="ready")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.output}") from exc

    def wait_exit(self, within: float) -> int:
        status = self.process.wait(within * PATIENCE)
        self._pump.join(5)
        return status

    def processes(self) -> list[psutil.Process]:
        """The supervisor's descendants now; also remembered for `left_over`."""
        processes: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        self._processes |= {process.pid: process for process in processes}
        return processes

    def child(self, *words: str) -> psutil.Process:
        """The direct child whose command line has all the words."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.ppid() != self.process.pid:
                    continue
                command = process.cmdline()
                if all(any(word in argument for argument in command) for word in words):
                    return process
        raise AssertionError(f"no child {words}: {self.output}")

    def has(self, *words: str) -> bool:
        """True if that child is alive."""
        try:
            return self.child(*words).status() != psutil.STATUS_ZOMBIE
        except (AssertionError, psutil.NoSuchProcess):
            return False

    def left_over(self) -> list[psutil.Process]:
        leftovers = []
        for process in self._processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    leftovers.append(process)
        return leftovers
