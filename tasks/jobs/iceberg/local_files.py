"""Catalogs in Spark that open local files only."""

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_LOCAL_FILE_SYSTEM = "org.apache.hadoop.fs.LocalFileSystem"
_REMOTE = ("ftp", "har", "hdfs", "http", "https", "swebhdfs", "viewfs", "webhdfs")
"""Schemes of every Hadoop. The libraries of Spark may add others."""
_IMPLEMENTATION = re.compile(r"^fs\.([^.]+)\.impl$")


def open_local_files_only(spark: SparkSession, prefix: str) -> None:
    """Make Hadoop refuse every URI in a catalog that is not of a local file.

    HadoopFileIO opens all schemes that Hadoop knows, such as ``http`` and ``hdfs``. Names of other schemes are given to
    the local file system, which refuses them without a connection ("Wrong FS"). The settings are those of
    the catalog, because Spark itself may use another file system. Hadoop keeps opened file systems for the
    process, so that a job must neither get one of another scheme nor leave one. It looks for an opened one by the scheme
    in small letters, but for settings by the scheme as it is written.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    for scheme in sorted(_other_schemes(jvm, hadoop)):
        spark.conf.set(f"{prefix}.hadoop.fs.{scheme}.impl", _LOCAL_FILE_SYSTEM)
        for spelling in _spellings(scheme):
            spark.conf.set(f"{prefix}.hadoop.fs.{spelling}.impl.disable.cache", "true")
    spark.conf.set(f"{prefix}.hadoop.fs.defaultFS", "file:///")  # for paths without a scheme


def _spellings(scheme: str) -> Iterator[str]:
    """A scheme with any of its letters as capitals."""
    return map("".join, itertools.product(*(sorted({char, char.upper()}) for char in scheme)))


def _other_schemes(jvm: Any, hadoop: Any) -> set[str]:
    """The schemes that Hadoop can open by its settings and by its libraries, except that of local files."""
    schemes = set(_REMOTE)
    for name in hadoop.getValByRegex(_IMPLEMENTATION.pattern).keySet():
        match = _IMPLEMENTATION.search(str(name))
        schemes |= {match[1]} if match else set()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    file_system = loader.loadClass("org.apache.hadoop.fs.FileSystem")
    providers = jvm.java.util.ServiceLoader.load(file_system, loader).iterator()
    while providers.hasNext():
        # Hadoop ignores those that cannot be loaded, too.
        with contextlib.suppress(Py4JError):
            schemes.add(str(providers.next().getScheme()))
    return schemes - {"file"}
