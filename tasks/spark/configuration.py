"""The settings of Spark for a driver."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from django.conf import settings

from catalog.engine_profiles import EngineKind, SparkEngine
from tasks.spark import libraries, requirements

_FORCED_CONF = {"spark.sql.variable.substitute": "false"}
"""Otherwise Spark replaces ``${env:NAME}`` in the name of a table by a variable of the environment."""
_SIZES = frozenset(
    {
        "spark.master",
        "spark.driver.memory",
        "spark.executor.memory",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.cores.max",
        "spark.dynamicAllocation.maxExecutors",
    }
)
"""Settings of the operator that describe the size of the built-in profile."""
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def environment(engine: SparkEngine) -> dict[str, str]:
    """Environment variables of a driver. Raises Unsupported without Java or PySpark."""
    home, java = requirements.spark_home(), requirements.java_home()
    # Otherwise Spark looks up the name of this machine, which some containers and networks do not know.
    is_local = engine.kind is EngineKind.LOCAL and "SPARK_LOCAL_HOSTNAME" not in os.environ
    return {
        **({"SPARK_LOCAL_HOSTNAME": "localhost"} if is_local else {}),
        **({"JAVA_HOME": java} if java else {}),
        "SPARK_HOME": home,
        "PYSPARK_PYTHON": _executor_python(engine),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "MONODON_SPARK_IDLE_SECONDS": str(settings.MONODON_SPARK_IDLE_SECONDS),
    }


def properties(engine: SparkEngine, jars: Sequence[Path]) -> Callable[[Path], str]:
    """Function that returns the text of a properties file for a driver's temporary directory."""

    def write(directory: Path) -> str:
        escaped = partial(re.sub, r"([\\:=#! ])", r"\\\1")
        conf = _conf(engine, jars, directory)
        return "".join(
            f"{escaped(name)}={_one_line(escaped(value))}\n" for name, value in conf.items()
        )

    return write


def _conf(engine: SparkEngine, jars: Sequence[Path], directory: Path) -> dict[str, str]:
    """The settings of the operator override those of the built-in profile, and are themselves
    overridden by those of any other profile."""
    conf = {
        "spark.master": engine.master,
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
    if jars or libraries.are_configured():
        conf["spark.sql.extensions"] = _EXTENSIONS
    if engine.kind is EngineKind.LOCAL:
        conf["spark.local.dir"] = str(directory)
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    extra = settings.MONODON_SPARK_CONF
    if engine.is_default:
        return conf | _size(engine, extra) | extra | _FORCED_CONF
    # The size of the built-in profile does not apply to another one.
    shared = {name: value for name, value in extra.items() if name not in _SIZES}
    own = {**_size(engine, engine.conf), **engine.conf, "spark.master": engine.master}
    return conf | shared | own | _FORCED_CONF


def _size(engine: SparkEngine, extra: Mapping[str, str]) -> dict[str, str]:
    """Cores and memory of a driver and its executors."""
    conf = {"spark.driver.memory": engine.memory} if engine.memory else {}
    return conf if engine.kind is EngineKind.LOCAL else conf | _shares(engine, extra)


def _shares(engine: SparkEngine, extra: Mapping[str, str]) -> dict[str, str]:
    """The share of a cluster that a driver may use. Without it, the first driver of a standalone
    cluster takes all cores, and the second one waits. Executors have one core, so that every worker
    of the cluster can run them."""
    conf = {"spark.cores.max": str(engine.cores), "spark.executor.cores": "1"}
    if engine.memory:
        conf["spark.executor.memory"] = engine.memory
    if "spark.executor.instances" not in extra:
        cores_each = 1 if engine.is_default else int(extra.get("spark.executor.cores") or 1)
        # A driver that waits for its next job gives its executors back.
        conf |= {
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.minExecutors": "0",
            "spark.dynamicAllocation.maxExecutors": str(max(engine.cores // cores_each, 1)),
            "spark.dynamicAllocation.executorIdleTimeout": "30s",
        }
    return conf


def _executor_python(engine: SparkEngine) -> str:
    """The Python of executors: on this machine that of the worker."""
    if engine.kind is EngineKind.LOCAL:
        return sys.executable
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _one_line(value: str) -> str:
    return value.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
