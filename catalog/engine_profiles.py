"""Engine profiles: the rules of their fields, and the Spark that a profile describes. No I/O.

A profile decides where jobs run, not which code they run. Its settings are therefore limited to names
whose values are checked here, and to names that the operator adds in MONODON_SPARK_PROFILE_CONF. A
cluster is named in SPARK_MASTER or MONODON_SPARK_MASTERS: its executors get the data of tables, and its
master answers the driver with serialized objects.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from catalog.errors import InvalidInput

DEFAULT = "default"
"""The built-in profile, which the settings of the server describe."""
MAX_PROFILES = 50
"""Maximum number of profiles. Metrics have a label with their names."""
MAX_CORES, MAX_CONCURRENCY = 10_000, 1000
_MAX_CONF = 50
_MAX_VALUE = 1000
_ATTEMPTS = 4
"""Attempts of a task of a local master, as on clusters."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9])?")
_MEMORY = re.compile(r"[1-9][0-9]{0,6}[mgt]")


class EngineKind(StrEnum):
    """The kind of a Spark master."""

    LOCAL = "local"
    STANDALONE = "standalone"
    YARN = "yarn"
    KUBERNETES = "kubernetes"


class _Value(StrEnum):
    """The form of a value, as refusals describe it."""

    NUMBER = "a whole number such as 4"
    POSITIVE = "a whole number from 1, such as 4"
    SIZE = "a size such as 512m"
    TIME = "a time such as 30s"
    FRACTION = "a number from 0 to 1, such as 0.6"
    FLAG = "true or false"
    NAME = "a name of letters, digits, '.', '_' and '-'"
    CPU = "a number of CPUs such as 2 or 500m"
    CODEC = "lz4, lzf, snappy or zstd"


_FORMS: Mapping[_Value, re.Pattern[str]] = {
    _Value.NUMBER: re.compile(r"[0-9]{1,9}"),
    _Value.POSITIVE: re.compile(r"[1-9][0-9]{0,8}"),
    _Value.SIZE: re.compile(r"[0-9]{1,9}[kmgt]"),
    _Value.TIME: re.compile(r"[0-9]{1,9}(?:ms|s|m|min|h|d)"),
    _Value.FRACTION: re.compile(r"0(?:\.[0-9]{1,4})?|1(?:\.0)?"),
    _Value.FLAG: re.compile(r"true|false"),
    _Value.NAME: _NAME,
    _Value.CPU: re.compile(r"[0-9]{1,4}(?:m|\.[0-9]{1,3})?"),
    # Spark takes the name of a class too, which it would load.
    _Value.CODEC: re.compile(r"lz4|lzf|snappy|zstd"),
}
_ALLOWED: Mapping[str, _Value] = {
    "spark.executor.instances": _Value.POSITIVE,
    "spark.executor.cores": _Value.POSITIVE,
    "spark.executor.memoryOverhead": _Value.SIZE,
    "spark.executor.memoryOverheadFactor": _Value.FRACTION,
    "spark.executor.pyspark.memory": _Value.SIZE,
    "spark.dynamicAllocation.minExecutors": _Value.NUMBER,
    "spark.dynamicAllocation.maxExecutors": _Value.POSITIVE,
    "spark.dynamicAllocation.initialExecutors": _Value.NUMBER,
    "spark.dynamicAllocation.executorIdleTimeout": _Value.TIME,
    "spark.dynamicAllocation.schedulerBacklogTimeout": _Value.TIME,
    "spark.task.cpus": _Value.POSITIVE,
    "spark.task.maxFailures": _Value.POSITIVE,
    "spark.speculation": _Value.FLAG,
    "spark.default.parallelism": _Value.POSITIVE,
    "spark.sql.shuffle.partitions": _Value.POSITIVE,
    "spark.sql.adaptive.enabled": _Value.FLAG,
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": _Value.SIZE,
    "spark.sql.files.maxPartitionBytes": _Value.SIZE,
    "spark.memory.fraction": _Value.FRACTION,
    "spark.memory.storageFraction": _Value.FRACTION,
    "spark.network.timeout": _Value.TIME,
    "spark.rpc.askTimeout": _Value.TIME,
    "spark.io.compression.codec": _Value.CODEC,
    "spark.shuffle.compress": _Value.FLAG,
    "spark.yarn.queue": _Value.NAME,
    "spark.yarn.priority": _Value.NUMBER,
    "spark.kubernetes.namespace": _Value.NAME,
    "spark.kubernetes.executor.request.cores": _Value.CPU,
    "spark.kubernetes.executor.limit.cores": _Value.CPU,
}
"""Settings that neither load code nor read files, with the forms of their values."""
RESERVED = frozenset(
    {"spark.master", "spark.submit.deployMode", "spark.sql.variable.substitute", "spark.local.dir"}
)
"""Settings that the worker sets itself."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings of the server permit profiles to use."""

    masters: Collection[str] = ()
    """Masters of clusters."""
    conf: Collection[str] = ()
    """Names of settings of Spark, besides those that are always allowed."""


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """A Spark on which jobs run: the built-in profile, or a row of ``EngineProfile``."""

    name: str
    master: str
    cores: int
    """Cores that a driver uses of a cluster; those of a local master are part of it."""
    memory: str
    """Memory of the driver and of each executor, such as 4g; empty: Spark's default."""
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_default(self) -> bool:
        return self.name == DEFAULT

    @property
    def kind(self) -> EngineKind | None:
        return kind_of(self.master)


