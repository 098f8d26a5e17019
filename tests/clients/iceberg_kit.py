"""Iceberg's REST Compatibility Kit, run against a live server.

The kit is the test suite of Iceberg's REST catalogs, and can be run against any server. It is
published on Maven Central with the releases; Hadoop's classes come from the PySpark wheel.
`python -m tests.clients.iceberg_kit` downloads its files, and reports the reason if it cannot run.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests import optional
from tests.clients import jars, spark
from tests.clients.jars import Jar

VERSION = "1.11.0"
_ICEBERG = "org.apache.iceberg"
_CONSOLE = Jar(
    "org.junit.platform",
    "junit-platform-console-standalone",
    "1.14.4",
    "7c6968cbcaf4301c729f202b23b7d736c5d88be625fc7d27ad5d746146a8bc28",
)
CORE = (
    Jar(
        _ICEBERG,
        "iceberg-core",
        VERSION,
        "53b9eb7a8c34fb9958ea7d9a4d19ba5bc96f592d0f05e8625b0778c70b1f0090",
    ),
    Jar(
        _ICEBERG,
        "iceberg-api",
        VERSION,
        "f00675a12ceb6d833bb9c22024823a3e7afdedf7abcefe34719f45b0d211995a",
    ),
    Jar(
        _ICEBERG,
        "iceberg-common",
        VERSION,
        "b2835d00db7c92bdfa728123ad7cdcb488e2f2805c1c51fb9ae94e8bd203bd7d",
    ),
    Jar(
        _ICEBERG,
        "iceberg-bundled-guava",
        VERSION,
        "396d48d93ef5735f2ddef0cf9b3d6968ebd67b64b5cfe753d41c429d3f46a2a1",
    ),
    Jar(
        "org.apache.httpcomponents.client5",
        "httpclient5",
        "5.6.1",
        "1e3d8444c3c27772e4b9d42a790f06b3345a8ece4fd16d00981f2f2460e1e772",
    ),
    Jar(
        "org.apache.httpcomponents.core5",
        "httpcore5",
        "5.4",
        "cec2981fa7f520efb63f0787c24f10af2679e31f9f75c448c4dde40a3ae8100d",
    ),
    Jar(
        "org.apache.httpcomponents.core5",
        "httpcore5-h2",
        "5.4",
        "2e0f4ace15db2d1609c2b06eca6012e7582afe4a99ad8d15073f62dd8edb3460",
    ),
    Jar(
        "com.github.ben-manes.caffeine",
        "caffeine",
        "2.9.3",
        "1e0a7bbef1dd791653143f3f05d0e489934bf5481e58a87c9e619cd46b68729b",
    ),
)
"""Iceberg's Java library, for programs that use a REST catalog."""
_JARS = (
    _CONSOLE,
    *CORE,
    Jar(
        _ICEBERG,
        "iceberg-open-api",
        VERSION,
        "76d2debf256268603964bb8fe8c0a14df117964199b966886ec72476b841692c",
        "tests",
    ),
    Jar(
        _ICEBERG,
        "iceberg-open-api",
        VERSION,
        "b0aa8636d88c24976d552ac9b3075a1315dc1ccd4fa6ed95b365901842664316",
        "test-fixtures",
    ),
    Jar(
        _ICEBERG,
        "iceberg-core",
        VERSION,
        "4284719a5f0eb7db01e9f784a0ed4ca8bacf7d6f9951924143afc083428d8be3",
        "tests",
    ),
    Jar(
        _ICEBERG,
        "iceberg-api",
        VERSION,
        "5ba3fda757ce34f12604f1451c72fbfb583d870f43fa8df9ae4d9a329bbe7a8b",
        "tests",
    ),
    Jar(
        "org.assertj",
        "assertj-core",
        "3.27.7",
        "c4a445426c3c2861666863b842cc4ec7bbb1c4226fefd370b6d2fe83d6c4ff0f",
    ),
    Jar(
        "net.bytebuddy",
        "byte-buddy",
        "1.18.3",
        "d78396e3c5bce3f2865c9186647481e5589d34cacc632484715b686108d17c66",
    ),
)
# The name of the jar without its version, with a hyphen at the end.
_OF_PYSPARK = (
    *("hadoop-client-api-", "hadoop-client-runtime-", "avro-1", "slf4j-api-"),
    *("jackson-annotations-", "jackson-core-", "jackson-databind-"),
    *("log4j-api-", "log4j-core-", "log4j-slf4j2-impl-"),
)
_SUITES = ("RESTCompatibilityKitCatalogTests", "RESTCompatibilityKitViewCatalogTests")
# Capabilities of the server in addition to those that the kit expects.
_ABILITIES = (
    "rck.requires-namespace-create",
    "rck.supports-serverside-retry",
    "rck.supports-names-with-dot",
)
_SECONDS = 480


