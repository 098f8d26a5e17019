"""Jars and other artifacts from Maven Central, downloaded once and verified.

MONODON_JARS is the directory that stores them. If Maven Central is unreachable, this is reported
within two minutes.
"""

import hashlib
import os
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ICEBERG = "1.12.0"
_CENTRAL = "https://repo1.maven.org/maven2"
_SILENCE_SECONDS = 20.0
_TOTAL_SECONDS = 120.0
_CHUNK = 1024 * 1024


class NotFetched(Exception):
    """A jar is missing and cannot be downloaded; the message has the reason."""


@dataclass(frozen=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""
    extension: str = "jar"

    @property
    def name(self) -> str:
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{suffix}.{self.extension}"

    @property
    def url(self) -> str:
        group = self.group.replace(".", "/")
        return f"{_CENTRAL}/{group}/{self.artifact}/{self.version}/{self.name}"


RUNTIME = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    ICEBERG,
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
"""Spark's packages for Iceberg."""
NAME = RUNTIME.name
AWS = Jar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    ICEBERG,
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
)
"""What Iceberg needs for tables in S3."""


def directory() -> Path:
    if chosen := os.environ.get("MONODON_JARS"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "monodon" / "jars"


def iceberg_runtime() -> Path:
    """Path of Spark's Iceberg jar; fetch the jar first if it is missing. Raises NotFetched."""
    return fetch([RUNTIME])[0]


def present(jar: Jar) -> list[Path]:
    """The file of a jar if it was fetched before, else nothing."""
    file = directory() / jar.name
    return [file] if file.is_file() else []


def fetch(jars: Sequence[Jar], *, within: float = _TOTAL_SECONDS) -> list[Path]:
    """Return the files of jars, and download missing ones. Raises NotFetched."""
    deadline = time.monotonic() + within
    files = []
    for jar in jars:
        file = directory() / jar.name
        if not (file.is_file() and sha256_of(file) == jar.sha256):
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                _fetch(jar, file, deadline)
            except OSError as error:
                text = f"{jar.name} cannot be fetched from Maven Central: {error}"
                raise NotFetched(text) from None
        files.append(file)
    return files


def _fetch(jar: Jar, file: Path, deadline: float) -> None:
    """Download to a temporary name first, so that a jar is complete or missing, also with
    concurrent downloads."""
    partial_file = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with (
            partial_file.open("wb") as output,
            urllib.request.urlopen(jar.url, timeout=_SILENCE_SECONDS) as answer,
        ):
            while chunk := answer.read(_CHUNK):
                if time.monotonic() > deadline:
                    raise TimeoutError("not complete in time")
                output.write(chunk)
        if (digest := sha256_of(partial_file)) != jar.sha256:
            raise OSError(f"what came has SHA-256 {digest} instead of {jar.sha256}")
        partial_file.replace(file)
    finally:
        partial_file.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
