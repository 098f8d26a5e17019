"""Small separate file systems for the database's data and its log, which can be filled."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self


class Disks:
    """Mounts that hold PostgreSQL's data and, apart from it, its write-ahead log.

    It requires root and loop devices; ``missing`` is the reason if they are not available.
    """

    def __init__(self, home: Path, *, megabytes: int) -> None:
        self._home, self._megabytes = home, megabytes
        self._mounts: dict[str, Path] = {}
        self.missing = ""

    @property
    def names(self) -> list[str]:
        return list(self._mounts)

    def move(self, data: Path) -> None:
        """Move the data directory of a stopped server and its log to separate file systems."""
        try:
            self._mount("data", data)
            self._mount("WAL", data / "pg_wal")
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", b"") or b""
            self.missing = f"no small file systems here: {error} {output.decode().strip()}"

    def _mount(self, name: str, directory: Path) -> None:
        if os.geteuid() != 0:
            raise PermissionError("mounting one takes root")
        image = self._home / f"{name}.img"
        with image.open("wb") as file:
            file.truncate(self._megabytes * 1024 * 1024)
        aside = directory.with_name(f"{directory.name}-{name}-aside")
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", str(image))
        directory.rename(aside)
        directory.mkdir()
        try:
            _run("mount", "-o", "loop", str(image), str(directory))
        except subprocess.CalledProcessError:
            directory.rmdir()
            aside.rename(directory)
            raise
        (directory / "lost+found").rmdir()
        self._mounts[name] = directory
        _run("cp", "-a", f"{aside}/.", str(directory))
        shutil.rmtree(aside)

    @contextlib.contextmanager
    def full(self, name: str) -> Iterator[None]:
        """Use all free space during the block."""
        directory = self._mounts[name]
        filler = directory / "filler-of-the-harness"
        try:
            with filler.open("wb") as file:
                _allocate_all(file.fileno())
            yield
        finally:
            filler.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for directory in reversed(self._mounts.values()):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("umount", "-l", str(directory))


def _allocate_all(descriptor: int) -> None:
    """Reserve space in steps that get smaller, until no block is left."""
    size, step = 0, 1 << 30
    while step >= 4096:
        try:
            os.posix_fallocate(descriptor, size, step)
            size += step
        except OSError:
            step //= 2


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
