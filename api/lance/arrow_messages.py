"""The messages of an Arrow IPC stream, checked before Arrow reads them.

A compressed buffer declares its uncompressed length, and Arrow trusts it: some kilobytes may become
gigabytes. So the memory of a message is added up first. See "Encapsulated message format" and
"Compression" in the Arrow columnar format; offsets are those of Message.fbs and its flatbuffers.
"""

import io
import struct
from typing import Any

MOST_EXPANDED = 512 << 20
"""Maximum uncompressed size of one message, in bytes."""
_MOST_METADATA = 64 << 20
_CONTINUES = b"\xff\xff\xff\xff"
_DICTIONARY, _BATCH = 2, 3  # MessageHeader
_PIECE = 1 << 20


class Bomb(ValueError):
    """A message that would use too much memory."""


class Messages(io.RawIOBase):
    """An unchanged stream, checked message by message. Raises Bomb, and ValueError for an invalid
    stream."""

    def __init__(self, source: io.BufferedIOBase) -> None:
        self._source = source
        self._ready = memoryview(b"")
        self._plain = 0
        """Bytes of a body that are not checked."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not (self._ready or self._plain):
            self._ready = memoryview(self._next())
        if self._ready:
            count = min(len(buffer), len(self._ready))
            buffer[:count] = self._ready[:count]
            self._ready = self._ready[count:]
            return count
        content = self._source.read1(min(len(buffer), self._plain))
        buffer[: len(content)] = content
        self._plain = self._plain - len(content) if content else 0
        return len(content)

    def _next(self) -> bytes:
        """The head of the next message, and its body if it is compressed; empty at the end."""
        head = self._read(4)
        if head == _CONTINUES:
            head += self._read(4)
        if len(head) % 4 or not head:
            return head  # truncated, in Arrow's words
        (size,) = struct.unpack("<i", head[-4:])
        if not 0 <= size <= _MOST_METADATA:
            raise Bomb(f"the metadata of a message is {size} bytes long")
        metadata = self._read(size)
        if size == 0 or len(metadata) < size:
            return head + metadata
        length, buffers = _look_at(metadata)
        if buffers is None:
            self._plain = length
            return head + metadata
        if length > MOST_EXPANDED:
            raise _too_much()
        body = self._read(length)
        expanded = 0
        for offset, extent in buffers:
            if extent >= 8 and 0 <= offset <= len(body) - 8:
                (claim,) = struct.unpack_from("<q", body, offset)
                expanded += max(claim, 0)  # -1: uncompressed
        if expanded > MOST_EXPANDED:
            raise _too_much()
        return head + metadata + body

    def _read(self, size: int) -> bytes:
        """Read ``size`` bytes, or fewer at the end, without allocating memory for bytes that are
        only declared."""
        parts = []
        while size and (piece := self._source.read(min(size, _PIECE))):
            parts.append(piece)
            size -= len(piece)
        return b"".join(parts)


def _too_much() -> Bomb:
    return Bomb(
        f"a compressed batch becomes more than {MOST_EXPANDED >> 20} MiB; send smaller ones"
    )


def _look_at(metadata: bytes) -> tuple[int, list[tuple[int, int]] | None]:
    """The length of the body, and the positions of its buffers if they are compressed; otherwise
    None."""
    try:
        message = _Table(metadata, *struct.unpack_from("<I", metadata))
        length = message.number(3, "<q")
        kind = message.number(1, "<B")
        header = message.table(2) if kind in {_DICTIONARY, _BATCH} else None
        if kind == _DICTIONARY and header is not None:
            header = header.table(1)
        if length < 0:
            raise ValueError("the body of a message has a negative length")
        if header is None or header.table(3) is None:
            return length, None
        start = header.follow(2)
        if start is None:
            return length, []
        (count,) = struct.unpack_from("<I", metadata, start)
        if start + 4 + 16 * count > len(metadata):
            raise ValueError("the buffers of a message are not in it")
        pairs = struct.iter_unpack("<qq", metadata[start + 4 : start + 4 + 16 * count])
        return length, [(offset, extent) for offset, extent in pairs]
    except struct.error as error:
        raise ValueError(f"the metadata of a message is broken: {error}") from None


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, content: bytes, start: int) -> None:
        (back,) = struct.unpack_from("<i", content, start)
        self._content, self._start, self._index = content, start, start - back
        if self._index < 0:
            raise ValueError("the metadata of a message is broken")
        (self._size,) = struct.unpack_from("<H", content, self._index)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        (offset,) = struct.unpack_from("<H", self._content, self._index + entry)
        return self._start + offset if offset else None

    def number(self, field: int, form: str) -> int:
        position = self._place(field)
        return 0 if position is None else int(struct.unpack_from(form, self._content, position)[0])

    def follow(self, field: int) -> int | None:
        position = self._place(field)
        if position is None:
            return None
        return position + int(struct.unpack_from("<I", self._content, position)[0])

    def table(self, field: int) -> "_Table | None":
        position = self.follow(field)
        return None if position is None else _Table(self._content, position)
