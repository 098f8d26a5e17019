"""The Iceberg libraries of Spark: fetched once from Maven Central, verified, and kept in MONODON_HOME.

A file that an administrator copies to the directory is used like a fetched one, so a machine without
network needs no setting. MONODON_SPARK_JARS, MONODON_SPARK_PACKAGES and MONODON_MAVEN_URL change this.
"""

import hashlib
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from http.client import HTTPException
from pathlib import Path
from typing import IO

from django.conf import settings

from catalog.errors import Unsupported

_SILENCE_SECONDS = 30.0
_TOTAL_SECONDS = 1800.0
_CHUNK = 1024 * 1024
_MAX_BYTES = 1024**3
_REPORT_SECONDS = 5.0
_VERSION = "1.12.0"

Log = Callable[[str], None]
"""Receives the progress of a download as sentences. It may raise to stop the download."""


@dataclass(frozen=True, slots=True)
class Library:
    """An artifact of the group org.apache.iceberg."""

    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"org.apache.iceberg:{self.artifact}:{self.version}"

    @property
    def path(self) -> Path:
        return directory() / self.name


RUNTIME = Library(
    "iceberg-spark-runtime-4.1_2.13",
    _VERSION,
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
"""Iceberg for the PySpark of requirements.txt."""
OF_STORES: Mapping[str, Library] = {
    "s3": Library(
        "iceberg-aws-bundle",
        _VERSION,
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    )
}
"""By URI scheme. The bundles for gs:// and abfss:// must be named in the settings."""


def directory() -> Path:
    return Path(settings.MONODON_HOME) / "spark" / "jars"


def are_configured() -> bool:
    """True if the settings name the Iceberg runtime, so that nothing is fetched."""
    extra = settings.MONODON_SPARK_CONF
    jars = (extra.get(name) for name in ("spark.jars", "spark.jars.packages"))
    return bool(settings.MONODON_SPARK_JARS or settings.MONODON_SPARK_PACKAGES or any(jars))


def problem() -> str:
    """Why jobs of Iceberg tables cannot get the runtime on this machine; empty if they can."""
    for jar in settings.MONODON_SPARK_JARS:
        path = jar.removeprefix("file://")
        if "://" not in path and not Path(path).is_file():
            return f"MONODON_SPARK_JARS names '{jar}', and there is no such file"
    if are_configured() or RUNTIME.path.is_file() or settings.MONODON_MAVEN_URL:
        return ""
    return (
        f"Spark has no Iceberg runtime, and MONODON_MAVEN_URL is off: copy {RUNTIME.name} to"
        f" {directory()}, set MONODON_SPARK_JARS to the path of the file, or"
        f" MONODON_SPARK_PACKAGES to {RUNTIME.coordinates}"
    )


def require(scheme: str, log: Log) -> list[Path]:
    """The files that a job on a table of this URI scheme needs, besides those of the settings.

    Missing files are fetched first. Raises Unsupported if they cannot be.
    """
    if text := problem():
        raise Unsupported(text)
    if are_configured():
        return []
    libraries = [RUNTIME, *([OF_STORES[scheme]] if scheme in OF_STORES else [])]
    return [_fetched(library, log) for library in libraries]


def present() -> list[Path]:
    """The verified files that were fetched or copied before; none if the settings name the runtime."""
    libraries = [] if are_configured() else [RUNTIME, *OF_STORES.values()]
    return [library.path for library in libraries if _is_verified(library.path, library.sha256)]


def _fetched(library: Library, log: Log) -> Path:
    path = library.path
    if _is_verified(path, library.sha256):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(f".{path.name}.lock"), log):
            if not _is_verified(path, library.sha256):  # another process may have fetched it
                _fetch(library, path, log)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not a URL
        raise Unsupported(
            f"Spark needs {library.name}, which cannot be fetched from"
            f" {settings.MONODON_MAVEN_URL or 'Maven Central'}: {error}. Copy the file to"
            f" {path.parent}, or set MONODON_SPARK_JARS to its path"
        ) from error
    return path


_verified: dict[Path, tuple[tuple[int, ...], str]] = {}
"""Facts of files, which change with their content, and digests."""


def _is_verified(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            # Nobody can set the time of the last change of an inode.
            facts = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if path not in _verified or _verified[path][0] != facts:
                _verified[path] = facts, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return False
    return _verified[path][1] == sha256


def _fetch(library: Library, path: Path, log: Log) -> None:
    """Download to a temporary name, so that the file is complete or missing. Raises OSError."""
    base = settings.MONODON_MAVEN_URL
    if not base:
        raise OSError("MONODON_MAVEN_URL is off")
    url = f"{base}/org/apache/iceberg/{library.artifact}/{library.version}/{library.name}"
    log(f"Fetching {url}")
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with (
            draft.open("wb") as output,
            urllib.request.urlopen(url, timeout=_SILENCE_SECONDS) as answer,  # noqa: S310
        ):
            total = int(answer.headers.get("Content-Length") or 0)
            began = reported = time.monotonic()
            while chunk := answer.read(_CHUNK):
                output.write(chunk)
                digest.update(chunk)
                now = time.monotonic()
                if output.tell() > _MAX_BYTES:
                    raise OSError(f"it is larger than {_MAX_BYTES >> 20} MiB")
                if now - began > _TOTAL_SECONDS:
                    raise TimeoutError(f"it took more than {_TOTAL_SECONDS:.0f} s")
                if now - reported > _REPORT_SECONDS:
                    reported = now
                    log(f"Fetched {output.tell() >> 20} of {total >> 20} MiB of {library.name}")
            output.flush()
            os.fsync(output.fileno())
        if digest.hexdigest() != library.sha256:
            raise OSError(f"the SHA-256 is {digest.hexdigest()}, and it must be {library.sha256}")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    log(f"Fetched and verified {library.name}")


def _lock(file: IO[str]) -> bool:
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(path: Path, log: Log) -> Iterator[None]:
    """Hold a lock among the processes of this machine. While another one holds it, ``log`` may stop this."""
    with path.open("a") as file:
        while not _lock(file):
            log("Another process fetches the same file")
            time.sleep(_REPORT_SECONDS)
        try:
            yield
        finally:
            flock(file, LOCK_UN)
