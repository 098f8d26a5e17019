"""Child processes, and processes that an earlier run left behind."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from server.identity import Identity

MARK = "MONODON_RUN"
"""Environment variable that identifies every process of a run, however it was started."""

Sink = Callable[[str], None]


class Child:
    """A process in its own session, whose output lines go to `sink`.

    Start it from the main thread: the kernel ties "die with the parent" to the thread that forked.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        sink: Sink,
        environment: Mapping[str, str],
        directory: Path,
        identity: Identity | None = None,
        polite: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.polite = polite
        self._command = list(command)
        self._sink = sink
        self._environment = dict(environment)
        self._directory = directory
        self._identity = identity or Identity(owner=(os.geteuid(), os.getegid()))
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"  # noqa: S101
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        launch = self._identity.launch(
            self._command,
            "--parent",
            str(os.getpid()),
            "--death-signal",
            str(int(self.polite)),
        )
        self._process = subprocess.Popen(  # noqa: S603
            launch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._directory,
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._pump.start()

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None  # noqa: S101
        with process.stdout:
            for line in process.stdout:
                self._sink(line.decode("utf-8", "replace").rstrip())

    def drain(self, timeout: float = 1.0) -> None:
        """Wait for the last lines of a process that has exited."""
        if self._pump is not None:
            self._pump.join(timeout)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process only, which may forward it to its children."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """Kill the process group, including children that the process left behind."""
        if self._process is not None:
            signal_group(self._process.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> bool:
        """Wait for the process. True if it has exited."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(timeout, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True


def signal_group(group: int, number: signal.Signals) -> bool:
    """Send a signal to a process group. False if the group has no process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def describe_exit(status: int | None) -> str:
    if status is None:
        return "is running"
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"exited with status {status}"


def _process_ids() -> Iterator[int]:
    """All process ids; none without /proc, where process groups and PostgreSQL's pid file must
    suffice."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                yield int(entry.name)


def alive(pid: int) -> bool:
    """True if a process is alive. A zombie is not, because it has no open files and ports."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
    if Path("/proc/self/stat").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def with_mark(mark: str) -> list[int]:
    """Every living process, except this one, that carries the mark in its environment."""
    variable = os.fsencode(f"{MARK}={mark}")
    processes = []
    for pid in _process_ids():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid != os.getpid() and variable in environment and alive(pid):
                processes.append(pid)
    return processes


def working_in(directory: Path) -> list[int]:
    """Every living process whose working directory is `directory`."""
    path = os.path.realpath(directory)
    processes = []
    for pid in _process_ids():
        with contextlib.suppress(OSError):
            if str(Path(f"/proc/{pid}/cwd").readlink()) == path and alive(pid):
                processes.append(pid)
    return processes


def sweep(mark: str, *, patience: float) -> int:
    """End the processes with the mark, with their signal and then with SIGKILL. Returns their
    number."""
    processes = with_mark(mark)
    _signal_all(processes, signal.SIGTERM)
    deadline = time.monotonic() + patience
    remaining = processes
    while remaining and time.monotonic() < deadline:
        time.sleep(0.05)
        remaining = with_mark(mark)
    deadline = time.monotonic() + 2.0  # a process that is blocked in the kernel may survive this
    while remaining and time.monotonic() < deadline:
        _signal_all(remaining, signal.SIGKILL)
        time.sleep(0.05)
        remaining = with_mark(mark)
    return len(processes)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
