"""Decodes the data files of one request."""

import os
import pickle
import socket
from collections.abc import Iterator
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase

from catalog.errors import InvalidMetadata, Unsupported
from catalog.formats.iceberg.rows.data_files import DataFile
from catalog.formats.iceberg.rows.row_scans import RowScan
from catalog.formats.rows.previews import Request, without_excess_media
from catalog.row_reader import messages
from catalog.row_reader.channel import Channel
from catalog.row_reader.messages import (
    MAX_ANSWER,
    MAX_READ,
    Finished,
    Job,
    Message,
    NextFile,
    Open,
    Question,
    Read,
    Refused,
    refused,
)


def serve(connection: socket.socket) -> None:
    """Compute the job that the connection sends. Raises EOFError or OSError if the web process has left."""
    channel = Channel(connection)
    channel.send(messages.dump(_outcome(channel)))


def _outcome(channel: Channel) -> Message:
    try:
        job: Job = pickle.loads(channel.receive(MAX_ANSWER))  # noqa: S301 -- of the web process
        return _compute(job, _RemoteFiles(channel))
    except MemoryError:
        return Refused("memory")
    except Unsupported as error:
        return refused("unsupported", error.message)
    except InvalidMetadata as error:
        return refused("invalid", error.message)


def _compute(job: Job, files: "_RemoteFiles") -> Finished:
    scan = RowScan(
        iter(()), job.columns, job.request or Request(), job.seconds, most_bytes=job.most_bytes
    )
    scan.files = files.data_files(job, ends_at=scan.began + job.seconds)
    if job.request is None:
        return Finished(profile=scan.profile())
    return Finished(preview=without_excess_media(scan.preview()))


class _RemoteFiles:
    """The files of the table, which the web process reads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def data_files(self, job: Job, *, ends_at: float) -> Iterator[DataFile]:
        while (answer := pickle.loads(self._ask(NextFile()))) is not None:  # noqa: S301 -- as above
            entry, deletes = answer
            yield DataFile(self, job.layout, entry, deletes, ends_at)

    def open(self, location: str) -> RawIOBase:
        self._channel.send(messages.dump(Open(location)))
        size, handle = self._channel.receive_file(MAX_ANSWER)
        return _RemoteFile(self, location, int(size), handle)

    def read_range(self, location: str, start: int, length: int) -> bytes:
        with self.open(location) as file:
            file.seek(start)
            content: bytes = file.read(length)
            return content

    def read_remotely(self, location: str, start: int, length: int) -> bytearray:
        """A part of a file that the web process reads; shorter if the file ends before."""
        content = bytearray()
        while length > 0:
            part = self._ask(Read(location, start, min(length, MAX_READ)))
            if not part:
                break
            content += part
            start += len(part)
            length -= len(part)
        return content

    def _ask(self, question: Question) -> bytearray:
        self._channel.send(messages.dump(question))
        return self._channel.receive(MAX_ANSWER)


class _RemoteFile(RawIOBase):
    """A seekable stream."""

    def __init__(self, files: _RemoteFiles, location: str, size: int, handle: int | None) -> None:
        self._files, self._location, self._size = files, location, size
        self._handle = handle
        self._position = 0

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        base = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        remaining = max(self._size - self._position, 0)
        length = remaining if size < 0 else min(size, remaining)
        if self._handle is not None:
            content = os.pread(self._handle, length, self._position)
        else:
            content = bytes(self._files.read_remotely(self._location, self._position, length))
        self._position += len(content)
        return content
