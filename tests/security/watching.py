"""Access to files that must not be touched, observed with inotify through the C library."""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_ACCESS, _MODIFY, _ATTRIB, _OPEN = 0x1, 0x2, 0x4, 0x20
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = (
    0x40, 0x80, 0x100, 0x200, 0x400, 0x800,
)  # fmt: skip
_EVENTS = {
    _ACCESS: "read",
    _MODIFY: "written",
    _ATTRIB: "linked or changed",
    _OPEN: "opened",
    _MOVED_FROM: "moved away",
    _MOVED_TO: "moved in",
    _CREATE: "created",
    _DELETE: "deleted",
    _DELETE_SELF: "deleted",
    _MOVE_SELF: "moved",
}
_HEADER = struct.Struct("iIII")


class Touched(AssertionError):
    """A canary was touched."""


@contextmanager
def untouched(canaries: Iterable[Path]) -> Iterator[None]:
    """Assert that the block does not open, read, link, move, change or remove these files."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert handle >= 0, os.strerror(ctypes.get_errno())
    try:
        watched: dict[int, Path] = {}
        for path in canaries:
            number = libc.inotify_add_watch(handle, os.fsencode(path), sum(_EVENTS))
            assert number >= 0, (path, os.strerror(ctypes.get_errno()))
            watched[number] = path
        assert watched, "there is nothing to watch"
        yield
        event_names = list(_events(handle, watched))
    finally:
        os.close(handle)
    if event_names:
        raise Touched("\n".join(event_names))


def _events(handle: int, watched: dict[int, Path]) -> Iterator[str]:
    while True:
        try:
            content = os.read(handle, 65536)
        except BlockingIOError:
            return
        at = 0
        while at < len(content):
            number, mask, _, length = _HEADER.unpack_from(content, at)
            at += _HEADER.size + length
            names = [word for bit, word in _EVENTS.items() if mask & bit]
            if names:
                yield f"{watched[number]}: {', '.join(names)}"
