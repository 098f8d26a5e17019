"""Readable logs: every line begins with the padded name of its process."""

import os
import sys
import threading
from typing import IO

WIDTH = 8

_COLOURS = {
    "monodon": "1;36",
    "setup": "36",
    "postgres": "34",
    "valkey": "31",
    "web": "32",
    "worker": "33",
    "tasks": "33",
    "beat": "35",
}


class Output:
    """Writes complete lines from several threads. A closed terminal does not stop the processes."""

    def __init__(self, stream: IO[str] | None = None, *, colour: bool | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()
        if colour is None:
            colour = self._stream.isatty() and not os.environ.get("NO_COLOR")
        self._colour = colour

    def line(self, name: str, text: str) -> None:
        label = f"{name:<{WIDTH}} |"
        if self._colour:
            label = f"\x1b[{_COLOURS.get(name, '0')}m{label}\x1b[0m"
        try:
            with self._lock:
                self._stream.write(f"{label} {text}\n")
                self._stream.flush()
        except (OSError, ValueError):  # the terminal is closed; the servers continue
            return

    def lines(self, name: str, text: str) -> None:
        for line in text.splitlines():
            self.line(name, line)
