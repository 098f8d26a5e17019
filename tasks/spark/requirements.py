"""The programs that Spark needs on this machine."""

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from catalog.errors import Unsupported
from tasks.spark import libraries

_OLDEST_JAVA, _NEWEST_JAVA = 17, 23


def spark_home() -> str:
    """The directory of the installed PySpark, which the Iceberg runtime fits. Raises Unsupported."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unsupported("This worker has no Spark: pip install pyspark, as in requirements.txt")
    return str(Path(spec.origin).parent)


def java_home() -> str:
    """The value for JAVA_HOME; empty if the ``java`` on the PATH is used. Raises Unsupported."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    requirement = f"Spark needs Java {_OLDEST_JAVA} to {_NEWEST_JAVA}"
    if java is None or not Path(java).exists():
        where = f"there is none in JAVA_HOME ({home})" if home else "none is installed"
        raise Unsupported(f"{requirement}, and {where}: install one and set JAVA_HOME")
    version = _java_version(java)
    if version is None or not _OLDEST_JAVA <= version <= _NEWEST_JAVA:
        installed = version or "none that runs"
        raise Unsupported(f"{requirement}, not {installed} ({java}): install one and set JAVA_HOME")
    return home


@cache
def _java_version(java: str) -> int | None:
    output = subprocess.run(  # noqa: S603
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    ).stderr
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else None


def missing() -> str:
    """Why this machine cannot run Spark at all; empty if it can."""
    try:
        spark_home()
        java_home()
    except Unsupported as error:
        return error.message
    return ""


def missing_for_iceberg() -> str:
    """Why this machine cannot run jobs of Iceberg tables; empty if it can."""
    return missing() or libraries.problem()
