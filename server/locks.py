"""One Monodon per home, and no new one before the last one's processes are gone.

Two locks. `run.lock` is the supervisor's: who holds it runs. `children.lock` is held by the supervisor and,
through an inherited descriptor, by its watchdog: after a `kill -9` of the supervisor it stays held until the
watchdog has ended what was left.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, Self

from server.errors import AlreadyRunning

PATIENCE = 20.0
GRACE = 2.0
"""A running one may have been asked to stop a moment ago and not have written so yet."""


class HomeLock:
    def __init__(self, home: Path, *, url: str) -> None:
        self._home = home
        self._url = url
        self._run: IO[str] | None = None
        self._children: IO[str] | None = None

    def __enter__(self) -> Self:
        """Waits for a run that is on its way out. Raises AlreadyRunning when it stays."""
        self._run = (self._home / "run.lock").open("a+")
        self._children = (self._home / "children.lock").open("a+")
        began = time.monotonic()
        while not _take(self._run):
            self._refuse_unless_stopping(waited=time.monotonic() - began)
            time.sleep(0.1)
        while not _take(self._children):
            if time.monotonic() - began > PATIENCE:
                raise AlreadyRunning(
                    f"Processes of an earlier Monodon on {self._home} have not stopped yet: try again."
                )
            time.sleep(0.1)
        self._write("running")
        return self

    def __exit__(self, *exc: object) -> None:
        for handle in (self._children, self._run):
            if handle is not None:
                handle.close()

    @property
    def children_descriptor(self) -> int:
        assert self._children is not None  # noqa: S101
        return self._children.fileno()

    def stopping(self) -> None:
        """From here on another `up` waits instead of refusing."""
        self._write("stopping")

    def _write(self, state: str) -> None:
        assert self._run is not None  # noqa: S101
        self._run.seek(0)
        self._run.truncate()
        json.dump({"pid": os.getpid(), "url": self._url, "state": state}, self._run)
        self._run.flush()

    def _refuse_unless_stopping(self, *, waited: float) -> None:
        assert self._run is not None  # noqa: S101
        self._run.seek(0)
        try:
            holder = json.loads(self._run.read())
        except ValueError:  # it has the lock and has not written yet, or is writing now
            holder = {"state": "starting"}
        if waited > (GRACE if holder["state"] == "running" else PATIENCE):
            where = f" at {holder['url']} (pid {holder['pid']})" if "url" in holder else ""
            raise AlreadyRunning(
                f"Monodon is already running{where} on {self._home}. Stop it first, "
                f"or set MONODON_HOME and MONODON_PORT to run another one."
            )


def _take(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
