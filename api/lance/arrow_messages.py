"""The messages of an Arrow IPC stream, checked before Arrow reads them.

A compressed buffer declares its uncompressed length, and Arrow trusts it: some kilobytes may become
gigabytes. So the memory of a message is added up first. Dictionaries stay in memory until the end of the
stream, so their sizes are added up too. See "Encapsulated message format", "Dictionary messages" and
"Compression" in the Arrow columnar format; offsets are those of Message.fbs and its flatbuffers.
"""

import io
import struct
from collections import Counter
from typing import Any, NamedTuple

MOST_EXPANDED = 512 << 20
"""Maximum uncompressed size of one batch, and of all dictionaries together, in bytes."""
_MOST_METADATA = 64 << 20
_CONTINUES = b"\xff\xff\xff\xff"
_DICTIONARY, _BATCH = 2, 3  # MessageHeader
_PIECE = 1 << 20
_SIZE = struct.Struct("<q")
_FORMER_COMPRESSION = b"ARROW:experimental_compression"
"""The key in a message's custom metadata by which Arrow 0.17 declared compression, and which Arrow still reads."""


class Bomb(ValueError):
    """A message that would use too much memory."""


class _Message(NamedTuple):
    """The facts of a message that decide about its memory."""

    length: int
    """The length of its body."""
    buffers: list[tuple[int, int]] | None = None
    """The offset and the length of each buffer in the body if they are compressed, otherwise None."""
    dictionary: int | None = None
    """The id of the dictionary; None: not a dictionary."""
    is_delta: bool = False
    """True if it extends the dictionary, false if it replaces it."""


class Messages(io.RawIOBase):
    """An unchanged stream, checked message by message. Raises Bomb, and ValueError for an invalid
    stream."""

    def __init__(self, source: io.BufferedIOBase) -> None:
        self._source = source
        self._ready = memoryview(b"")
        self._remaining = 0
        """Bytes of the current body that are not read yet."""
        self._sizes: _Sizes | None = None
        """The uncompressed sizes of its buffers; None: it is not compressed."""
        self._dictionaries: Counter[int] = Counter()
        """The size of each dictionary in memory."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not (self._ready or self._remaining):
            self._ready = memoryview(self._next())
        if self._ready:
            count = min(len(buffer), len(self._ready))
            buffer[:count] = self._ready[:count]
            self._ready = self._ready[count:]
            return count
        content = self._read_body(min(len(buffer), self._remaining))
        buffer[: len(content)] = content
        return len(content)

    def check(self) -> None:
        """Read and check the remaining messages."""
        while self._next():
            while self._remaining:
                self._read_body(self._remaining)

    def _read_body(self, size: int) -> bytes:
        """Read up to ``size`` bytes of the body, and none if it ends early."""
        content = self._source.read1(size)
        self._remaining = self._remaining - len(content) if content else 0
        if self._sizes is not None and content:
            # Arrow uncompresses a body once it has all of it, so it never does if this raises.
            self._sizes.read(content)
            if not self._remaining:
                self._count(self._sizes.message, self._sizes.total)
        return content

    def _next(self) -> bytes:
        """The head of the next message; empty at the end."""
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
        message = _look_at(metadata)
        self._remaining = message.length
        self._sizes = None if message.buffers is None else _Sizes(message, message.buffers)
        if self._sizes is None or not message.length:
            self._count(message, message.length)
        return head + metadata

    def _count(self, message: _Message, size: int) -> None:
        """Add the size of a dictionary to those in memory. Raises Bomb."""
        number = message.dictionary
        if number is None:
            return
        self._dictionaries[number] = size + self._dictionaries[number] * message.is_delta
        if self._dictionaries.total() > MOST_EXPANDED:
            raise _too_much("the dictionaries take")

    def _read(self, size: int) -> bytes:
        """Read ``size`` bytes, or fewer at the end, without allocating memory for bytes that are
        only declared."""
        parts = []
        while size and (piece := self._source.read(min(size, _PIECE))):
            parts.append(piece)
            size -= len(piece)
        return b"".join(parts)


class _Sizes:
    """The uncompressed sizes of a body's buffers, which precede their contents. Raises Bomb."""

    def __init__(self, message: _Message, buffers: list[tuple[int, int]]) -> None:
        if message.length > MOST_EXPANDED:
            raise _too_much("a compressed batch becomes")
        self.message = message
        last = message.length - _SIZE.size
        starts = [start for start, extent in buffers if extent >= _SIZE.size and 0 <= start <= last]
        self._starts = sorted(starts, reverse=True)
        self._position = 0
        self._end = b""
        """The last bytes that were read, in which a size may begin."""
        self._expanded = 0

    @property
    def total(self) -> int:
        """The memory for the body."""
        return max(self._expanded, self.message.length)

    def read(self, content: bytes) -> None:
        """Add up the sizes in the next bytes of the body."""
        begin = self._position - len(self._end)
        self._position += len(content)
        if self._starts and self._starts[-1] + _SIZE.size <= self._position:
            window = self._end + content if self._end else content
            while self._starts and self._starts[-1] + _SIZE.size <= self._position:
                (size,) = _SIZE.unpack_from(window, self._starts.pop() - begin)
                self._expanded += max(size, 0)  # -1: uncompressed
            if self._expanded > MOST_EXPANDED:
                raise _too_much("a compressed batch becomes")
        self._end = (self._end + content[-_SIZE.size :])[1 - _SIZE.size :]


def _too_much(use: str) -> Bomb:
    return Bomb(f"{use} more than {MOST_EXPANDED >> 20} MiB; send smaller ones")


def _look_at(metadata: bytes) -> _Message:
    """Read the metadata of a message. Raises ValueError."""
    try:
        message = _Table(metadata, *struct.unpack_from("<I", metadata))
        length = message.number(3, "<q")
        kind = message.number(1, "<B")
        header = message.table(2) if kind in {_DICTIONARY, _BATCH} else None
        dictionary, is_delta = None, False
        if kind == _DICTIONARY and header is not None:
            dictionary, is_delta = header.number(0, "<q"), header.number(2, "<?") != 0
            header = header.table(1)
        if length < 0:
            raise ValueError("the body of a message has a negative length")
        if header is not None and _FORMER_COMPRESSION in metadata:
            raise ValueError("a batch is compressed as in Arrow 0.17; send it as later versions do")
        buffers = None
        if header is not None and header.table(3) is not None:
            buffers = _buffers(metadata, header.follow(2))
        return _Message(length, buffers, dictionary, is_delta)
    except struct.error as error:
        raise ValueError(f"the metadata of a message is broken: {error}") from None


def _buffers(metadata: bytes, start: int | None) -> list[tuple[int, int]]:
    """Read the vector of a batch's buffers. Raises ValueError, struct.error."""
    if start is None:
        return []
    (count,) = struct.unpack_from("<I", metadata, start)
    if start + 4 + 16 * count > len(metadata):
        raise ValueError("the buffers of a message are not in it")
    pairs = struct.iter_unpack("<qq", metadata[start + 4 : start + 4 + 16 * count])
    return [(offset, extent) for offset, extent in pairs]


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
