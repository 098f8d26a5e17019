"""The web process's side: starts the server of the row reader, and answers what a worker asks.

Each process that previews rows has a server, started by the first request and ended with the process.
"""

import atexit
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from django.conf import settings

from catalog.errors import InvalidMetadata, ServiceUnavailable, Unsupported
from catalog.formats.rows.previews import Preview
from catalog.formats.rows.profiles import Profile
from catalog.row_reader import messages
from catalog.row_reader.channel import Channel, MessageTooLarge
from catalog.row_reader.messages import (
    MAX_QUESTION,
    DataFileEntries,
    Finished,
    Job,
    NextFile,
    Open,
    Question,
    Refused,
)
from catalog.row_reader.server import READY, REQUEST

T = TypeVar("T")
GRACE_SECONDS = 5.0
"""Added to the seconds of a job, which a worker itself observes between two batches of rows."""
_END_SECONDS = 1.0
_START_SECONDS = 60.0
_MODULE = "catalog.row_reader"
_ENVIRONMENT = {
    # A thread of a library takes address space, which is limited.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
}
_INHERITED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


class Files(Protocol):
    """The files of a snapshot: which ones there are, and their content. Errors end the work, and are raised."""

    def next_file(self) -> DataFileEntries | None:
        """The next data file that may be read; None after the last one."""

    def open(self, location: str) -> tuple[int, int | None]:
        """The size of one of these files, or of their delete files, and a handle of a local file to read it."""

    def read(self, location: str, start: int, length: int) -> bytes:
        """A part of such a file."""


def preview(job: Job, files: Files) -> Preview:
    """Compute a page of rows in another process.

    Raises Unsupported if the work needs too much memory or time, or ends without a result, InvalidMetadata for
    files that cannot be read, ServiceUnavailable if the process cannot be started, and the errors of ``files``.
    """
    return _compute(job, files, _checked_preview)


def profile(job: Job, files: Files) -> Profile:
    """Compute the profile of a column in another process. Raises as ``preview``."""
    return _compute(job, files, _checked_profile)


def _compute(job: Job, files: Files, checked: Callable[[Finished, Job], T]) -> T:
    conversation = _Conversation(job, files)
    seconds = job.seconds + GRACE_SECONDS
    for attempt in (1, 2):
        with _connection(seconds) as connection:
            try:
                finished = conversation.hold(Channel(connection, time.monotonic() + seconds))
                return checked(finished, job)
            except TimeoutError as error:
                raise Unsupported(
                    f"{conversation.subject} took longer than {seconds:.0f} seconds to decode"
                    " and was stopped; only engines read it"
                ) from error
            except (EOFError, ConnectionError) as error:
                if attempt == 1 and not conversation.has_begun:  # the server has just ended
                    continue
                raise Unsupported(
                    f"The process that decoded {conversation.subject} ended without a result; the file"
                    f" is damaged, or needs more memory or time than a preview may use ({_memory()})"
                ) from error
            except (ValueError, MessageTooLarge) as error:
                raise Unsupported(
                    f"{conversation.subject} cannot be shown: its values are too large"
                ) from error
    raise AssertionError("unreachable")


class _Conversation:
    """The questions of a worker, and their answers."""

    def __init__(self, job: Job, files: Files) -> None:
        self._job, self._files = job, files
        self._location = ""
        self._granted: set[str] = set()
        self.has_begun = False

    @property
    def subject(self) -> str:
        """The file that is being read."""
        return f"'{self._location}'" if self._location else "The snapshot"

    def hold(self, channel: Channel) -> Finished:
        channel.send(pickle.dumps(self._job))
        while True:
            message = messages.load(channel.receive(MAX_QUESTION))
            self.has_begun = True
            match message:
                case Finished():
                    return message
                case Refused(error="memory"):
                    raise Unsupported(
                        f"{self.subject} needs too much memory to decode; only engines read it ({_memory()})"
                    )
                case Refused(error="invalid"):
                    raise InvalidMetadata(message.message)
                case Refused():
                    raise Unsupported(message.message)
            self._answer(message, channel)

    def _answer(self, question: Question, channel: Channel) -> None:
        if isinstance(question, NextFile):
            entries = self._files.next_file()
            if entries is not None:
                data, deletes = entries
                self._location = data.file.file_path
                self._granted.add(self._location)
                self._granted.update(delete.file.file_path for delete in deletes)
            channel.send(pickle.dumps(entries))
            return
        if question.location not in self._granted:
            raise MessageTooLarge("a file that is not of the snapshot")
        self._location = question.location
        if isinstance(question, Open):
            size, handle = self._files.open(question.location)
            try:
                channel.send(b"%d" % size, handle)
            finally:
                if handle is not None:
                    os.close(handle)
        else:
            part = self._files.read(question.location, question.start, question.length)
            channel.send(part)