@dataclass(frozen=True)
class Results:
    """Names of tests, as ``suite.test``, with the reasons of failures."""

    passed: frozenset[str]
    skipped: frozenset[str]
    failed: dict[str, str]


def missing() -> str:
    """The reason why the kit cannot run; empty if it can."""
    if spark.java() is None:
        return f"The kit needs Java {spark.OLDEST_JAVA} to {spark.NEWEST_JAVA}, as Spark does"
    try:
        jars.fetch(_JARS)
    except jars.NotFetched as error:
        return str(error)
    return ""


def require() -> None:
    """Skip tests if the kit cannot run, or fail if MONODON_REQUIRE_KIT is set."""
    optional.require(missing(), "MONODON_REQUIRE_KIT")


def run(url: str, token: str, warehouse: str, reports: Path) -> Results:
    """Run all tests of the kit as a client of this warehouse; the kit creates and drops its
    tables."""
    java = spark.java()
    assert java is not None, "call require() first"
    console, *files = jars.fetch(_JARS)
    directory = Path(pyspark.__file__).parent / "jars"
    files += [file for name in _OF_PYSPARK for file in sorted(directory.glob(f"{name}*.jar"))]
    command = [
        java,
        # The tests are short: most of the time is start-up and compilation.
        *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"),
        *("-Drck.local=false", *(f"-D{ability}=true" for ability in _ABILITIES)),
        *("-jar", str(console), "execute", "--config", "rck.local=false"),
        *("--class-path", os.pathsep.join(map(str, files)), "--reports-dir", str(reports)),
        *("--details", "none", "--disable-banner", "--disable-ansi-colors"),
        *(f"--select-class=org.apache.iceberg.rest.{suite}" for suite in _SUITES),
    ]
    # The kit reads the properties of its catalog from here, so `ps` does not show them.
    catalog = {"CATALOG_URI": url, "CATALOG_TOKEN": token, "CATALOG_WAREHOUSE": warehouse}
    completed = subprocess.run(
        command,
        env=os.environ | catalog,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    # 1: some tests failed.
    assert completed.returncode in {0, 1}, completed.stdout[-5000:] + completed.stderr[-5000:]
    return _read(reports)


def _read(reports: Path) -> Results:
    passed, skipped, failed = set(), set(), {}
    for report in sorted(reports.glob("TEST-*.xml")):
        for case in ET.parse(report).getroot().iter("testcase"):
            suite = case.attrib["classname"].rpartition(".")[2]
            name = f"{suite.removeprefix('RESTCompatibilityKit')}.{case.attrib['name']}"
            fault = case.find("failure") if case.find("error") is None else case.find("error")
            if fault is not None:
                failed[name] = (fault.text or "").strip()
            elif case.find("skipped") is not None:
                skipped.add(name)
            else:
                passed.add(name)
    return Results(frozenset(passed), frozenset(skipped), failed)


def main() -> int:
    if reason := missing():
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
