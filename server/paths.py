"""Paths of state and sockets."""

import hashlib
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from server.errors import ServerError

SOCKET_PATH_LIMIT = 103
"""Bytes of a Unix socket's path: 107 on Linux, 103 on macOS."""

_LONGEST_SOCKET = "/postgres/.s.PGSQL.5432"


@dataclass(frozen=True)
class Home:
    """The directory with all state of a Monodon between two starts."""

    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def metrics(self) -> Path:
        return self.root / "run-metrics"

    def create(self) -> None:
        """Create the directories. Raises ServerError if the home cannot be used.

        The directories are 0711, not 0700: if root starts the database, it runs as another user, which
        must be able to enter them.
        Secret files have their own modes.
        """
        try:
            self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
            entries = [self.root, *self.root.iterdir()]
        except OSError as exc:
            raise ServerError(
                f"Cannot use {self.root} ({exc.strerror}): "
                f"set MONODON_HOME to a directory that you may write to."
            ) from exc
        for entry in entries:
            if not os.access(entry, os.R_OK | os.W_OK) and not entry.is_symlink():
                raise ServerError(
                    f"{entry} belongs to another user (uid {entry.lstat().st_uid}): Monodon was started "
                    f"there as somebody else. Run as that user, or set MONODON_HOME to another directory."
                )
        if self.root.stat().st_uid == os.geteuid():
            self.root.chmod(0o711)

    def fresh_metrics(self) -> Path:
        """An empty directory for prometheus_client's files, which would otherwise grow with each pid."""
        shutil.rmtree(self.metrics, ignore_errors=True)
        self.metrics.mkdir(mode=0o700, parents=True)
        return self.metrics

    def remove_sockets(self) -> None:
        """Remove the socket directory after a stop, because it may be in the shared temporary
        directory."""
        shutil.rmtree(self.socket_dir(), ignore_errors=True)

    def socket_dir(self) -> Path:
        """A private directory with a path short enough for sockets: in the home, otherwise in the
        temporary directory."""
        inside = self.root / "run"
        if len(os.fsencode(f"{inside}{_LONGEST_SOCKET}")) <= SOCKET_PATH_LIMIT:
            return private_directory(inside)
        name = f"monodon-{os.geteuid()}-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:10]}"
        for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108
            if not base or not os.access(base, os.W_OK | os.X_OK):
                continue
            if len(os.fsencode(f"{base}/{name}{_LONGEST_SOCKET}")) <= SOCKET_PATH_LIMIT:
                return private_directory(Path(base) / name)
        raise ServerError(
            f"{self.root} is too long for Unix sockets and no temporary directory is shorter: "
            f"set MONODON_HOME or TMPDIR to a shorter path."
        )


def private_directory(path: Path) -> Path:
    """Create or accept a directory that only the current user can write to.

    Raises ServerError if another user created the path first: in a shared temporary directory, that user
    could impersonate the database.
    """
    try:
        path.mkdir(mode=0o711)
    except FileExistsError:
        status = path.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not ours or status.st_mode & 0o022:
            raise ServerError(
                f"{path} is not a directory of ours: remove it, or set TMPDIR to another directory."
            ) from None
    path.chmod(0o711)
    return path