def kind_of(master: str) -> EngineKind | None:
    """The kind of a Spark master; None if it is of another kind."""
    if master.startswith("local"):
        return EngineKind.LOCAL
    if master.startswith("spark://"):
        return EngineKind.STANDALONE
    if master == "yarn":
        return EngineKind.YARN
    return EngineKind.KUBERNETES if master.startswith("k8s://") else None


def local_master(cores: int) -> str:
    return f"local[{cores},{_ATTEMPTS}]"


def allowed_names(limits: Limits) -> list[str]:
    """The settings of Spark that a profile may have, sorted."""
    return sorted({*_ALLOWED, *limits.conf} - RESERVED)


def check_name(name: str) -> None:
    """Check the name of a profile. Raises InvalidInput."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"name: {name!r} has other characters than letters, digits, '.', '_' and '-', or more"
            " than 100; use a name such as cluster-eu"
        )


def check(
    *,
    kind: EngineKind,
    master: str,
    cores: int,
    memory: str,
    concurrency: int,
    conf: Mapping[str, Any],
    limits: Limits,
) -> None:
    """Check the fields of a profile together. Raises InvalidInput, which names the field."""
    _check_master(kind, master, limits)
    _check_range("cores", cores, MAX_CORES)
    _check_range("concurrency", concurrency, MAX_CONCURRENCY)
    if memory and not _MEMORY.fullmatch(memory):
        raise InvalidInput(f"memory: {memory!r} must be a size such as 512m or 4g, or empty")
    if len(conf) > _MAX_CONF:
        raise InvalidInput(f"conf: it has more than {_MAX_CONF} settings")
    for name, value in conf.items():
        check_setting(name, value, limits)


def _check_master(kind: EngineKind, master: str, limits: Limits) -> None:
    if kind is EngineKind.LOCAL:
        if master:
            raise InvalidInput("master: a local profile has none; 'cores' sets its size")
        return
    permitted = sorted(name for name in limits.masters if kind_of(name) is kind)
    if master not in permitted:
        listed = ", ".join(permitted) or "none"
        raise InvalidInput(
            f"master: {master!r} is not a cluster that the settings of the server name; those of"
            f" kind '{kind}' are: {listed}. The operator adds it to MONODON_SPARK_MASTERS"
        )


def _check_range(name: str, value: int, highest: int) -> None:
    if type(value) is not int or not 1 <= value <= highest:
        raise InvalidInput(f"{name}: {value!r} must be a whole number from 1 to {highest}")


def check_setting(name: str, value: Any, limits: Limits) -> None:
    """Check a setting of Spark. Raises InvalidInput."""
    form = _ALLOWED.get(name)
    is_allowed = name not in RESERVED and (form is not None or name in limits.conf)
    if not is_allowed:
        raise InvalidInput(
            f"conf: profiles may not set {name[:200]!r}; they may set"
            f" {', '.join(allowed_names(limits))}. The operator adds others to"
            " MONODON_SPARK_PROFILE_CONF"
        )
    if not isinstance(value, str) or not value.isprintable() or len(value) > _MAX_VALUE:
        raise InvalidInput(
            f"conf: the value of '{name}' must be a text of at most {_MAX_VALUE} characters, on one"
            " line"
        )
    if form is not None and not _FORMS[form].fullmatch(value):
        raise InvalidInput(f"conf: the value of '{name}' must be {form.value}, not {value!r}")
