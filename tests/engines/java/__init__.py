"""Iceberg's Java library, in a program that is compiled here."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark

from tests.clients import jars
from tests.clients.iceberg_kit import CORE
from tests.clients.jars import Jar
from tests.engines import toolkit

DIRECTORY = Path(__file__).parent
PROGRAM = DIRECTORY / "Orders.java"
SIGNED_PROGRAM = DIRECTORY / "Signed.java"
READS_PROGRAM = DIRECTORY / "Reads.java"
VERSION = "1.11.0"
COMPILER = Jar(
    "org.eclipse.jdt",
    "ecj",
    "3.46.100",
    "74c93172475fee0cd4e6eefb44233516dd40525642da35d009146d97ea598229",
)
_ICEBERG = "org.apache.iceberg"
_DATA = (
    Jar(
        _ICEBERG,
        "iceberg-data",
        VERSION,
        "a5c50127df53888ef3fe250c08adc58fff2b78dd6f8a5c227fe1939b0dfdb3e5",
    ),
    Jar(
        _ICEBERG,
        "iceberg-parquet",
        VERSION,
        "9abe486e0a37b4ace19edda9ec3260a339660a77360d4ea50ae71e05b3786a81",
    ),
    Jar(
        _ICEBERG,
        "iceberg-orc",
        VERSION,
        "1bc83e41be22828697ca103f17ca890670078091fbc0aa83eb7596238cf698ed",
    ),
    Jar(
        "org.apache.parquet",
        "parquet-avro",
        "1.16.0",
        "31748bb5006d2f86ee1853754ea9d4bae26784d1a651aecd6fb87faf770ca0ba",
    ),
)
S3_LIBRARIES = {
    jars.ICEBERG: (jars.RUNTIME, jars.AWS),
    "1.10.1": (
        Jar(
            _ICEBERG,
            "iceberg-spark-runtime-4.0_2.13",
            "1.10.1",
            "2192a0881ed0f5773b5a83a8820d2b0b2069beec203028643a1c338551007f09",
        ),
        Jar(
            _ICEBERG,
            "iceberg-aws-bundle",
            "1.10.1",
            "86bf20892ea5b4c17688f19b075399885f6aa5303f6b2dc9f491e76ceef9633b",
        ),
    ),
}
"""Iceberg with its libraries for S3, by version: the newest, and the last that signs at `s3.signer.endpoint`."""
# The name of the jar without its version, with a hyphen at the end.
_OF_PYSPARK = (
    *("hadoop-client-api-", "hadoop-client-runtime-", "avro-1", "slf4j-api-", "RoaringBitmap-"),
    *("jackson-annotations-", "jackson-core-", "jackson-databind-", "aircompressor-"),
    *("parquet-", "snappy-java-", "zstd-jni-", "commons-compress-", "jts-core-", "orc-"),
    *("log4j-api-", "log4j-core-", "log4j-slf4j2-impl-"),
)
_SECONDS = 400


def prepare(libraries: Sequence[Jar] = (*CORE, *_DATA)) -> None:
    """Fetch the compiler and the library. Raises Missing, NotFetched."""
    toolkit.hadoop_java()
    toolkit.fetch(COMPILER, *libraries)


def run(
    program: str,
    name: str,
    directory: Path,
    *arguments: str,
    libraries: Sequence[Jar] = (*CORE, *_DATA),
) -> str:
    """Compile and run a class; return its output. Fails with its error output."""
    (directory / f"{name}.java").write_text(program, encoding="utf-8")
    compiler, *files = toolkit.fetch(COMPILER, *libraries)
    of_pyspark = Path(pyspark.__file__).parent / "jars"
    files += [file for start in _OF_PYSPARK for file in sorted(of_pyspark.glob(f"{start}*.jar"))]
    class_path = os.pathsep.join(map(str, [directory, *files]))
    java = toolkit.hadoop_java()
    _run(java, "-jar", str(compiler), "-17", "-nowarn", "-cp", class_path, str(directory))
    return _run(java, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", class_path, name, *arguments)


def _run(java: str, *arguments: str) -> str:
    # Without credentials of the developer's shell: clients have what the server gives them.
    environment = {name: v for name, v in os.environ.items() if not name.startswith("AWS_")}
    completed = subprocess.run(
        toolkit.polite([java, *arguments]),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        env=environment | {"AWS_EC2_METADATA_DISABLED": "true"},
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr[-5000:]
    return completed.stdout
