"""Flink on this machine, with Iceberg's connector, driven by its table API."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.clients.jars import Jar
from tests.engines import statements, toolkit
from tests.engines.java import COMPILER

DIRECTORY = Path(__file__).parent
VERSION = "2.3.0"
# PyFlink's wheel with the whole distribution.
_DISTRIBUTION = f"apache-flink-libraries=={VERSION}"
ICEBERG = Jar(
    "org.apache.iceberg",
    "iceberg-flink-runtime-2.1",
    "1.11.0",
    "39e658d876f253815b4b17c6676bebf6a24d517afe93a21298106d1d7fa97331",
)
_OF_PYSPARK = ("hadoop-client-api-", "hadoop-client-runtime-")
# Packages that Flink's scripts open on Java 17.
_OPENED = (
    *("java.base/java.lang", "java.base/java.net", "java.base/java.io", "java.base/java.nio"),
    *("java.base/java.text", "java.base/java.time", "java.base/java.util"),
    *("java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/sun.nio.ch"),
    *("java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic"),
    "java.base/java.util.concurrent.locks",
)
_SEPARATOR = "\x1f"
_STOP_SECONDS = 30
_COMPILE_SECONDS = 120


class FlinkError(Exception):
    """A statement failed."""


def prepare() -> None:
    """Fetch Flink and the connector. Raises Missing, NotFetched."""
    toolkit.hadoop_java()
    toolkit.fetch(COMPILER, ICEBERG)
    target = toolkit.cache(_DISTRIBUTION)
    if not (target / "pyflink" / "lib").exists():
        toolkit.install("Flink", target, _DISTRIBUTION)


def _class_path() -> str:
    (connector,) = toolkit.fetch(ICEBERG)
    jars = Path(pyspark.__file__).parent / "jars"
    hadoop = [file for start in _OF_PYSPARK for file in jars.glob(f"{start}*.jar")]
    flink = (toolkit.cache(_DISTRIBUTION) / "pyflink" / "lib").glob("*.jar")
    return os.pathsep.join(map(str, [*sorted(flink), connector, *hadoop]))


class Session:
    """Statements to one table environment, which ends with the process."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process, self._log = process, log

    def __call__(self, statement: str) -> statements.Rows:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement}\0")
        self._process.stdin.flush()
        rows = []
        for line in self._process.stdout:
            kind, *values = line.rstrip("\n").split(_SEPARATOR)
            if kind == "ROW":
                rows.append(values)
            elif kind == "ERROR":
                raise FlinkError(*values)
            elif kind == "OK":
                return rows
        raise AssertionError(f"Flink ended:\n{self._log.read_text()[-5000:]}")


@contextmanager
def session(directory: Path) -> Iterator[Session]:
    """A separate Flink in one process, with its files below the directory."""
    java = toolkit.hadoop_java()
    (compiler,) = toolkit.fetch(COMPILER)
    source = DIRECTORY / "driver" / "Statements.java"
    toolkit.run(
        "Flink's driver",
        [
            *(java, "-jar", str(compiler), "-17", "-nowarn", "-d", str(directory)),
            *("-cp", _class_path(), str(source)),
        ],
        seconds=_COMPILE_SECONDS,
    )
    log = directory / "flink.log"
    command = [
        *(java, "-Xmx1200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        f"-Djava.io.tmpdir={directory}",
        *(argument for name in _OPENED for argument in ("--add-opens", f"{name}=ALL-UNNAMED")),
        *("-cp", f"{directory}{os.pathsep}{_class_path()}", "Statements"),
    ]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            toolkit.polite(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        try:
            yield Session(process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
