"""Ranges of files that a manifest names, such as the content of a fragment reuse index (message ExternalFile)."""

from collections.abc import Iterator, Sequence

from catalog.formats.lance import wire
from catalog.formats.lance.wire import Field, MalformedMessage

_PATH, _SIZE = 1, 3
_MAX_BYTES = 64 << 20


def paths(data: bytes, message: Sequence[Field], number: int) -> Iterator[str]:
    """The paths of the external files in a field of a message.

    Raises MalformedMessage for a range above 64 MiB: Lance allocates the size before it reads the file, and a process
    without so much memory ends.
    """
    for file in wire.messages(data, message, number):
        size = wire.number(file, _SIZE) or 0
        if size > _MAX_BYTES:
            raise MalformedMessage(f"a range of a file has {size} bytes; {_MAX_BYTES} are possible")
        yield wire.text(data, file, _PATH) or ""
