"""The jar that Spark needs for Iceberg, fetched once from Maven Central and checked.

MONODON_JARS is the directory that keeps it. Where there is no way to Maven Central that is known
within two minutes.
"""

import hashlib
import os
import time
import urllib.request
from pathlib import Path

ICEBERG = "1.12.0"
NAME = f"iceberg-spark-runtime-4.1_2.13-{ICEBERG}.jar"
SHA256 = "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"
_URL = (
    "https://repo1.maven.org/maven2/org/apache/iceberg/iceberg-spark-runtime-4.1_2.13/"
    f"{ICEBERG}/{NAME}"
)
_SILENCE_SECONDS = 20.0
_TOTAL_SECONDS = 120.0
_CHUNK = 1024 * 1024


class NotFetched(Exception):
    """The jar is not here, and the message says why it cannot be fetched."""


def directory() -> Path:
    if chosen := os.environ.get("MONODON_JARS"):
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "monodon" / "jars"


def iceberg_runtime() -> Path:
    """The jar, fetched if it is not there yet. Raises NotFetched."""
    jar = directory() / NAME
    if jar.is_file() and _digest(jar) == SHA256:
        return jar
    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        _fetch(jar)
    except OSError as error:
        raise NotFetched(f"{NAME} cannot be fetched from Maven Central: {error}") from None
    return jar


def _fetch(jar: Path) -> None:
    """Under another name first, so that a jar is whole or not there, whoever else fetches it."""
    deadline = time.monotonic() + _TOTAL_SECONDS
    part = jar.with_name(f"{jar.name}.{os.getpid()}")
    try:
        with (
            part.open("wb") as file,
            urllib.request.urlopen(_URL, timeout=_SILENCE_SECONDS) as answer,
        ):
            while chunk := answer.read(_CHUNK):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not complete after {_TOTAL_SECONDS:.0f} s")
                file.write(chunk)
        if (digest := _digest(part)) != SHA256:
            raise OSError(f"what came has SHA-256 {digest} instead of {SHA256}")
        part.replace(jar)
    finally:
        part.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
