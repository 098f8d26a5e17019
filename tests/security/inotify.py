"""Operations on files, observed by the operating system, whichever library caused them.

Lance reads files from Rust, where Python's audit hooks see nothing. inotify reports every open, link,
rename and removal of the watched files and directories, by any thread of any process.
"""

import ctypes
import os
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_NAMES = {
    0x001: "access",
    0x002: "modify",
    0x004: "attributes",  # also the number of links
    0x020: "open",
    0x040: "moved from",
    0x080: "moved to",
    0x100: "create",
    0x200: "delete",
    0x400: "delete self",
    0x800: "move self",
}
_ALL = sum(_NAMES)
_IS_DIRECTORY = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_unused: list[int] = []
"""Handles without watches. Closing one takes some 15 ms: the kernel waits for its other processors."""


@dataclass
class Seen:
    """Events of the watched files, in order: (path, event)."""

    _handle: int
    _paths: dict[int, str] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)

    def take(self) -> list[tuple[str, str]]:
        """Remove the events up to now, and return them."""
        self._update()
        events, self.events = self.events, []
        return events

    def _update(self) -> None:
        self.events.extend(_read(self._handle, self._paths))


@contextmanager
def watched(*roots: str | Path) -> Iterator[Seen]:
    """Watch files, and directories with all their content, during the block.

    A directory that is listed or opened counts as well. The result is complete when the block ends.
    """
    handle = _unused.pop() if _unused else _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert handle >= 0, os.strerror(ctypes.get_errno())
    seen = Seen(handle)
    try:
        for root in roots:
            for path in _below(str(root)):
                number = _libc.inotify_add_watch(handle, os.fsencode(path), _ALL)
                assert number >= 0, (path, os.strerror(ctypes.get_errno()))
                seen._paths[number] = path
        seen.take()  # caused by the preceding walk
        yield seen
        seen._update()
    finally:
        for number in seen._paths:
            _libc.inotify_rm_watch(handle, number)
        deque(_read(handle, {}), maxlen=0)
        _unused.append(handle)


def _below(root: str) -> Iterator[str]:
    yield root
    if Path(root).is_dir() and not Path(root).is_symlink():
        for directory, directories, files in os.walk(root):
            for name in (*directories, *files):
                path = f"{directory}/{name}"
                if not Path(path).is_symlink():
                    yield path


def _read(handle: int, paths: dict[int, str]) -> Iterator[tuple[str, str]]:
    while True:
        try:
            data = os.read(handle, 65536)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, mask, _, length = struct.unpack_from("iIII", data, at)
            name = data[at + 16 : at + 16 + length].rstrip(b"\0").decode()
            at += 16 + length
            path = paths.get(number, "?") + (f"/{name}" if name else "")
            for bit, event in _NAMES.items():
                if mask & bit:
                    yield path, event