def _checked_preview(finished: Finished, job: Job) -> Preview:
    """The page, if it is of the job. Raises ValueError."""
    shown = finished.preview
    if shown is None or job.request is None or len(shown.rows) > job.request.page_size:
        raise ValueError("no page")
    if any(len(row) != len(job.columns) for row in shown.rows):
        raise ValueError("rows of other columns")
    return replace(shown, columns=[column.name for column in job.columns])


def _checked_profile(finished: Finished, _: Job) -> Profile:
    if finished.profile is None:
        raise ValueError("no profile")
    return finished.profile


def _memory() -> str:
    mebibytes = settings.MONODON_PREVIEW_MEMORY_BYTES // 1024**2
    return f"MONODON_PREVIEW_MEMORY_BYTES is {mebibytes:,} MiB"


# --- the server --------------------------------------------------------------------------------


class _Server:
    def __init__(self) -> None:
        """Raises OSError if it cannot be started."""
        self.pid = os.getpid()
        self._control, inner = socket.socketpair()
        with inner:
            self._process = subprocess.Popen(  # noqa: S603 -- the interpreter, and a module of this package
                [sys.executable, "-P", "-m", _MODULE],
                stdin=inner.fileno(),
                stdout=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        self._control.settimeout(_START_SECONDS)
        try:
            if self._control.recv(len(READY)) != READY:
                raise OSError("the row reader ended at once")
        except OSError:
            self._process.kill()
            self.close()
            raise
        self._control.settimeout(_START_SECONDS)

    @property
    def process_id(self) -> int:
        pid: int = self._process.pid
        return pid

    def is_alive(self) -> bool:
        return self.pid == os.getpid() and self._process.poll() is None

    def start_worker(self, connection: socket.socket, seconds: float) -> None:
        # This process notices first that the time is over, so that it can say so.
        request = REQUEST.pack(settings.MONODON_PREVIEW_MEMORY_BYTES, seconds + _END_SECONDS)
        socket.send_fds(self._control, [request], [connection.fileno()])

    def close(self) -> None:
        self._control.close()
        if self.pid == os.getpid():
            self._process.wait(_START_SECONDS)


_lock = threading.Lock()
_server: _Server | None = None


@contextmanager
def _connection(seconds: float) -> Iterator[socket.socket]:
    """A connection to a new worker. Raises ServiceUnavailable."""
    own, inner = socket.socketpair()
    with own:
        with inner:
            _start_worker(inner, seconds)
        yield own


def _start_worker(connection: socket.socket, seconds: float) -> None:
    global _server  # noqa: PLW0603 -- of this process
    with _lock:
        try:
            if _server is not None and _server.is_alive():
                with suppress(ConnectionError):
                    _server.start_worker(connection, seconds)
                    return
            if _server is not None:
                _server.close()
            _server = None
            _server = _Server()
            _server.start_worker(connection, seconds)
        except (OSError, subprocess.SubprocessError) as error:
            raise ServiceUnavailable(
                "The process that decodes data files cannot be started"
            ) from error


def server_process() -> int | None:
    """The id of the server of this process, if it runs."""
    with _lock:
        return _server.process_id if _server is not None and _server.is_alive() else None


@atexit.register
def stop() -> None:
    """End the server of this process, which a later request starts again."""
    global _server  # noqa: PLW0603
    with _lock:
        if _server is not None:
            _server.close()
            _server = None


def _environment() -> dict[str, str]:
    """No variables of this process, which contain secrets, except those that libraries need to be loaded."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    entries = [entry for entry in sys.path if entry]
    path = os.pathsep.join(dict.fromkeys([*entries, str(Path(__file__).parents[2])]))
    return {**inherited, **_ENVIRONMENT, "PYTHONPATH": path}
