"""Readable logs: every line begins with the padded name of its process."""

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import IO

WIDTH = 8
_MOST_LINES = 10_000
_END_SECONDS = 1.0

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
    """Writes complete lines from several threads. Neither a closed nor a stopped terminal stops the processes.

    A thread of its own writes: nobody waits for a reader that reads nothing, such as a pager. Lines that do not fit
    into memory meanwhile are counted, and lost.
    """

    def __init__(self, stream: IO[str] | None = None, *, colour: bool | None = None) -> None:
        self._stream = stream or sys.stdout
        if colour is None:
            colour = self._stream.isatty() and not os.environ.get("NO_COLOR")
        self._colour = colour
        self._lines: deque[str] = deque()
        self._lost = 0
        self._is_writing = False
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def line(self, name: str, text: str) -> None:
        label = f"{name:<{WIDTH}} |"
        if self._colour:
            label = f"\x1b[{_COLOURS.get(name, '0')}m{label}\x1b[0m"
        with self._changed:
            if len(self._lines) >= _MOST_LINES:
                self._lost += 1
                return
            self._lines.append(f"{label} {text}\n")
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="output", daemon=True)
                self._writer.start()
            self._changed.notify_all()

    def lines(self, name: str, text: str) -> None:
        for line in text.splitlines():
            self.line(name, line)

    def flush(self) -> None:
        """Wait until all lines are written, for a second at most."""
        until = time.monotonic() + _END_SECONDS
        with self._changed:
            while (self._lines or self._is_writing) and (seconds := until - time.monotonic()) > 0:
                self._changed.wait(seconds)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._lines:
                    self._changed.wait()
                text = "".join(self._lines)
                self._lines.clear()
                lost, self._lost = self._lost, 0
                self._is_writing = True
            if lost:
                text += f"{'monodon':<{WIDTH}} | {lost} lines were lost: nobody read the output\n"
            with suppress(OSError, ValueError):  # the terminal is closed; the servers continue
                self._put(text)

    def _put(self, text: str) -> None:
        """Write without the stream's buffer, whose lock Python needs at its end."""
        try:
            descriptor = self._stream.fileno()
        except OSError:  # a stream in memory
            self._stream.write(text)
            return
        remaining = memoryview(
            text.encode(getattr(self._stream, "encoding", None) or "utf-8", "backslashreplace")
        )
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
