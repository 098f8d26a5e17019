"""Spark with the Iceberg runtime, as a client of the live server."""

import gc
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.clients import jars

OLDEST_JAVA = 17


def missing() -> str:
    """Why Spark cannot run here; empty if it can."""
    if java_version() < OLDEST_JAVA:
        return f"Spark needs Java {OLDEST_JAVA} or newer: install one, or set JAVA_HOME"
    try:
        jars.iceberg_runtime()
    except jars.NotFetched as error:
        return str(error)
    return ""


def require() -> None:
    """Skip what needs Spark where it cannot run; fail where MONODON_REQUIRE_SPARK is set."""
    if reason := missing():
        if os.environ.get("MONODON_REQUIRE_SPARK"):
            pytest.fail(reason)
        pytest.skip(reason)


def java_version() -> int:
    """Of the Java that Spark would take; 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return 0
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


@contextmanager
def session(
    directory: Path, catalogs: Mapping[str, Mapping[str, str]], **settings: str
) -> Iterator[SparkSession]:
    """A session of a JVM of its own, which ends with it; its files are below the directory."""
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
        # Short queries on small tables: what takes long is the start and the compilers.
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
    # This Spark, whatever else is installed, and no look at the host's name.
    ours = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
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
        with warnings.catch_warnings():  # Py4J leaves closing its sockets to the collector
            warnings.simplefilter("ignore", ResourceWarning)
            del spark, gateway
            gc.collect()
