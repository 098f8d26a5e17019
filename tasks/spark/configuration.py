"""The settings of Spark for a driver."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from django.conf import settings

from tasks.spark import libraries, requirements

_FORCED_CONF = {"spark.sql.variable.substitute": "false"}
"""Otherwise Spark replaces ``${env:NAME}`` in the name of a table by a variable of the environment."""
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def is_local() -> bool:
    return bool(settings.SPARK_MASTER.startswith("local"))


def environment() -> dict[str, str]:
    """Environment variables of a driver. Raises Unsupported without Java or PySpark."""
    home, java = requirements.spark_home(), requirements.java_home()
    return {
        **({"JAVA_HOME": java} if java else {}),
        "SPARK_HOME": home,
        "PYSPARK_PYTHON": _executor_python(),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "MONODON_SPARK_IDLE_SECONDS": str(settings.MONODON_SPARK_IDLE_SECONDS),
    }


def properties(jars: Sequence[Path]) -> Callable[[Path], str]:
    """Function that returns the text of a properties file for a driver's temporary directory."""

    def write(directory: Path) -> str:
        escaped = partial(re.sub, r"([\\:=#! ])", r"\\\1")
        conf = _conf(jars, directory)
        return "".join(
            f"{escaped(name)}={_one_line(escaped(value))}\n" for name, value in conf.items()
        )

    return write


def _conf(jars: Sequence[Path], directory: Path) -> dict[str, str]:
    conf = {
        "spark.master": settings.SPARK_MASTER,
        "spark.app.name": "monodon maintenance",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The driver runs many jobs, and its pages are rarely shown.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.log.level": "WARN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    all_jars = [*settings.MONODON_SPARK_JARS, *map(str, jars)]
    if all_jars:
        conf["spark.jars"] = ",".join(all_jars)
    if settings.MONODON_SPARK_PACKAGES:
        conf["spark.jars.packages"] = ",".join(settings.MONODON_SPARK_PACKAGES)
    extra = settings.MONODON_SPARK_CONF
    if jars or libraries.given():
        conf["spark.sql.extensions"] = _EXTENSIONS
    if settings.MONODON_SPARK_MEMORY:
        conf["spark.driver.memory"] = settings.MONODON_SPARK_MEMORY
    if is_local():
        conf["spark.local.dir"] = str(directory)
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    else:
        conf |= _shares(extra)
    return conf | extra | _FORCED_CONF


def _shares(extra: Mapping[str, str]) -> dict[str, str]:
    """The share of a cluster that a driver may use. Without it, the first driver of a standalone
    cluster takes all cores, and the second one waits. Executors have one core, so that every worker
    of the cluster can run them."""
    cores = str(settings.MONODON_SPARK_CORES)
    conf = {"spark.cores.max": cores, "spark.executor.cores": "1"}
    if settings.MONODON_SPARK_MEMORY:
        conf["spark.executor.memory"] = settings.MONODON_SPARK_MEMORY
    if "spark.executor.instances" not in extra:
        # A driver that waits for its next job gives its executors back.
        conf |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.maxExecutors": cores,
            "spark.dynamicAllocation.executorIdleTimeout": "30s",
        }
    return conf


def _executor_python() -> str:
    """The Python of executors: on this machine that of the worker."""
    if is_local():
        return sys.executable
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _one_line(value: str) -> str:
    return value.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
